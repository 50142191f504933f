# SPDX-License-Identifier: Apache-2.0
"""The records of the pool: nodes, GPUs, grants, sessions, events.

Used by every layer of the controller; plain data without behaviour beyond trivial sums. Memory is
in MiB and compute in percent of one GPU, in names too. Times called `created`, `started`, `ended`
are seconds since the epoch; `last_seen` and `deadline` are monotonic and are never stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Protocol, TypeVar, cast

from sluice.controller.pool.gpus.attachment import Attachment, AttachmentRemoved
from sluice.controller.pool.grants.suspension import (
    SuspendedContexts,
    SuspensionState,
    is_undecided,
)
from sluice.controller.pool.states import GpuMode as GpuMode
from sluice.controller.pool.states import GrantState as GrantState
from sluice.controller.pool.states import NodeState as NodeState
from sluice.controller.pool.states import OwnerKind as OwnerKind
from sluice.controller.pool.states import ReservationState as ReservationState
from sluice.controller.pool.states import SessionState as SessionState
from sluice.controller.pool.states import ShareKeeping as ShareKeeping
from sluice.controller.pool.states import SwitchStep as SwitchStep
from sluice.controller.pool.usage_records import UsageRecord, UsageShare
from sluice.resources.container import ClientKind, Container
from sluice.resources.ends import End, EndCause
from sluice.resources.vgpu_request import DEFAULT_PROJECT as DEFAULT_PROJECT
from sluice.resources.vgpu_request import Mode as Mode
from sluice.resources.vgpu_request import Sharing as Sharing


class Clock(Protocol):
    """The time, injected so that tests can move it."""

    def wall(self) -> float:
        """Seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump."""
        ...


IdFactory = Callable[[], str]

NODE_LOST = "node lost"  # the reason of a grant that is `lost`


R = TypeVar("R")


def as_it_is(record: R) -> R:
    """A copy of one of the records below: what is stored of it stays as it is now.

    What dataclasses.replace does, at a fifth of its price: it is paid for every grant four times.
    """
    kind = type(record)
    values = _VALUES.get(kind)
    if values is None:
        names = [f.name for f in fields(cast(Any, record))]
        values = _VALUES[kind] = attrgetter(*names)
    return kind(*values(record))


_VALUES: dict[type, Callable[[Any], tuple[Any, ...]]] = {}


@dataclass(frozen=True, slots=True)
class GpuKey:
    """A GPU's place in the pool: UUIDs of software GPUs are unique on one node only."""

    node: str
    uuid: str

    def __str__(self) -> str:
        return f"{self.node}:{self.uuid}"


Labels = tuple[tuple[str, str], ...]  # names and values, sorted


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical (or software) GPU as its node reports it."""

    node: str
    uuid: str
    model: str
    memory_mib: int
    software: bool = False
    context_overhead_mib: int = 0
    reserved_mib: int = 0
    architecture: str = ""  # such as sm_90; empty: its node did not say
    numa_node: int = -1  # -1: its node did not say
    nvlink_group: str = ""  # GPUs of one group reach each other by NVLink; empty: it has none
    fault: str = ""  # why nothing may be placed on it; empty: it is healthy
    pci_address: str = ""  # on its node, such as 0000:65:00.0; empty: its node did not say
    native_problem: str = ""  # why it cannot be given whole to a VM; empty: it can
    held: str = ""  # why nothing new is placed on it for now; what runs goes on
    note: str = ""  # what an operator should know; it is given out all the same
    memory_oversubscription: float = 0.0  # how often it may be promised; 0: as its node says

    @property
    def key(self) -> GpuKey:
        """Its place in the pool."""
        return GpuKey(self.node, self.uuid)

    def grantable_beside(self, contexts: int) -> int:
        """The most that one vGPU can have, with so many processes' contexts and nothing else."""
        return max(0, self.memory_mib - self.reserved_mib - contexts * self.context_overhead_mib)


@dataclass(frozen=True, slots=True)
class GpuRemoved:
    """Says to the store that a node no longer has a GPU."""

    node: str
    uuid: str


@dataclass(frozen=True, slots=True)
class NodeSharing:
    """How vGPUs of a node's GPUs can be shared."""

    default: Sharing = Sharing.AUTO  # where request and pool say nothing
    pool: Sharing = Sharing.AUTO  # where requests say nothing
    concurrent: bool = False  # through MPS
    shares: ShareKeeping = ShareKeeping.KEPT


IN_TURNS = NodeSharing()


@dataclass(slots=True)
class Node:
    """A host that runs sluice-server."""

    name: str
    address: str
    port: int
    version: str
    vgpu_count: int
    state: NodeState = NodeState.AWAY
    generation: int = 0
    last_seen: float = 0.0
    labels: Labels = ()
    drained: bool = False  # by the operator: it takes nothing new
    data_tls: bool = False  # its TCP clients have to speak TLS
    sharing: Sharing = Sharing.AUTO  # where request and pool say nothing
    concurrent: bool = False  # sessions of a project can run at once, through MPS
    concurrent_problem: str = ""  # why they cannot
    shares: ShareKeeping = ShareKeeping.KEPT
    takes_parts: bool = False  # its server can have a part of a grant's vGPUs
    swap_mib: int = 0  # host memory for suspended sessions; 0: it suspends nothing
    #: how often each of its GPUs' memory may be promised; 0: as the pool says
    memory_oversubscription: float = 0.0
    moves_sessions: bool = False  # a suspended session may come back on another of its GPUs

    def shared_in(self, pool: Sharing) -> NodeSharing:
        """How vGPUs of its GPUs can be shared, in a pool that says so much itself."""
        return NodeSharing(self.sharing, pool, self.concurrent, self.shares)


