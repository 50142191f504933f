# SPDX-License-Identifier: Apache-2.0
"""What the pool is asked for, and what it decides: requests, answers, and orders to servers.

Used by every layer of the controller; plain data, with no more behaviour than model.py's records,
which are what is stored. Memory is in MiB and compute in percent of one GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sluice.controller.pool.grants.suspension import SuspendOrder
from sluice.controller.pool.model import GpuMode, Grant, Session, Vgpu
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.container import NO_CONTAINER, Container
from sluice.resources.ends import End
from sluice.resources.vgpu_request import VgpuRequest


@dataclass(frozen=True, slots=True)
class GrantRequest(VgpuRequest):
    """What a client process asks for, and who it is; zeros take the pool's defaults.

    With `cross_node` its vGPUs are whole in compute.
    """

    request_id: str
    node: str = ""  # the asking server; with local_only also where the GPUs must be
    local_only: bool = False
    channel: str = "shm"
    host: str = ""
    program: str = ""
    client_pid: int = 0
    client_uid: int = 0
    domain_uuid: str = ""
    domain_name: str = ""
    job: str = ""
    job_domain: str = ""
    job_processes: int = 0
    chosen: tuple[int, ...] = ()
    owner_label: str = ""  # what a reservation for a label goes by
    person: str = ""  # who asks, as the host or the token says, for usage
    waited_seconds: float = 0.0  # before this controller heard of it
    max_priority: int | None = None  # that its requester's token allows; None: as its project
    may_preempt: bool | None = None  # that its requester's token says; None: as its project
    reservation: str = ""  # it is not a process: this reservation wants its vGPUs
    relay: bool = False  # what its node can never give it may be another's: its server relays
    container: Container = NO_CONTAINER  # that its client is in
    one_node: bool = False  # its client can have a session on one node only, whatever it asks for

    def is_relayed_from(self, node: str) -> bool:
        """Whether its client is beside another server than that of the node."""
        return bool(self.node) and self.channel != "tcp" and self.node != node

    @property
    def may_span(self) -> bool:
        """Whether its vGPUs may be on several nodes."""
        return self.cross_node and not self.one_node and self.count > 1

    @property
    def contexts(self) -> int:
        """For how many processes' contexts room is wanted on each GPU."""
        return max(1, self.job_processes)


@dataclass(frozen=True, slots=True)
class Granted:
    """The request holds this grant, and this session may open.

    `others` are the same process's on the grant's further nodes.
    """

    grant: Grant
    session: Session
    others: tuple[Session, ...] = ()

    @property
    def sessions(self) -> tuple[Session, ...]:
        """One for each node, in the order of their vGPUs."""
        return (self.session, *self.others)

    @property
    def vgpu_count(self) -> int:
        """Of a process with several nodes: how many it has on all of them."""
        return sum(len(session.chosen) for session in self.sessions) if self.others else 0

    def first_vgpu(self, session: Session) -> int:
        """Of a process with several nodes: its number of the session's first vGPU."""
        before = self.sessions[: self.sessions.index(session)]
        return sum(len(each.chosen) for each in before)


@dataclass(frozen=True, slots=True)
class Refused:
    """The request will not be granted; message is shown to the user."""

    status: CudaStatus
    message: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request is in the queue; position 1 is next."""

    position: int
    line: str


@dataclass(frozen=True, slots=True)
class EndOrder:
    """A server must end what it runs for this grant."""

    node: str
    grant_id: str
    why: End


def end_orders(grant: Grant, why: End) -> list[EndOrder]:
    """To every node that the grant has a session on."""
    return [EndOrder(node, grant.id, why) for node in sorted(grant.nodes)]


@dataclass(frozen=True, slots=True)
class SessionEndOrder:
    """A server must end this session, which has not begun: whoever shows its key is not let in."""

    node: str
    session_id: str
    why: End


def session_end_orders(sessions: Iterable[Session], why: End) -> list[SessionEndOrder]:
    """To the node of each."""
    return [SessionEndOrder(session.node, session.id, why) for session in sessions]


@dataclass(frozen=True, slots=True)
class ResizeOrder:
    """A server must change the limits of what it runs for this grant."""

    node: str
    grant_id: str
    vgpus: tuple[Vgpu, ...]


@dataclass(frozen=True, slots=True)
class Handover:
    """A GPU that nothing of the pool is on: its server lets it go, or has it back (POOLED)."""

    node: str
    uuid: str
    to: GpuMode
    generation: int = 0  # of the switch: the answer repeats it
    pci_address: str = ""  # as its node has reported it

    @property
    def to_native(self) -> bool:
        """Whether it is to be one VM's alone."""
        return self.to is GpuMode.NATIVE

    @property
    def back(self) -> bool:
        """Whether it is the pool's again."""
        return self.to is GpuMode.POOLED


@dataclass(slots=True)
class Decisions:
    """What a step of the pool decided and others must be told."""

    answers: dict[str, Granted | Refused] = field(default_factory=dict)  # by request id
    ends: list[EndOrder] = field(default_factory=list)
    session_ends: list[SessionEndOrder] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # nodes
    handovers: list[Handover] = field(default_factory=list)
    suspends: list[SuspendOrder] = field(default_factory=list)

    def add(self, other: Decisions) -> None:
        """What another step decided, too."""
        self.answers |= other.answers
        self.ends += other.ends
        self.session_ends += other.session_ends
        self.lost += other.lost
        self.handovers += other.handovers
        self.suspends += other.suspends
