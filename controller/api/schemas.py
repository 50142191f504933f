# SPDX-License-Identifier: Apache-2.0
"""The resources of the REST API as JSON, and how they are made from the pool's records.

Used by the handlers in controller.api; the OpenAPI document is generated from these models. Times
are ISO 8601 in UTC, memory is in MiB, compute in percent. Fields are added, never renamed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sluice.controller.api.pages import Page
from sluice.controller.api.suspension_view import SuspensionView, suspension_view
from sluice.controller.pool import model
from sluice.controller.pool.pool import Pool
from sluice.protocol import frames
from sluice.resources import vgpu_request
from sluice.resources.container import Container
from sluice.resources.ends import End, EndCause, cause_name
from sluice.resources.vgpu_request import I32, Sharing

Time = datetime


def _line(value: str) -> str:
    # what is shown in tables and logs, and stored: one line that is text
    if not value.isprintable():
        raise ValueError("has characters that cannot be printed")
    return value


Line = Annotated[str, Field(max_length=255), AfterValidator(_line)]
Name = Annotated[
    str, Field(min_length=1, max_length=frames.MAX_PROJECT_BYTES, pattern=r"^[A-Za-z0-9._-]+$")
]
#: A size that a request names; most say: 0 is the default, or no limit.
Size = Annotated[int, Field(ge=0, le=I32.high)]


def time_of(seconds: float) -> datetime:
    """Seconds since the epoch as the API shows them."""
    return datetime.fromtimestamp(seconds, UTC)


class NodeView(BaseModel):
    """A host that runs sluice-server."""

    name: str
    state: Literal["up", "away", "lost"]
    address: str
    port: int
    version: str
    vgpu_count: int
    gpus: int
    sessions: int
    generation: int
    labels: dict[str, str]
    drained: bool = Field(description="it takes nothing new")
    sharing: Sharing = Field(description="how its GPUs are shared where nobody says otherwise")
    shares: Literal["unknown", "kept", "off", "away"] = Field(
        description="whether vGPUs are held to their shares of its GPUs' time: off is its "
        "operator's word, away lasts until its arbiter is back, unknown is an older server's; "
        "shares are reserved only where they are kept"
    )
    concurrent: bool = Field(description="sessions of a project can run at once, through MPS")
    concurrent_problem: str = Field(description="why they cannot")


class GpuView(BaseModel):
    """A GPU and what is promised of it."""

    id: str = Field(description="node:uuid")
    node: str
    uuid: str
    model: str
    state: Literal["up", "away", "lost"]
    software: bool
    memory_mib: int
    reserved_mib: int
    context_overhead_mib: int
    granted_mib: int = Field(description="vGPUs and their contexts' overhead")
    promisable_mib: int = Field(
        description="what may be granted in all: more than there is where memory is oversubscribed"
    )
    granted_percent: int
    vgpus: int
    concurrent_project: str = Field(
        description="whose sessions run at once on it, and nobody else's; empty: it is in turns"
    )
    architecture: str = Field(description="such as sm_90; empty: its node did not say")
    numa_node: int | None
    nvlink_group: str = Field(description="GPUs of a node with the same are linked by NVLink")
    health: Literal["ok", "flagged", "held", "fault"]
    fault: str = Field(description="why nothing is placed on it, and what ran there was ended")
    held: str = Field(description="why nothing new is placed on it for now; what runs goes on")
    note: str = Field(description="what an operator should know; it is given out all the same")
    mode: Literal["pooled", "draining", "drained", "native", "returning"]
    kept_mib: int = Field(description="for reservations' owners and requests that preempt")
    kept_percent: int
    pci_address: str = Field(description="on its node; empty: its node did not say")
    native_problem: str = Field(description="why it cannot be given whole to a VM")
    held_by: str = Field(description="the VM that has it whole; empty: none")


class VgpuView(BaseModel):
    """A slice of one GPU."""

    gpu: str
    memory_mib: int
    compute_percent: int
    sharing: Sharing = Field(description="auto: as its server says")


CAUSES = ", ".join(cause_name(cause) for cause in EndCause)


class GrantView(BaseModel):
    """What a job holds."""

    id: str
    state: Literal["live", "ended"]
    node: str
    nodes: list[str] = Field([], description="that its vGPUs are on, in their order")
    vgpus: list[VgpuView]
    priority: int
    sessions: list[str]
    created: datetime
    ended: datetime | None
    reason: str = Field(description="why it ended, in words")
    cause: str = Field(description=f"why it ended, or is to end: {CAUSES}; empty: it lives")
    generation: int
    job: str = Field(description="the name of a shared job, which is not its token; else empty")
    job_processes: int = Field(description="for whose contexts room is kept")
    project: str = Field(description="whose it is; empty: nobody's in particular")
    reservation: str = Field(description="the reservation that it draws on; empty: the pool")
    mode: Literal["reserved", "on-demand"]
    person: str = Field("", description="who began it; empty: nobody in particular")
    label: str = Field("", description="what reservations for a label go by; empty: none")
    suspension: SuspensionView | None = Field(None, description="none: it runs, or has ended")


class ContainerView(BaseModel):
    """The container that a client process is in, as its host's kernel says."""

    id: str
    engine: str = Field(description="docker, podman, containerd, cri-o, kubernetes, lxc, namespace")
    pod: str = Field(description="the UID of its Kubernetes pod; empty: of none")
    owner_uid: int = Field(description="the host's user whose engine it is; 0: root's")
    device: str = Field(
        description="the CDI device that it was given (`sluice.io/vgpu=`); empty: none"
    )
    name: str = Field(description="as tables show it")