@dataclass(frozen=True, slots=True)
class Vgpu:
    """A slice of one GPU; overhead_mib is its contexts' memory, charged besides memory_mib."""

    gpu_uuid: str
    memory_mib: int
    compute_percent: int
    overhead_mib: int = 0
    node: str = ""  # empty: the grant's
    sharing: Sharing = Sharing.AUTO  # AUTO: as its server says

    @property
    def is_unknown(self) -> bool:
        """Whether it keeps the place of one whose node has not told of it (UNKNOWN_VGPU)."""
        return self.node == UNKNOWN_NODE


#: No node's name.
UNKNOWN_NODE = "?"
#: Of a grant of several nodes that nobody remembered, and of which not all nodes have told of their
#: part yet: it keeps the others' numbers. Nothing is booked for it.
UNKNOWN_VGPU = Vgpu("unknown", 0, 0, node=UNKNOWN_NODE)


def known(vgpus: Iterable[Vgpu]) -> tuple[Vgpu, ...]:
    """Those that can be used, and so are on somebody's account."""
    return tuple(vgpu for vgpu in vgpus if not vgpu.is_unknown)


@dataclass(slots=True)
class Grant:
    """What a job holds: vGPUs of `node`, where its sessions are, and perhaps of others."""

    id: str
    request_id: str
    node: str
    vgpus: tuple[Vgpu, ...]
    priority: int
    created: float
    state: GrantState = GrantState.LIVE
    generation: int = 1
    ended: float | None = None
    reason: str = ""  # why it ended, in words
    job: str = ""  # its name, which is no secret; empty: one process's own
    job_domain: str = ""  # who may join it
    job_processes: int = 0  # whose contexts room is left for
    project: str = ""  # whose it is; empty: nobody's in particular
    reservation: str = ""  # whose room it uses; empty: the pool's
    ending: str = ""  # why its server is told to end it, while it lives
    cause: EndCause = EndCause.UNKNOWN  # why it ended
    ending_cause: EndCause = EndCause.UNKNOWN  # why it is to end
    lost: bool = False  # its node was silent for too long; it lives again if that node names it
    person: str = ""  # who began it, as its host or token says; empty: nobody in particular
    label: str = ""  # what reservations for a label go by
    suspension: SuspensionState = SuspensionState.NONE
    running_vgpus: tuple[Vgpu, ...] = ()  # of a suspended one: what it has when it runs
    suspended_since: float | None = None  # by the wall clock
    resumes: bool = False  # it is to come back as soon as there is room
    suspension_note: str = ""  # why it was suspended, or why it could not be, or not be resumed
    with_guest: bool = False  # it is suspended as its VM is paused, and goes on with it
    moving_to: str = ""  # the GPU of its node that it is to go on on; "": any that will do
    contexts: SuspendedContexts | None = None  # of a suspended one, where its node has said so

    @property
    def end(self) -> End | None:
        """Why it is over; None while it lives."""
        return End(self.cause, self.reason) if self.state is GrantState.ENDED else None

    @property
    def ordered_end(self) -> End | None:
        """Why it was told to end, also when it has; None where nobody said that it should."""
        return End(self.ending_cause, self.ending) if self.ending else None

    @property
    def is_undecided(self) -> bool:
        """Whether it is out and to move, and booked as it runs until it is known that it can.

        Where it cannot, it goes on where it was.
        """
        runs = any(vgpu.compute_percent for vgpu in self.vgpus)
        return runs and is_undecided(self.suspension, self.moving_to, self.contexts)

    def placed(self) -> Iterator[tuple[GpuKey, Vgpu]]:
        """Each vGPU with its GPU's place in the pool."""
        for vgpu in self.vgpus:
            yield GpuKey(vgpu.node or self.node, vgpu.gpu_uuid), vgpu

    @property
    def known_vgpus(self) -> tuple[Vgpu, ...]:
        """Without those of nodes that have not told of them."""
        return known(self.vgpus)

    @property
    def nodes(self) -> set[str]:
        """Every known node that it has a vGPU on; its own one is always among them."""
        named = (vgpu.node for vgpu in self.vgpus if vgpu.node and not vgpu.is_unknown)
        return {self.node, *named}

    @property
    def nodes_in_order(self) -> list[str]:
        """The same as its vGPUs come, and so its sessions."""
        known = (key.node for key, vgpu in self.placed() if not vgpu.is_unknown)
        return list(dict.fromkeys(known))

    @property
    def spans_nodes(self) -> bool:
        """Whether it has vGPUs of several nodes, and a session on each."""
        return len(self.nodes) > 1 or bool(self.unknown_places)

    @property
    def unknown_places(self) -> tuple[int, ...]:
        """Which of its vGPUs are of nodes that have not told of them yet."""
        return tuple(at for at, vgpu in enumerate(self.vgpus) if vgpu.is_unknown)

    @property
    def nodes_in_words(self) -> str:
        """How many nodes it is on, as far as that is known."""
        return "several nodes" if self.unknown_places else f"{len(self.nodes)} nodes"

    def places_on(self, node: str) -> tuple[int, ...]:
        """Which of its vGPUs a node has."""
        return tuple(at for at, (key, _) in enumerate(self.placed()) if key.node == node)


