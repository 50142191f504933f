# SPDX-License-Identifier: Apache-2.0
"""The pool: one object that knows every node, GPU, grant, session and waiting request, and decides.

Called by controller.desk, one step at a time, never from two tasks at once. It does no I/O: time
and ids are injected, what must be stored is collected as changes (take_changes), and what others
must be told is returned. It promises that live grants never exceed a GPU, except where a server
reports work that really runs and that the books had lost: that is adopted as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from sluice.controller.pool import feasibility, placement, refusals
from sluice.controller.pool.books import Books
from sluice.controller.pool.fragmentation import Fragmentation
from sluice.controller.pool.jobs import JobKey, Jobs
from sluice.controller.pool.ledger import Usage
from sluice.controller.pool.model import (
    Change,
    Clock,
    CudaStatus,
    Decisions,
    Document,
    EndOrder,
    Gpu,
    GpuKey,
    GpuRemoved,
    Grant,
    Granted,
    GrantRequest,
    GrantState,
    IdFactory,
    Node,
    NodeState,
    Refused,
    Session,
    SessionState,
    Vgpu,
    Waiting,
)
from sluice.controller.pool.policies import BinPack, PlacementPolicy
from sluice.controller.pool.rooms import Room, Rooms
from sluice.controller.pool.waiting import WaitingQueue

NODE_LOST = "node lost"


class _NotNow(Enum):
    NOT_NOW = "the job's GPUs have no room for another context"


NOT_NOW = _NotNow.NOT_NOW


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the store remembered: the pool's state before a restart."""

    nodes: Sequence[Node] = ()
    gpus: Sequence[Gpu] = ()
    grants: Sequence[Grant] = ()
    sessions: Sequence[Session] = ()
    # not the pool's; read with the rest
    documents: Sequence[Document] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ReportedSession:
    """A session that a server says it runs or is about to open."""

    session: Session
    vgpus: tuple[Vgpu, ...]
    request_id: str
    priority: int
    job: str = ""
    job_domain: str = ""
    job_processes: int = 0


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
        policy: PlacementPolicy | None = None,
        cross_node: bool = False,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._clock = clock
        self._new_id = new_id
        self._vgpu_count = vgpu_count
        self._node_timeout = node_timeout_seconds
        self._policy = policy or BinPack()
        self.nodes: dict[str, Node] = {}
        self.gpus: dict[GpuKey, Gpu] = {}
        self.queue = WaitingQueue()
        self._job_sessions = job_sessions
        self._jobs = Jobs(clock, job_linger_seconds)
        self._books = Books(clock, new_id, self._jobs, self.gpus, ended_kept)
        # whether grants may be on several nodes: the data path opens sessions on one node only
        self._cross_node = cross_node
        self.rooms = Rooms(self._books.ledger.usage)
        self._books.ledger.on_change = self.rooms.changed
        self.grants = self._books.grants
        self.sessions = self._books.sessions
        self.paused = ""  # why nothing is granted for now; what waits goes on waiting
        if snapshot:
            self._restore(snapshot)

    # what exists

    def usage(self, key: GpuKey) -> Usage:
        """What is promised of a GPU."""
        return self._books.ledger.usage(key)

    def fragmentation(self) -> Fragmentation:
        """How much of the free memory can still be given in useful pieces."""
        return self.rooms.fragments.read()

    def sessions_of(self, grant_id: str) -> list[Session]:
        """Every session of a grant, ended ones too."""
        return self._books.sessions_of(grant_id)

    def node_of_request(self, request_id: str) -> str:
        """The node of the grant that a request was given; empty if it has none."""
        held = self._books.held_by(request_id)
        return held.grant.node if held else ""

    def take_changes(self) -> list[Change]:
        """Hands over what must be stored since the last call, in order."""
        changes, self._books.changes = self._books.changes, []
        return changes

    # nodes

    def register(
        self,
        node: Node,
        gpus: Iterable[Gpu],
        sessions: Iterable[ReportedSession],
        pending_requests: Iterable[str] = (),
        holds: Iterable[JobKey] = (),
    ) -> Decisions:
        """Takes in a server that came (back) and makes the books say what it really runs."""
        known = self.nodes.get(node.name)
        node.generation = known.generation + 1 if known else 1
        node.state = NodeState.UP
        node.last_seen = self._clock.monotonic()
        self.nodes[node.name] = node
        self._books.changes.append(replace(node))
        self._books.event("node.up", node.name, f"{node.version} at {node.address}:{node.port}")
        here = list(gpus)
        self._replace_gpus(node.name, here)
        self._into_rooms(node, here)
        decisions = Decisions()
        reported: set[str] = set()
        for report in sessions:
            reported.add(report.session.id)
            self._reconcile(node.name, report, decisions)
        self._jobs.replace(node.name, holds)
        self._books.end_unreported(node.name, reported | set(pending_requests))
        self._serve_queue(decisions)
        return decisions

    def seen(self, name: str) -> None:
        """Notes a sign of life of a node."""
        if node := self.nodes.get(name):
            node.last_seen = self._clock.monotonic()

    def disconnected(self, name: str) -> None:
        """A node's stream broke: nothing new is placed there until it returns."""
        node = self.nodes.get(name)
        if node and node.state is NodeState.UP:
            node.state = NodeState.AWAY
            self.rooms.set_open(name, is_open=False)
            node.last_seen = self._clock.monotonic()
            self._books.changes.append(replace(node))
            self._books.event("node.away", name, "its stream ended")

    def expire(self) -> Decisions:
        """Lets time pass: silent nodes are lost, overdue requests are refused."""
        decisions = Decisions()
        now = self._clock.monotonic()
        for node in self.nodes.values():
            if node.state is NodeState.LOST or now - node.last_seen < self._node_timeout:
                continue
            node.state = NodeState.LOST
            self.rooms.drop(node.name)
            decisions.lost.append(node.name)
            self._books.changes.append(replace(node))
            self._books.event("node.lost", node.name, f"silent for {now - node.last_seen:.0f} s")
            for grant in self._books.live_on(node.name):
                self._books.end(grant, NODE_LOST)
                others = sorted(grant.nodes - {node.name})
                decisions.ends += [EndOrder(other, grant.id, NODE_LOST) for other in others]
            self._jobs.replace(node.name, ())
        for grant in self._jobs.grants():
            self._books.end_if_over(grant)
        for request in self.queue.overdue(now):
            decisions.answers[request.request_id] = self._not_now(request, len(self.queue) + 1)
            self._books.event("request.expired", request.request_id, request.program)
        self._serve_queue(decisions)
        return decisions

    # grants

    def submit(self, request: GrantRequest) -> Decisions:
        """Decides on a request; without an answer in the result it waits in the queue.

        A request id that already holds a live grant is answered with that grant.
        """
        decisions = Decisions()
        if held := self._books.held_by(request.request_id):
            decisions.answers[request.request_id] = held
            return decisions
        if self.paused and request.wait_seconds == 0:
            decisions.answers[request.request_id] = Refused(CudaStatus.UNKNOWN, self.paused)
            return decisions
        refusal = refusals.malformed(request)
        if refusal is None and self._jobs.grant_of(request) is None:
            refusal = feasibility.never(request, self.rooms, across=self._cross_node)
        if refusal:
            decisions.answers[request.request_id] = refusal
            self._books.event("request.refused", request.request_id, refusal.message)
            return decisions
        deadline = (
            None
            if request.wait_seconds < 0
            else self._clock.monotonic() + max(0, request.wait_seconds)
        )
        self.queue.add(request, deadline)
        self._serve_queue(decisions)
        if request.request_id not in decisions.answers and request.wait_seconds == 0:
            position = self.queue.position(request.request_id)
            self.queue.remove(request.request_id)
            refusal = self._not_now(request, position)
            decisions.answers[request.request_id] = refusal
            self._books.event("request.refused", request.request_id, refusal.message)
        return decisions

    def waiting(self, request: GrantRequest) -> Waiting:
        """Where a queued request stands."""
        position = self.queue.position(request.request_id)
        return Waiting(position, refusals.waiting_line(request, position, len(self.queue)))

    def withdraw(self, request_id: str, reason: str) -> Decisions:
        """The asker is gone: leaves the queue, or gives back the session whose answer was lost."""
        decisions = Decisions()
        self.queue.remove(request_id)
        if held := self._books.held_by(request_id):
            self._books.end_session(held.grant, held.session, reason)
        self._serve_queue(decisions)
        return decisions

    def release(self, grant_id: str, reason: str) -> Decisions:
        """A server says that nothing of the grant runs any more."""
        decisions = Decisions()
        grant = self.grants.get(grant_id)
        if grant and grant.state is GrantState.LIVE:
            self._books.end(grant, reason)
        self._serve_queue(decisions)
        return decisions

    def session_ended(self, session_id: str, grant_id: str, reason: str) -> Decisions:
        """A server says that a session runs no more; naming none: nothing of the grant does."""
        session = self.sessions.get(session_id)
        if session is None or session.grant_id != grant_id:
            grant = self.grants.get(grant_id)
            keep = grant is not None and session_id and self._books.live_sessions_of(grant_id)
            return Decisions() if keep else self.release(grant_id, reason)
        decisions = Decisions()
        grant = self.grants.get(grant_id)
        if grant and grant.state is GrantState.LIVE:
            self._books.end_session(grant, session, reason)
        self._serve_queue(decisions)
        return decisions

    def end_soon(self, grant_id: str, reason: str) -> None:
        """The operator ends a grant: its server is told, and nobody joins it any more."""
        self._jobs.end_soon(grant_id, reason)

    def job_held(self, key: JobKey, holder: str) -> None:
        """A job's launcher lives."""
        self._jobs.hold(key, holder)

    def job_released(self, key: JobKey, holder: str) -> Decisions:
        """It was seen to end."""
        decisions = Decisions()
        self._jobs.release(key, holder)
        for grant in self._jobs.grants():
            self._books.end_if_over(grant)
        self._serve_queue(decisions)
        return decisions

    def session_started(self, session_id: str, client_pid: int, channel: str) -> None:
        """The client of an opening session is there."""
        session = self.sessions.get(session_id)
        if session and session.state is SessionState.OPENING:
            session.state = SessionState.RUNNING
            session.client_pid = client_pid or session.client_pid
            session.channel = channel or session.channel
            self._books.changes.append(replace(session))
            self._books.event("session.running", session.id, f"{session.program} on {session.node}")

    # within

    def _restore(self, snapshot: Snapshot) -> None:
        now = self._clock.monotonic()
        for node in snapshot.nodes:
            if node.state is NodeState.UP:
                node.state = NodeState.AWAY
            # silence counts from now on: the controller was the one who was away
            node.last_seen = now
            self.nodes[node.name] = node
        self.gpus.update({gpu.key: gpu for gpu in snapshot.gpus})
        self._books.restore(snapshot.grants, snapshot.sessions)
        gpus: dict[str, list[Gpu]] = {}
        for gpu in snapshot.gpus:
            gpus.setdefault(gpu.node, []).append(gpu)
        for node in snapshot.nodes:
            if node.state is not NodeState.LOST:
                self._into_rooms(node, gpus.get(node.name, ()))

    def _replace_gpus(self, node: str, gpus: list[Gpu]) -> None:
        reported = {gpu.key for gpu in gpus}
        for key in [k for k in self.gpus if k.node == node and k not in reported]:
            del self.gpus[key]
            self._books.changes.append(GpuRemoved(key.node, key.uuid))
            self._books.event("gpu.gone", str(key), "its node no longer reports it")
        for gpu in gpus:
            if self.gpus.get(gpu.key) != gpu:
                self.gpus[gpu.key] = gpu
                self._books.changes.append(gpu)
                self._books.event("gpu.joined", str(gpu.key), f"{gpu.model}, {gpu.memory_mib} MiB")

    def _reconcile(self, node: str, report: ReportedSession, decisions: Decisions) -> None:
        session = report.session
        grant = self.grants.get(session.grant_id)
        if (
            grant
            and grant.state is GrantState.ENDED
            # what was lost with one of several nodes is over: the others' GPUs were given back
            and (grant.reason != NODE_LOST or len(grant.nodes) > 1)
        ):
            decisions.ends.append(EndOrder(node, grant.id, grant.reason))
            return
        if grant is None or grant.state is GrantState.ENDED:
            generation = grant.generation + 1 if grant else 1
            grant = Grant(
                id=session.grant_id,
                request_id=report.request_id,
                node=node,
                vgpus=self._with_overhead(node, report.vgpus),
                priority=report.priority,
                created=session.started,
                generation=generation,
                job=report.job,
                job_domain=report.job_domain,
                job_processes=report.job_processes,
                project=grant.project if grant else "",
            )
            self._books.begin(grant)
            self._books.event("grant.adopted", grant.id, f"{node} runs session {session.id}")
        known = self.sessions.get(session.id)
        if known is None or known.state is not session.state:
            self._books.add_session(session)
            self._books.recount(grant)

    def _with_overhead(self, node: str, vgpus: tuple[Vgpu, ...]) -> tuple[Vgpu, ...]:
        gpus = [self.gpus.get(GpuKey(node, vgpu.gpu_uuid)) for vgpu in vgpus]
        return tuple(
            replace(vgpu, overhead_mib=gpu.context_overhead_mib if gpu else 0)
            for vgpu, gpu in zip(vgpus, gpus, strict=True)
        )

    def _into_rooms(self, node: Node, gpus: Iterable[Gpu]) -> None:
        self.rooms.put(
            node.name,
            node.labels,
            [gpu for gpu in gpus if not gpu.fault],
            self._vgpu_count or node.vgpu_count or 1,
            is_open=node.state is NodeState.UP,
        )

    def _serve_queue(self, decisions: Decisions) -> None:
        if self.paused:
            return
        # a request that does not fit holds the GPUs that it would fit on if they were empty against
        # those behind it, so that small requests cannot starve a large one; others pass it
        held: set[GpuKey] = set()
        for entry in self.queue:
            request = entry.request
            joined = self._join(request)
            if joined == NOT_NOW:
                held.update(self._gpus_of_job(request))
                continue
            if joined is not None:
                self.queue.remove(request.request_id)
                decisions.answers[request.request_id] = joined
                continue
            chosen = placement.choose(
                self._policy, request, self.rooms, held, across=self._cross_node
            )
            if chosen is None:
                held |= feasibility.reach(request, self.rooms)
                continue
            self.queue.remove(request.request_id)
            decisions.answers[request.request_id] = self._grant(request, chosen)

    def _grant(self, request: GrantRequest, rooms: list[Room]) -> Granted | Refused:
        now = self._clock.wall()
        grant = Grant(
            id=self._new_id(),
            request_id=request.request_id,
            node=rooms[0].gpu.node,
            vgpus=placement.vgpus_on(request, rooms),
            priority=request.priority,
            created=now,
            job=request.job,
            job_domain=request.job_domain,
            job_processes=request.job_processes,
            project=request.project,
        )
        if refusal := self._join_refusal(request, grant):
            return refusal
        self._books.begin(grant)
        self._books.event(
            "grant.made", grant.id, f"{refusals.wanted(request)} for {request.program}"
        )
        return Granted(grant, self._books.open_session(request, grant))

    # jobs

    def _join(self, request: GrantRequest) -> Granted | Refused | _NotNow | None:
        """A session of a job's live grant, or why not; None where the job has no grant."""
        if self._jobs.foreign(request):
            return refusals.foreign_job(request)
        grant = self._jobs.grant_of(request)
        if grant is None:
            return None
        if refusal := self._join_refusal(request, grant):
            return refusal
        newcomer = Session(
            "", grant.id, grant.node, "", "", "", 0, 0, "", "", 0.0, chosen=request.chosen
        )
        vgpus = self._books.charged(grant, [*self._books.live_sessions_of(grant.id), newcomer])
        more: Counter[GpuKey] = Counter()
        for (key, old), new in zip(grant.placed(), vgpus, strict=True):
            more[key] += new.overhead_mib - old.overhead_mib
        for key, mib in more.items():
            room = self.rooms.room(key)
            if room is None or mib > max(0, room.free_mib):
                return NOT_NOW
        if self.nodes[grant.node].state is not NodeState.UP:
            return NOT_NOW
        session = self._books.open_session(request, grant)
        self._books.recount(grant)
        self._books.event("session.joined", session.id, f"{request.program} joins grant {grant.id}")
        return Granted(grant, session)

    def _join_refusal(self, request: GrantRequest, grant: Grant) -> Refused | None:
        live, ending = len(self._books.live_sessions_of(grant.id)), self._jobs.is_ending(grant)
        return refusals.cannot_join(request, grant, live, self._job_sessions, ending=ending)

    def _gpus_of_job(self, request: GrantRequest) -> list[GpuKey]:
        grant = self._jobs.grant_of(request)
        return [key for key, _ in grant.placed()] if grant else []

    def _not_now(self, request: GrantRequest, position: int) -> Refused:
        if self._jobs.grant_of(request):
            return refusals.no_room_for_context(request)
        return refusals.not_in_time(request, position, len(self.queue))