class SessionView(BaseModel):
    """A client process that uses a grant."""

    id: str
    grant_id: str
    state: Literal["opening", "running", "ended"]
    node: str
    channel: str
    host: str
    program: str
    client_pid: int
    client_uid: int
    domain_uuid: str
    domain_name: str
    started: datetime
    ended: datetime | None
    reason: str = Field(description="why it ended, in words")
    cause: str = Field(description=f"why it ended: {CAUSES}; empty: it lives")
    chosen: list[int] = Field(description="which of a job's vGPUs it has; empty: all")
    relay: str = Field(description="the node beside it that relays it to `node`; empty: none does")
    disconnected_since: datetime | None = Field(
        description="since when its client has had no connection to it; null: it has one"
    )
    owner_kind: Literal["user", "vm", "container", "address"] = Field(
        description="what its host knows its client by"
    )
    container: ContainerView | None = Field(description="null: its client is in none")


class NodeList(Page):
    """Nodes, by name."""

    nodes: list[NodeView]


class GpuList(Page):
    """GPUs, by node and UUID."""

    gpus: list[GpuView]


class GrantList(Page):
    """Grants, oldest first."""

    grants: list[GrantView]


class SessionList(Page):
    """Sessions, oldest first."""

    sessions: list[SessionView]


class SessionRequest(BaseModel):
    """What a client without a server near it asks for; zeros take the pool's defaults."""

    model_config = ConfigDict(extra="ignore")

    vgpu_count: int = Field(0, ge=0, le=vgpu_request.COUNT.high)
    gmem_mib: Size = 0
    ratio_percent: int = Field(0, ge=0, le=vgpu_request.COMPUTE_PERCENT.high)
    cross_node: bool = Field(False, description="the vGPUs may be on several nodes; 100 % each")
    takes_parts: bool = Field(
        False, description="the client can have a session on each of several nodes (`parts`)"
    )
    gpu_model: str = Field(
        "", max_length=frames.MAX_GPU_MODEL_BYTES, description="words of the model's name, as h200"
    )
    gpu_architecture: str = Field(
        "", max_length=frames.MAX_ARCHITECTURE_BYTES, description="such as sm_90"
    )
    labels: dict[str, str] = Field(
        {}, max_length=vgpu_request.MAX_LABELS, description="that the node must have"
    )
    priority: int = Field(0, ge=I32.low, le=I32.high)
    preempt: bool = Field(False, description="end lower-priority work; the project's right")
    wait_seconds: int = Field(
        0,
        ge=vgpu_request.WAIT_SECONDS.low,
        le=I32.high,
        description="-1 = for ever, 0 = not at all",
    )
    host: Line = ""
    program: Line = ""
    pid: int = Field(0, ge=0, le=I32.high)
    project: Name | None = Field(
        None,
        description="whose it is to be; a tenant's is the tenant's own, and only operators choose",
    )
    same_gpu_allowed: bool = Field(
        False, description="two of the vGPUs may be on one card where there are too few"
    )
    mode: Literal["auto", "reserved", "on-demand"] = Field(
        "auto",
        description="reserved: of a reservation or not at all; on-demand: of none; auto: a "
        "reservation first, then the pool",
    )
    sharing: Sharing = Field(
        Sharing.AUTO,
        description="how its share of a GPU's time is kept: turns: more while nobody else wants "
        "the GPU; capped: never more; auto: as the pool and the server say",
    )
    job: str = Field("", max_length=64, description="the token of the job that it belongs to")
    job_processes: int = Field(
        0, ge=0, le=vgpu_request.JOB_PROCESSES.high, description="leave room for so many contexts"
    )
    chosen: list[Annotated[int, Field(ge=0, le=vgpu_request.COUNT.high - 1)]] = Field(
        [],
        max_length=vgpu_request.COUNT.high,
        description="which of the job's vGPUs the process has; empty: all",
    )


