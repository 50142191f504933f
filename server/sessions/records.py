# SPDX-License-Identifier: Apache-2.0
"""What a session is: records that sessions.lifecycle keeps and that survive the server's restart.

Used by sessions.lifecycle, regions, sessions.adoption and the listeners. Plain data; what of it
must survive is what to_record() writes beside the worker's socket.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

from sluice.protocol.frames import MAX_RATIO_PERCENT
from sluice.resources.container import NO_CONTAINER, ClientKind, Container
from sluice.resources.ends import End, EndCause
from sluice.resources.vgpu_request import DEFAULT_PROJECT, Mode, Sharing
from sluice.rpc import pool_pb2 as rpc
from sluice.server.claims.terms import ClaimTerms, read_terms
from sluice.server.controller.link import GrantedVgpu, OtherNode
from sluice.server.listeners.peers import PeerGone, open_process
from sluice.server.sessions.logs import SessionLog
from sluice.server.sessions.open_session import OpenSession
from sluice.server.workers.packets import close_descriptor
from sluice.server.workers.worker import Worker

# ends of sessions and of their relays
NOT_STARTED = End(EndCause.NOT_TAKEN, "the session did not start")
WENT_AWAY = End(EndCause.WITHDRAWN, "the client went away")
CLIENT_ENDED = End(EndCause.CLIENT_ENDED, "the client ended")
ENDED_UNSEEN = End(EndCause.CLIENT_ENDED, "the client ended while no server ran")


#: Of a session's relays so many may follow one another as fast as they can, then one in so many
#: seconds: a client can have its relay lose its connection whenever it likes.
AT_ONCE, SECONDS_EACH = 32, 5.0


#: Of clients that come to the data port. A session may go from one to the other, and back.
NETWORK_CHANNELS = ("tcp", "rdma")


@dataclass(slots=True)
class Requester:
    """Who asks for a session, as the host knows it; `pidfd` is owned by whoever holds it."""

    channel: str
    host: str
    program: str
    pid: int = 0
    uid: int = 0
    start_time: int = 0
    pidfd: int = -1
    region_id: str = ""
    slot: int = 0
    domain_uuid: str = ""
    domain_name: str = ""
    user_domain: str = ""  # of a local process (peers.user_domain)
    relay: str = ""  # the node beside it, whose server relays it; empty: none does
    groups: tuple[int, ...] = ()  # of a local process, its own first
    claim: ClaimTerms | None = None  # by whose socket it came
    container: Container = NO_CONTAINER  # of a local process
    own_pid: int = 0  # what the client calls itself where it runs; shown to it, never believed

    def copy(self) -> Requester:
        """The same with a pidfd of its own, which close() closes; raises OSError."""
        return replace(self, pidfd=os.dup(self.pidfd) if self.pidfd >= 0 else -1)

    def close(self) -> None:
        """Closes the pidfd, once."""
        pidfd, self.pidfd = self.pidfd, -1
        close_descriptor(pidfd)

    @property
    def by_network(self) -> bool:
        """Whether its client came to the data port."""
        return self.channel in NETWORK_CHANNELS

    @property
    def shown_channel(self) -> str:
        """As the controller is told: whose relay has the connection, has no channel of its own."""
        return "relay" if self.relay else self.channel

    @property
    def owner(self) -> str:
        """Whose doing it is, for what is bounded by that: a guest, a node, an address or a user."""
        if self.domain_name:
            return f"domain {self.domain_name}"
        if self.claim:
            return f"claim {self.claim.uid}"
        if self.by_network:
            return f"node {self.relay}" if self.relay else self.host
        return owner_of(self.container, self.uid)

    @property
    def owner_kind(self) -> ClientKind:
        """What it is that this host knows it by."""
        if self.domain_uuid or self.domain_name:
            return ClientKind.VM
        if self.container:
            return ClientKind.CONTAINER
        return ClientKind.ADDRESS if self.by_network and not self.relay else ClientKind.USER

    @property
    def owner_name(self) -> str:
        """The VM's name, the container's id, the user's number or the address."""
        if self.container and not self.domain_name:
            return self.container.id
        return self.domain_name or (self.host if self.by_network else str(self.uid))

    def report(self) -> dict[str, Any]:
        """The fields of the messages that say whose a session is."""
        return {
            "channel": self.shown_channel,
            "host": self.host,
            "program": self.program,
            "client_pid": self.pid,
            "client_uid": self.uid,
            "domain_uuid": self.domain_uuid,
            "domain_name": self.domain_name,
            "container": rpc.Container(**asdict(self.container)) if self.container else None,
        }

    def describe(self) -> str:
        """In words, for logs."""
        if self.channel == "ivshmem":
            return f"{self.program or 'a program'} in domain {self.domain_name} slot {self.slot}"
        if self.channel == "vsock":
            return f"{self.program or 'a program'} in domain {self.domain_name} by vsock"
        if self.by_network:
            by = f", relayed by node {self.relay}" if self.relay else ""
            return f"{self.program or 'a program'} at {self.host}{by}"
        of = f" of claim {self.claim.name}" if self.claim else ""
        inside = f" in {self.container.name}" if self.container else ""
        return f"{self.program or 'a program'} pid {self.pid} uid {self.uid}{of}{inside}"