@dataclass(slots=True)
class Session:
    """One client process that uses a grant; on each of its nodes, where it spans several."""

    id: str
    grant_id: str
    node: str
    channel: str
    host: str
    program: str
    client_pid: int
    client_uid: int
    domain_uuid: str
    domain_name: str
    started: float
    state: SessionState = SessionState.OPENING
    ended: float | None = None
    reason: str = ""
    cause: EndCause = EndCause.UNKNOWN  # why it ended
    request_id: str = ""
    chosen: tuple[int, ...] = ()  # of the grant's vGPUs; none named: all
    relay: str = ""  # the node beside the client whose server relays it; empty: none does
    #: Its client has had no connection to it; None: it has one.
    disconnected_since: float | None = None
    #: The container that its client is in; empty: in none.
    container_id: str = ""
    container_engine: str = ""
    container_pod: str = ""
    container_owner_uid: int = 0
    container_device: str = ""

    @property
    def container(self) -> Container:
        """The container that its client is in."""
        return Container(
            self.container_id,
            self.container_engine,
            self.container_pod,
            self.container_owner_uid,
            self.container_device,
        )

    @property
    def client_kind(self) -> ClientKind:
        """What it is that its host knows its client by."""
        if self.domain_uuid or self.domain_name:
            return ClientKind.VM
        if self.container_id:
            return ClientKind.CONTAINER
        return ClientKind.USER if self.channel in ("shm", "relay") else ClientKind.ADDRESS

    @property
    def end(self) -> End | None:
        """Why it is over; None while it lives."""
        return End(self.cause, self.reason) if self.state is SessionState.ENDED else None


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the event log."""

    time: float
    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """What the controller's APIs keep and the pool does not know: tokens, answers given."""

    collection: str
    key: str
    value: str  # JSON


@dataclass(frozen=True, slots=True)
class DocumentRemoved:
    """Says to the store that a document is gone."""

    collection: str
    key: str


@dataclass(frozen=True, slots=True)
class Slot:
    """A vGPU that a reservation holds, with room for one context."""

    node: str
    gpu_uuid: str
    memory_mib: int
    compute_percent: int
    overhead_mib: int = 0
    sharing: Sharing = Sharing.AUTO  # of what draws on it; AUTO: turns, as its server says

    @property
    def key(self) -> GpuKey:
        """Its GPU."""
        return GpuKey(self.node, self.gpu_uuid)


@dataclass(slots=True)
class Reservation:
    """Room that is one owner's whether it is used or not: `count` vGPUs of the same size."""

    id: str
    owner_kind: OwnerKind
    owner: str
    project: str
    count: int
    memory_mib: int  # of each; 0: the pool's default
    compute_percent: int  # of each; 0: the pool's default
    priority: int
    node: str  # where it must be; empty: anywhere
    created: float
    state: ReservationState = ReservationState.WAITING
    slots: tuple[Slot, ...] = ()
    generation: int = 1
    ended: float | None = None
    reason: str = ""
    origin: str = ""  # the adapter that keeps it, such as vsphere.dc1; empty: people do
    sharing: Sharing = Sharing.AUTO  # AUTO: as pool and server say
    within: str = ""  # the reservation that it is a part of, and whose room it has; empty: none


@dataclass(slots=True)
class GpuSwitch:
    """Which of the two pools a GPU is in, or is on its way to."""

    node: str
    uuid: str
    mode: GpuMode
    target: GpuMode  # where it is to end up
    preempt: bool
    reason: str
    since: float
    generation: int = 1
    step: SwitchStep = SwitchStep.NONE

    @property
    def key(self) -> GpuKey:
        """The GPU's place in the pool."""
        return GpuKey(self.node, self.uuid)


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that a project may hold at a time; 0 is no limit."""

    project: str
    vgpus: int = 0
    memory_mib: int = 0
    compute_percent: int = 0
    may_preempt: bool = False
    generation: int = 1
    max_priority: int | None = None  # of its requests; None: no limit


@dataclass(frozen=True, slots=True)
class QuotaRemoved:
    """Says to the store that a project has no quota any more."""

    project: str


Change = (
    Node
    | Gpu
    | GpuRemoved
    | Grant
    | Session
    | Event
    | Document
    | DocumentRemoved
    | Reservation
    | GpuSwitch
    | Attachment
    | AttachmentRemoved
    | Quota
    | QuotaRemoved
    | UsageRecord
    | UsageShare
)