class HoldRequest(BaseModel):
    """The job that is to keep its grant for as long as this request is open."""

    model_config = ConfigDict(extra="ignore")

    job: str = Field(max_length=64)


class TicketPart(BaseModel):
    """One node's session of a process that has vGPUs of several, and where to connect for it."""

    node: str
    session_id: str
    address: str
    port: int
    key: str
    tls: bool = False
    tls_name: str = ""
    vgpus: int = Field(description="how many of the process's are there")


class SessionTicket(BaseModel):
    """Where to connect, and the key to show there once."""

    session_id: str
    grant_id: str
    address: str
    port: int
    key: str
    key_seconds: int
    tls: bool = Field(False, description="TLS 1.3 is spoken there, and nothing else")
    tls_name: str = Field("", description="the name that its certificate has")
    parts: list[TicketPart] = Field(
        [],
        description="where the vGPUs are of several nodes: each of these, in the order of the "
        "vGPUs; the fields above are the first one's",
    )


class PlaceInQueue(BaseModel):
    """Where a request stands that waits for a grant."""

    position: int = Field(description="1 is served next")
    waiting: int = Field(description="how many wait")
    line: str = Field(description="what the waiting client tells its user")
    line_seconds: float = Field(description="how often a client tells it")


class FragmentationView(BaseModel):
    """How much of the free memory can still be given in useful pieces.

    A share is between 0 (all that is free can be given in such pieces) and 1 (none of it can).
    """

    free_mib: int = Field(description="what nobody holds, on GPUs that can be granted from now")
    free_cards: int = Field(description="GPUs with nothing on them")
    free_default_slices: int
    largest_vgpu_mib: int = Field(description="the most memory that one vGPU could get now")
    whole_card_loss: float = Field(description="the share that is not on free cards")
    default_slice_loss: float = Field(description="the share that no default slice can use")


class PoolView(BaseModel):
    """The pool in one look."""

    version: str
    nodes: int
    nodes_up: int
    gpus: int
    memory_mib: int
    granted_mib: int
    grants: int
    sessions: int
    waiting: int
    fragmentation: FragmentationView


def node_view(pool: Pool, node: model.Node) -> NodeView:
    """A node as JSON."""
    return NodeView(
        name=node.name,
        state=node.state.value,
        address=node.address,
        port=node.port,
        version=node.version,
        vgpu_count=node.vgpu_count,
        gpus=len(pool.gpus_of(node.name)),
        sessions=pool.live_sessions_on(node.name),
        generation=node.generation,
        labels=dict(node.labels),
        drained=node.drained,
        sharing=node.sharing,
        shares=node.shares.value,
        concurrent=node.concurrent,
        concurrent_problem=node.concurrent_problem,
    )