@dataclass(frozen=True, slots=True)
class JobPart:
    """A session's part in a job: its name, whose it is, and which of its vGPUs the session has.

    `domain` is who the host says presents the token; `chosen` names none where it has all vGPUs.
    """

    job: str
    domain: str
    processes: int = 0
    chosen: tuple[int, ...] = ()

    def report(self) -> dict[str, Any]:
        """The fields of the messages that name a job."""
        return {
            "job": self.job,
            "job_domain": self.domain,
            "job_processes": self.processes,
            "chosen": self.chosen,
        }


def trust_domain(node: str, requester: Requester) -> str:
    """Whose processes may belong to one job with this one: its VM's, or its user's on this host."""
    if requester.domain_uuid:
        return f"vm {requester.domain_uuid}"
    if requester.claim:
        return f"claim {node} {requester.claim.uid}"
    if requester.user_domain:
        return f"user {node} {requester.user_domain}{_in_container(requester)}"
    return f"process {node} {requester.pid} {requester.start_time}"


def owner_of(container: Container, uid: int) -> str:
    """Whose a local process is, for what is bounded by that.

    A rootless container is its user's doing, one of root's engine its own.
    """
    if container and not container.owner_uid:
        return f"container {container.id}"
    return f"uid {container.owner_uid or uid}"


def _in_container(requester: Requester) -> str:
    # engines can leave a container the host's own namespaces
    return f" {requester.container.key}" if requester.container else ""


@dataclass(slots=True)
class Pace:
    """How fast things may follow one another: `at_once` of them, then one in `seconds` each."""

    at_once: int
    seconds: float
    _full_at: float = 0.0  # monotonic: when all of them may be had at once again

    def wait_seconds(self, now: float) -> float:
        """Takes one; how long it has to wait."""
        self._full_at = max(self._full_at, now) + self.seconds
        return max(0.0, self._full_at - self.at_once * self.seconds - now)


@dataclass(slots=True)
class RelayedWay:
    """What a relayed session needs for another relay, where it outlives one.

    `region` is the descriptor of the client's, -1: whoever has the slot has not shown it yet.
    """

    address: str
    port: int
    tls: bool
    grace_seconds: int
    region_bytes: int
    slot: int
    slots: int
    region_id: str
    relays: int = 0  # that followed the first
    region: int = -1
    pace: Pace = field(default_factory=lambda: Pace(AT_ONCE, SECONDS_EACH))

    def to_record(self) -> dict[str, Any]:
        """What a later server needs of it."""
        own = ("region", "pace")
        return {name: value for name, value in asdict(self).items() if name not in own}


@dataclass(slots=True)
class StreamWay:
    """The same, where its client has a connection of its own and comes back by another."""

    address: str
    port: int
    tls: bool
    grace_seconds: int
    closed_seconds: int  # where the client's connection was closed, at most
    key: str = field(repr=False)  # hexadecimal: this host's for its node, as resume_key is for here
    relays: int = 0
    pace: Pace = field(default_factory=lambda: Pace(AT_ONCE, SECONDS_EACH))

    def to_record(self) -> dict[str, Any]:
        """What a later server needs of it."""
        return {name: value for name, value in asdict(self).items() if name != "pace"}


