# SPDX-License-Identifier: Apache-2.0
"""The pool: one object that knows every node, GPU, grant, session and waiting request, and decides.

Called by controller.grant_service, one step at a time, never from two tasks at once. It does no
I/O: time and ids are injected, what must be stored is collected as changes (take_changes), and what
others must be told is returned. It promises that live grants never exceed a GPU, except where a
server reports work that really runs and that the ledger had lost: that is adopted as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sluice.controller.pool.admission import refusals, rights
from sluice.controller.pool.decisions import Decisions, EndOrder, GrantRequest, Refused, Waiting
from sluice.controller.pool.gpus.allocations import Usage
from sluice.controller.pool.gpus.attachment import Attachment
from sluice.controller.pool.gpus.attachments import Attachments
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.gpus.fragmentation import Fragmentation
from sluice.controller.pool.gpus.modes import GpuModes
from sluice.controller.pool.grants.adoption import Adoption, ReportedSession
from sluice.controller.pool.grants.jobs import JobKey, Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.model import (
    NODE_LOST,
    Change,
    Clock,
    Document,
    Gpu,
    GpuKey,
    GpuMode,
    GpuSwitch,
    Grant,
    GrantState,
    IdFactory,
    Mode,
    Node,
    NodeState,
    OwnerKind,
    Quota,
    Reservation,
    ReservationState,
    Session,
    SessionState,
    UsageRecord,
    as_it_is,
)
from sluice.controller.pool.operations import Operations
from sluice.controller.pool.placement import feasibility
from sluice.controller.pool.placement.policies import BinPack, PlacementPolicy
from sluice.controller.pool.projects.quotas import Held
from sluice.controller.pool.queue.scheduling import Ending, Scheduler
from sluice.controller.pool.reservations.machines import Machines
from sluice.controller.pool.reservations.reserving import request_of
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the store remembered: the pool's state before a restart."""

    nodes: Sequence[Node] = ()
    gpus: Sequence[Gpu] = ()
    grants: Sequence[Grant] = ()
    sessions: Sequence[Session] = ()
    # not the pool's; read with the rest
    documents: Sequence[Document] = field(default_factory=list)
    reservations: Sequence[Reservation] = field(default_factory=list)
    switches: Sequence[GpuSwitch] = field(default_factory=list)
    quotas: Sequence[Quota] = field(default_factory=list)
    usage: Sequence[UsageRecord] = field(default_factory=list)  # the newest of each project
    attachments: Sequence[Attachment] = field(default_factory=list)


__all__ = ["NODE_LOST", "Pool", "ReportedSession", "Snapshot"]