def gpu_view(pool: Pool, gpu: model.Gpu) -> GpuView:
    """A GPU as JSON."""
    usage, kept = pool.usage(gpu.key), pool.kept(gpu.key)
    attachment = pool.attachments.get(gpu.key)
    return GpuView(
        id=str(gpu.key),
        node=gpu.node,
        uuid=gpu.uuid,
        model=gpu.model,
        state=pool.nodes[gpu.node].state.value,
        software=gpu.software,
        memory_mib=gpu.memory_mib,
        reserved_mib=gpu.reserved_mib,
        context_overhead_mib=gpu.context_overhead_mib,
        granted_mib=usage.memory_mib,
        promisable_mib=pool.promisable_mib(gpu),
        granted_percent=usage.compute_percent,
        vgpus=usage.vgpus,
        concurrent_project=usage.occupancy.project,
        architecture=gpu.architecture,
        numa_node=gpu.numa_node if gpu.numa_node >= 0 else None,
        nvlink_group=gpu.nvlink_group,
        health=_health(gpu),
        fault=gpu.fault,
        held=gpu.held,
        note=gpu.note,
        mode=pool.mode(gpu.key).value,
        kept_mib=kept.memory_mib,
        kept_percent=kept.compute_percent,
        pci_address=gpu.pci_address,
        native_problem=gpu.native_problem,
        held_by=attachment.domain_name if attachment else "",
    )


def _health(gpu: model.Gpu) -> Literal["ok", "flagged", "held", "fault"]:
    if gpu.fault:
        return "fault"
    if gpu.held:
        return "held"
    return "flagged" if gpu.note else "ok"


def _cause(why: End | None) -> str:
    return cause_name(why.cause) if why else ""


def grant_view(grant: model.Grant, sessions: Sequence[model.Session]) -> GrantView:
    """A grant as JSON."""
    return GrantView(
        id=grant.id,
        state=grant.state.value,
        node=grant.node,
        nodes=grant.nodes_in_order,
        vgpus=[
            VgpuView(
                gpu=str(key),
                memory_mib=v.memory_mib,
                compute_percent=v.compute_percent,
                sharing=v.sharing,
            )
            for key, v in grant.placed()
        ],
        priority=grant.priority,
        sessions=[session.id for session in sessions],
        created=time_of(grant.created),
        ended=time_of(grant.ended) if grant.ended is not None else None,
        reason=grant.reason,
        cause=_cause(grant.end or grant.ordered_end),
        generation=grant.generation,
        job=grant.job,
        job_processes=grant.job_processes,
        project=grant.project,
        reservation=grant.reservation,
        mode="reserved" if grant.reservation else "on-demand",
        person=grant.person,
        label=grant.label,
        suspension=suspension_view(grant),
    )


def _container(found: Container) -> ContainerView | None:
    return ContainerView(**asdict(found), name=found.name) if found else None


def session_view(session: model.Session) -> SessionView:
    """A session as JSON."""
    return SessionView(
        id=session.id,
        grant_id=session.grant_id,
        state=session.state.value,
        node=session.node,
        channel=session.channel,
        host=session.host,
        program=session.program,
        client_pid=session.client_pid,
        client_uid=session.client_uid,
        domain_uuid=session.domain_uuid,
        domain_name=session.domain_name,
        started=time_of(session.started),
        ended=time_of(session.ended) if session.ended is not None else None,
        reason=session.reason,
        cause=_cause(session.end),
        chosen=list(session.chosen),
        relay=session.relay,
        disconnected_since=(
            time_of(session.disconnected_since)
            if session.disconnected_since is not None and session.end is None
            else None
        ),
        owner_kind=session.client_kind.value,
        container=_container(session.container),
    )