@dataclass(slots=True)
class Session:
    """A session that runs, or is about to; `vgpus` are its grant's."""

    id: str
    grant_id: str
    request_id: str
    vgpus: tuple[GrantedVgpu, ...]
    priority: int
    requester: Requester
    worker: Worker
    log: SessionLog
    started: float = field(default_factory=time.time)
    opening: bool = True
    part: JobPart | None = None
    ledger_slot: int = -1  # in its grant's ledger
    project: str = ""  # on whose account it goes
    relayed_to: str = ""  # the node that its worker is on, when `worker` is a relay to it
    resume_key: str = field(default="", repr=False)  # a secret: listeners.resumption
    #: Where its client has vGPUs of other nodes, too: which is its first here, and those nodes.
    first_vgpu: int = 0
    others: tuple[OtherNode, ...] = ()
    #: And how many vGPUs its grant has in all, of which `vgpus` are these; 0: `vgpus` are all.
    grant_vgpus: int = 0
    grant_places: tuple[int, ...] = ()
    way: RelayedWay | StreamWay | None = None  # of a relayed one that outlives its relay
    why: End | None = None  # it is to end, whichever process serves it just now
    #: Since when it has no connection to its client, or its relay none to its node, Unix time; 0:
    #: it has.
    disconnected_since: float = 0.0
    replaced: bool = False  # its process has closed the connection it opened the session on
    context_away: bool = False  # its context may have left its GPUs (sessions.contexts)
    #: The GPU that the driver was asked to restore its context on, in the place of its own, and
    #: nobody knows yet whether it has; "": none.
    moving_to: str = ""
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def places(self) -> tuple[int, ...]:
        """Which of its grant's vGPUs it has."""
        chosen = self.part.chosen if self.part else ()
        return chosen or tuple(range(len(self.vgpus)))

    def moved(self, gpu_uuid: str) -> None:
        """All of its vGPUs are on this GPU from now on."""
        self.vgpus = tuple(replace(vgpu, gpu_uuid=gpu_uuid) for vgpu in self.vgpus)
        self.moving_to = ""

    def end(self, why: End) -> None:
        """Ends it, whichever process serves it just now; its client gets a sticky CUDA error."""
        self.why = self.why or why
        self.worker.end(why)

    @property
    def tenant(self) -> str:
        """With whose other sessions it may share what outlives one: a project, else who asked."""
        if self.project not in ("", DEFAULT_PROJECT):
            return f"project {self.project}"
        return self.requester.owner

    def sharing_domains(self) -> frozenset[str]:
        """Whom it trusts: sessions of its grant, of its VM, of its user in the same namespaces."""
        domains = {f"grant {self.grant_id}"}
        if self.requester.domain_uuid:
            domains.add(f"vm {self.requester.domain_uuid}")
        elif self.requester.user_domain:
            domains.add(f"user {self.requester.user_domain}{_in_container(self.requester)}")
        return frozenset(domains)

    def report(self) -> rpc.SessionReport:
        """As the controller is told."""
        return rpc.SessionReport(
            session_id=self.id,
            grant_id=self.grant_id,
            request_id=self.request_id,
            vgpus=[vgpu.message for vgpu in self.vgpus],
            relay=self.requester.relay,
            started=self.started,
            priority=self.priority,
            opening=self.opening,
            project=self.project,
            disconnected_since=self.disconnected_since,
            grant_vgpus=self.grant_vgpus,
            grant_places=self.grant_places,
            **self.requester.report(),
            **(self.part.report() if self.part else {}),
        )

    def to_record(self) -> dict[str, Any]:
        """What a later server needs to adopt it."""
        requester = self.requester
        return {
            "id": self.id,
            "grant_id": self.grant_id,
            "request_id": self.request_id,
            "vgpus": [astuple(vgpu) for vgpu in self.vgpus],
            "priority": self.priority,
            "started": self.started,
            "opening": self.opening,
            "part": asdict(self.part) if self.part else None,
            "ledger_slot": self.ledger_slot,
            "project": self.project,
            "asker": {
                "channel": requester.channel,
                "host": requester.host,
                "program": requester.program,
                "pid": requester.pid,
                "uid": requester.uid,
                "start_time": requester.start_time,
                "region_id": requester.region_id,
                "slot": requester.slot,
                "domain_uuid": requester.domain_uuid,
                "domain_name": requester.domain_name,
                "user_domain": requester.user_domain,
                "relay": requester.relay,
                **({"claim": requester.claim.to_record()} if requester.claim else {}),
                "container": asdict(requester.container),
                "own_pid": requester.own_pid,
            },
            "relayed_to": self.relayed_to,
            "resume_key": self.resume_key,
            "first_vgpu": self.first_vgpu,
            "others": [asdict(other) for other in self.others],
            "grant_vgpus": self.grant_vgpus,
            "grant_places": self.grant_places,
            "way": self.way.to_record() if self.way else None,
            "context_away": self.context_away,
            "moving_to": self.moving_to,
        }