class Pool:
    """All decisions of the controller."""

    def __init__(
        self,
        clock: Clock,
        new_id: IdFactory,
        *,
        vgpu_count: int = 0,
        node_timeout_seconds: float = 30.0,
        ended_kept: int = 1000,
        job_sessions: int = 64,
        job_linger_seconds: float = 5.0,
        ageing_seconds: float = 600.0,
        over_quota_waits: bool = True,
        opening_seconds: float = 300.0,
        hands_over: bool = False,
        policy: PlacementPolicy | None = None,
        cross_node: bool = False,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._clock = clock
        self._new_id = new_id
        self._node_timeout = node_timeout_seconds
        self._made = clock.monotonic()
        self._opening_seconds = opening_seconds
        self._jobs = Jobs(clock, job_linger_seconds)
        gpus: dict[GpuKey, Gpu] = {}
        self._ledger = GrantLedger(clock, new_id, self._jobs, gpus, ended_kept)
        self._fleet = Fleet(clock, self._ledger, gpus, vgpu_count)
        self._scheduler = Scheduler(
            clock,
            new_id,
            self._ledger,
            self._fleet,
            self._jobs,
            policy or BinPack(),
            ageing_seconds=ageing_seconds,
            job_sessions=job_sessions,
            over_quota_waits=over_quota_waits,
            across=cross_node,
        )
        # whether grants may be on several nodes: the data path opens sessions on one node only
        self._cross_node = cross_node
        self.capacity = self._fleet.capacity
        attachments = Attachments(clock, self._ledger, self._fleet)
        self.attachments = attachments.records
        self._pools = GpuModes(
            clock,
            self._ledger,
            self._fleet,
            Ending(self._ledger),
            self._held_by,
            hands_over=hands_over,
        )
        self.operations = Operations(
            self._ledger,
            self._fleet,
            self._jobs,
            self._scheduler,
            self._pools,
            attachments,
            self._moved_on,
            lambda reserver: Machines(clock, new_id, self._ledger, reserver),
        )
        self._adoption = Adoption(
            self._ledger, self._fleet, self._jobs, self.operations.is_resizing
        )
        self.nodes = self._fleet.nodes
        self.nodes_in_order = self._fleet.nodes_in_order
        self.gpus_in_order = self._fleet.gpus_in_order
        self.grants_in_order = self._ledger.grants_in_order
        self.sessions_in_order = self._ledger.sessions_in_order
        self.gpus = gpus
        self.switches = self._fleet.switches
        self.queue = self._scheduler.queue
        self.grants = self._ledger.grants
        self.sessions = self._ledger.sessions
        self.reservations = self._ledger.reservations.records
        self.quotas = self._ledger.quotas
        if snapshot:
            self._restore(snapshot)

    # what exists

    @property
    def paused(self) -> str:
        """Why nothing is granted for now; what waits goes on waiting."""
        return self._scheduler.paused

    @paused.setter
    def paused(self, why: str) -> None:
        self._scheduler.paused = why

    def usage(self, key: GpuKey) -> Usage:
        """What live grants have of a GPU."""
        booked, kept = self._ledger.allocations.usage(key), self.kept(key)
        vgpus = sum(
            1
            for grant in self._ledger.live_on_gpu(key)
            for place, _ in grant.placed()
            if place == key
        )
        return Usage(
            booked.memory_mib - kept.memory_mib,
            booked.compute_percent - kept.compute_percent,
            vgpus,
        )

    def gpus_of(self, node: str) -> list[Gpu]:
        """A node's GPUs."""
        return self._fleet.of_node(node)

    def live_sessions_on(self, node: str) -> int:
        """How many sessions live on a node."""
        return self._ledger.live_sessions_on(node)

    def grants_live_on(self, node: str) -> list[Grant]:
        """The live grants that have a vGPU on a node."""
        return self._ledger.live_on(node)

    def ended_grants(self) -> list[Grant]:
        """The ended grants that are remembered."""
        return self._ledger.ended()

    def kept(self, key: GpuKey) -> Usage:
        """What is kept free of it: for reservations' owners, and for requests that preempt."""
        undrawn = self._ledger.reservations.undrawn_on(key)
        claimed_mib, claimed_percent = self._scheduler.claimed_on(key)
        return Usage(undrawn.memory_mib + claimed_mib, undrawn.compute_percent + claimed_percent, 0)

    def mode(self, key: GpuKey) -> GpuMode:
        """Which pool a GPU is in."""
        return self._fleet.mode(key)

    def reservations_of(self, kind: OwnerKind, name: str) -> list[Reservation]:
        """An owner's reservations that have not ended, oldest first."""
        return self._ledger.reservations.owned(kind, name)

    def grants_of_reservation(self, reservation: Reservation) -> list[Grant]:
        """The live grants that draw on a reservation."""
        found = {
            grant.id: grant
            for key in {slot.key for slot in reservation.slots}
            for grant in self._ledger.live_on_gpu(key)
            if grant.reservation == reservation.id
        }
        return list(found.values())

    def fragmentation(self) -> Fragmentation:
        """How much of the free memory can still be given in useful pieces."""
        return self.capacity.fragments.read()

    def sessions_of(self, grant_id: str) -> list[Session]:
        """Every session of a grant, ended ones too."""
        return self._ledger.sessions_of(grant_id)

    def knows_request(self, request_id: str) -> bool:
        """Whether it waits, or holds a session that lives."""
        return request_id in self.queue or self._ledger.held_by(request_id) is not None

    def node_of_request(self, request_id: str) -> str:
        """The node that asked for what a request was given; empty if it was given nothing."""
        held = self._ledger.held_by(request_id)
        return (held.session.relay or held.grant.node) if held else ""

    def used_up_to_now(self) -> list[UsageRecord]:
        """What the store does not have yet: every project's newest hours, up to now."""
        return self._ledger.usage.up_to_now()

    def take_changes(self) -> list[Change]:
        """Hands over what must be stored since the last call, in order."""
        changes, self._ledger.changes = self._ledger.changes, []
        return changes

    # nodes

    def register(
        self,
        node: Node,
        gpus: Iterable[Gpu],
        sessions: Iterable[ReportedSession],
        pending_requests: Iterable[str] = (),
        holds: Iterable[JobKey] = (),
        let_go: Collection[str] = (),
    ) -> Decisions:
        """Takes in a server that came (back) and makes the ledger say what it really runs.

        `let_go` names the GPUs that it has handed over.
        """
        self._fleet.joined(node, list(gpus))
        decisions = Decisions()
        self._pools.joined(node.name, let_go, decisions)
        reported: set[str] = set()
        for report in sessions:
            reported.add(report.session.id)
            self._adoption.reconcile(node.name, report, decisions)
        pending = set(pending_requests)
        self._adoption.revive(node.name, pending, decisions)
        self._jobs.replace(node.name, holds)
        self._ledger.end_unreported(node.name, reported | pending)
        for gpu in self._fleet.of_node(node.name):
            self._end_faulty(gpu, decisions)
        return self._moved_on(decisions)

    def gpu_condition(self, key: GpuKey, fault: str, held: str, note: str) -> Decisions:
        """A node says what has become of a GPU; at fault, it loses what runs on it."""
        decisions = Decisions()
        if gpu := self.gpus.get(key):
            gpu = replace(gpu, fault=fault, held=held, note=note)
            self._fleet.set_condition(gpu)
            self._end_faulty(gpu, decisions)
        return self._moved_on(decisions)

    def seen(self, name: str) -> None:
        """Notes a sign of life of a node."""
        if node := self.nodes.get(name):
            node.last_seen = self._clock.monotonic()

    def disconnected(self, name: str) -> None:
        """A node's stream broke: nothing new is placed there until it returns."""
        node = self.nodes.get(name)
        if node and node.state is NodeState.UP:
            node.last_seen = self._clock.monotonic()
            self._fleet.set_state(node, NodeState.AWAY, "its stream ended")

    def listening(self) -> None:
        """From now on servers can be heard: what they did not say before was no silence."""
        self._fleet.was_away(self._clock.monotonic() - self._made)

    def was_away(self, seconds: float) -> None:
        """The controller itself stood still for so long: nobody else was silent."""
        self._fleet.was_away(seconds)
        self._ledger.event("controller.stalled", "controller", f"stood still for {seconds:.1f} s")

    def expire(self) -> Decisions:
        """Lets time pass: silent nodes are lost, overdue requests are refused."""
        decisions = Decisions()
        now = self._clock.monotonic()
        for node in self.nodes.values():
            if node.state is NodeState.LOST or now - node.last_seen < self._node_timeout:
                continue
            decisions.lost.append(node.name)
            silent = f"silent for {now - node.last_seen:.0f} s"
            self._fleet.set_state(node, NodeState.LOST, silent)
            for grant in self._ledger.live_on(node.name):
                why = End(EndCause.NODE_LOST, NODE_LOST)
                self._ledger.end(grant, why, lost=True)
                others = sorted(grant.nodes - {node.name})
                decisions.ends += [EndOrder(other, grant.id, why) for other in others]
            self._jobs.replace(node.name, ())
        for grant in self._jobs.grants():
            self._ledger.end_if_over(grant)
        for grant_id in self._ledger.never_opened(self._opening_seconds):
            text = f"its client did not come within {self._opening_seconds:g} s"
            never_came = End(EndCause.CLIENT_NEVER_CAME, text)
            decisions.ends += self.end_soon(grant_id, never_came).ends
        for request in self.queue.overdue(now):
            self._scheduler.leave(request.request_id)
            decisions.answers[request.request_id] = self._not_now(request, len(self.queue) + 1)
            self._ledger.event("request.expired", request.request_id, request.program)
        self._ledger.changes += self._ledger.usage.cut()
        return self._moved_on(decisions)

    # grants

    def submit(self, request: GrantRequest) -> Decisions:
        """Decides on a request; without an answer in the result it waits in the queue.

        A request id that already holds a live grant is answered with that grant.
        """
        decisions = Decisions()
        if held := self._ledger.held_by(request.request_id):
            decisions.answers[request.request_id] = held
            return decisions
        if self.paused and request.wait_seconds == 0:
            decisions.answers[request.request_id] = Refused(CudaStatus.UNKNOWN, self.paused)
            return decisions
        request = self._scheduler.reaching(request)
        if refusal := self._at_once(request):
            decisions.answers[request.request_id] = refusal
            self._ledger.event("request.refused", request.request_id, refusal.message)
            return decisions
        self._scheduler.enqueue(request)
        self._moved_on(decisions)
        if request.request_id not in decisions.answers and request.wait_seconds == 0:
            position = self.queue.position(request.request_id)
            refusal = self._not_now(request, position)
            self._scheduler.leave(request.request_id)
            decisions.answers[request.request_id] = refusal
            self._ledger.event("request.refused", request.request_id, refusal.message)
        return decisions

    def not_allowed(self, request: GrantRequest) -> Refused | None:
        """Why it may not ask for this, or may not join its job's grant."""
        if refusal := rights.not_to_ask(request, self.quotas):
            return refusal
        grant = self._jobs.grant_of(request)
        return self._scheduler.not_to_join(request, grant) if grant else None

    def waiting(self, request: GrantRequest) -> Waiting:
        """Where a queued request stands."""
        position = self.queue.position(request.request_id)
        why = self._scheduler.why_waiting(request)
        return Waiting(position, refusals.waiting_line(request, position, len(self.queue), why))

    def withdraw(self, request_id: str, why: End) -> Decisions:
        """The requester is gone: leaves the queue, or gives back a session not answered."""
        self._scheduler.leave(request_id)
        if held := self._ledger.held_by(request_id):
            self._ledger.end_session(held.grant, held.session, why)
        return self._moved_on(Decisions())

    def release(self, grant_id: str, why: End) -> Decisions:
        """A server says that nothing of the grant runs any more."""
        grant = self.grants.get(grant_id)
        if grant and grant.state is GrantState.LIVE:
            self._ledger.end(grant, why)
        return self._moved_on(Decisions())

    def session_ended(self, session_id: str, grant_id: str, why: End) -> Decisions:
        """A server says that a session runs no more; naming none: nothing of the grant does."""
        session = self.sessions.get(session_id)
        if session is None or session.grant_id != grant_id:
            grant = self.grants.get(grant_id)
            keep = grant is not None and session_id and self._ledger.live_sessions_of(grant_id)
            return Decisions() if keep else self.release(grant_id, why)
        grant = self.grants.get(grant_id)
        if grant and grant.state is GrantState.LIVE:
            self._ledger.end_session(grant, session, why)
        return self._moved_on(Decisions())

    def end_soon(self, grant_id: str, why: End) -> Decisions:
        """The operator ends a grant: its server is told, and nobody joins it any more."""
        grant = self.grants.get(grant_id)
        if grant is None or grant.state is not GrantState.LIVE:
            return Decisions()
        self._ledger.end_soon(grant, why)
        return Decisions(ends=[EndOrder(grant.node, grant_id, why)])

    def job_held(self, key: JobKey, holder: str) -> None:
        """A job's launcher lives."""
        self._jobs.hold(key, holder)

    def job_released(self, key: JobKey, holder: str) -> Decisions:
        """It was seen to end."""
        self._jobs.release(key, holder)
        for grant in self._jobs.grants():
            self._ledger.end_if_over(grant)
        return self._moved_on(Decisions())

    def session_started(self, session_id: str, client_pid: int, channel: str) -> Decisions:
        """The client of an opening session is there."""
        decisions = Decisions()
        session = self.sessions.get(session_id)
        if session and session.state is SessionState.OPENING:
            session.state = SessionState.RUNNING
            session.client_pid = client_pid or session.client_pid
            session.channel = channel or session.channel
            self._ledger.changes.append(as_it_is(session))
            self._ledger.event(
                "session.running", session.id, f"{session.program} on {session.node}"
            )
        elif session and session.state is SessionState.ENDED:
            # ended here while its client was on its way there
            grant = self.grants[session.grant_id]
            if grant.state is GrantState.ENDED:
                why = End(session.cause, session.reason)
                decisions.ends.append(EndOrder(session.node, grant.id, why))
        return decisions

    # within

    def _held_by(self, key: GpuKey) -> str:
        attachment = self.attachments.get(key)
        return attachment.domain_name if attachment else ""

    def _end_faulty(self, gpu: Gpu, decisions: Decisions) -> None:
        for grant in self._ledger.live_on_gpu(gpu.key) if gpu.fault else ():
            cause, _, _ = gpu.fault.partition(";")  # what to do then is for operators
            why = End(EndCause.GPU_FAILED, f"GPU {gpu.uuid} has failed: {cause}")
            self._jobs.end_soon(grant.id, why)
            decisions.ends.append(EndOrder(grant.node, grant.id, why))

    def _moved_on(self, decisions: Decisions) -> Decisions:
        self._scheduler.serve(decisions)
        self._pools.advance(decisions)
        return decisions

    def _restore(self, snapshot: Snapshot) -> None:
        self._fleet.restore(snapshot.nodes, snapshot.gpus, snapshot.switches)
        self.operations.attachments.restore(snapshot.attachments)
        self.operations.machines.restore(snapshot.documents)
        self.quotas.limits.update({quota.project: quota for quota in snapshot.quotas})
        self._ledger.restore(
            snapshot.grants, snapshot.sessions, snapshot.reservations, snapshot.usage
        )
        for reservation in snapshot.reservations:
            if reservation.state is ReservationState.WAITING:
                waited = max(0.0, self._clock.wall() - reservation.created)
                self._scheduler.enqueue(replace(request_of(reservation), waited_seconds=waited))

    def _at_once(self, request: GrantRequest) -> Refused | None:
        """Why it is refused without waiting."""
        if refusal := refusals.malformed(request):
            return refusal
        if refusal := self.not_allowed(request):
            return refusal
        if self._jobs.grant_of(request):
            return None
        if request.mode is Mode.RESERVED:
            return self._scheduler.never_reserved(request)
        if self._ledger.reservations.of(request):
            return None
        if never := self.quotas.never(request.project, Held.at_least(request)):
            return refusals.over_quota(request, never)
        return feasibility.never(request, self.capacity, across=self._cross_node)

    def _not_now(self, request: GrantRequest, position: int) -> Refused:
        if self._jobs.grant_of(request):
            return refusals.no_room_for_context(request)
        why = self._scheduler.why_waiting(request)
        return refusals.not_in_time(request, position, len(self.queue), why)