def run_at_once(vgpus: Iterable[GrantedVgpu]) -> bool:
    """Whether a session with these runs at once with others of its project (MPS)."""
    return any(vgpu.sharing is Sharing.CONCURRENT for vgpu in vgpus)


def part_of_gpu(vgpu: GrantedVgpu) -> float:
    """What of its GPU a vGPU has while its work runs, from 0 to 1: in turns it has all."""
    return vgpu.compute_percent / 100 if vgpu.sharing is Sharing.CONCURRENT else 1.0


def largest_share(vgpus: Iterable[GrantedVgpu]) -> int:
    """The most that these have of one GPU, in percent: a session's share is one number."""
    of_gpus: Counter[str] = Counter()
    for vgpu in vgpus:
        of_gpus[vgpu.gpu_uuid] += vgpu.compute_percent
    return max(1, min(MAX_RATIO_PERCENT, max(of_gpus.values())))


def session_from_record(record: dict[str, Any], worker: Worker, log: SessionLog) -> Session:
    """Rebuilds a session of an earlier server; its client's pidfd is -1 if the client is gone."""
    asker = dict(record["asker"])
    asker["container"] = Container(**asker.get("container", {"id": ""}))
    asker["claim"] = read_terms(asker["claim"]) if asker.get("claim") else None
    requester = Requester(**asker)
    if requester.pid and requester.channel == "shm":
        try:
            requester.pidfd = open_process(requester.pid, requester.start_time)
        except PeerGone:
            requester.pidfd = -1
    return Session(
        id=record["id"],
        grant_id=record["grant_id"],
        request_id=record["request_id"],
        vgpus=tuple(map(_vgpu_from_record, record["vgpus"])),
        priority=record["priority"],
        requester=requester,
        worker=worker,
        log=log,
        started=record["started"],
        opening=False,
        part=_part_from_record(record.get("part")),
        ledger_slot=record.get("ledger_slot", -1),
        project=record.get("project", ""),
        relayed_to=record.get("relayed_to", ""),
        resume_key=record.get("resume_key", ""),
        first_vgpu=record.get("first_vgpu", 0),
        others=tuple(OtherNode(**other) for other in record.get("others", ())),
        grant_vgpus=record.get("grant_vgpus", 0),
        grant_places=tuple(record.get("grant_places", ())),
        way=_way_from_record(record.get("way")),
        context_away=record.get("context_away", False),
        moving_to=record.get("moving_to", ""),
    )


def _way_from_record(way: dict[str, Any] | None) -> RelayedWay | StreamWay | None:
    if not way:
        return None
    return StreamWay(**way) if "key" in way else RelayedWay(**way)


def _part_from_record(part: dict[str, Any] | None) -> JobPart | None:
    return JobPart(**{**part, "chosen": tuple(part["chosen"])}) if part else None


def _vgpu_from_record(stored: Sequence[Any]) -> GrantedVgpu:
    uuid, memory, compute, *later = stored
    return GrantedVgpu(uuid, memory, compute, *map(Sharing, later[:1]))


def grant_request(
    node: str,
    asked: OpenSession,
    requester: Requester,
    part: JobPart | None = None,
    *,
    project: str = "",
    owner_label: str = "",
    person: str = "",
    relay: bool = False,
) -> rpc.GrantRequest:
    """What the controller is asked for a client of this host."""
    claim = requester.claim
    return rpc.GrantRequest(
        node=node,
        vgpu_count=asked.request.count or (claim.count if claim else 1),
        memory_mib=asked.request.memory_mib,
        compute_percent=asked.request.compute_percent,
        priority=claim.priority if claim else asked.request.priority,
        wait_seconds=asked.request.wait_seconds,
        local_only=True,
        cross_node=asked.request.cross_node,
        same_gpu_allowed=asked.request.same_gpu,
        gpu_model=asked.request.gpu_model,
        gpu_architecture=asked.request.gpu_architecture,
        labels=[rpc.Label(name=name, value=value) for name, value in asked.request.labels],
        preempt=asked.request.preempt,
        mode=Mode.RESERVED if claim else asked.request.mode,
        sharing=asked.request.sharing.said,
        project=project,
        owner_label=owner_label,
        person=person,
        relay=relay,
        **requester.report(),
        **(part.report() if part else {}),
    )
