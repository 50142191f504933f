# SPDX-License-Identifier: Apache-2.0
"""The pool: one object that knows every node, GPU, grant, session and waiting request, and decides.

Called by controller.desk, one step at a time, never from two tasks at once. It does no I/O: time
and ids are injected, what must be stored is collected as changes (take_changes), and what others
must be told is returned. It promises that live grants never exceed a GPU, except where a server
reports work that really runs and that the books had lost: that is adopted as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sluice.controller.pool import refusals
from sluice.controller.pool.ledger import Ledger, Usage
from sluice.controller.pool.model import (
    Change,
    Clock,
    Decisions,
    EndOrder,
    Event,
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
    Session,
    SessionState,
    Vgpu,
    Waiting,
)
from sluice.controller.pool.placement import BinPack, GpuRoom, PlacementPolicy, slice_on
from sluice.controller.pool.waiting import WaitingQueue

NODE_LOST = "node lost"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the store remembered: the pool's state before a restart."""

    nodes: Sequence[Node] = ()
    gpus: Sequence[Gpu] = ()
    grants: Sequence[Grant] = ()
    sessions: Sequence[Session] = ()


@dataclass(frozen=True, slots=True)
class ReportedSession:
    """A session that a server says it runs or is about to open."""

    session: Session
    vgpus: tuple[Vgpu, ...]
    request_id: str
    priority: int


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
        policy: PlacementPolicy | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._clock = clock
        self._new_id = new_id
        self._vgpu_count = vgpu_count
        self._node_timeout = node_timeout_seconds
        self._ended_kept = ended_kept
        self._policy = policy or BinPack()
        self._ledger = Ledger()
        self._changes: list[Change] = []
        self.nodes: dict[str, Node] = {}
        self.gpus: dict[GpuKey, Gpu] = {}
        self.grants: dict[str, Grant] = {}
        self.sessions: dict[str, Session] = {}
        self.queue = WaitingQueue()
        self._by_request: dict[str, str] = {}
        if snapshot:
            self._restore(snapshot)

    # what exists

    def usage(self, key: GpuKey) -> Usage:
        """What is promised of a GPU."""
        return self._ledger.usage(key)

    def sessions_of(self, grant_id: str) -> list[Session]:
        """Every session of a grant, ended ones too."""
        return [s for s in self.sessions.values() if s.grant_id == grant_id]

    def take_changes(self) -> list[Change]:
        """Hands over what must be stored since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    # nodes

    def register(
        self,
        node: Node,
        gpus: Iterable[Gpu],
        sessions: Iterable[ReportedSession],
        pending_requests: Iterable[str] = (),
    ) -> Decisions:
        """Takes in a server that came (back) and makes the books say what it really runs."""
        known = self.nodes.get(node.name)
        node.generation = known.generation + 1 if known else 1
        node.state = NodeState.UP
        node.last_seen = self._clock.monotonic()
        self.nodes[node.name] = node
        self._changes.append(replace(node))
        self._event("node.up", node.name, f"{node.version} at {node.address}:{node.port}")
        self._replace_gpus(node.name, list(gpus))
        decisions = Decisions()
        reported: set[str] = set()
        for report in sessions:
            reported.add(report.session.grant_id)
            self._reconcile(node.name, report, decisions)
        pending = set(pending_requests)
        for grant in [g for g in self.grants.values() if g.node == node.name]:
            if (
                grant.state is GrantState.LIVE
                and grant.id not in reported
                and grant.request_id not in pending
            ):
                self._end(grant, "the server does not run it any more")
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
            node.last_seen = self._clock.monotonic()
            self._changes.append(replace(node))
            self._event("node.away", name, "its stream ended")

    def expire(self) -> Decisions:
        """Lets time pass: silent nodes are lost, overdue requests are refused."""
        decisions = Decisions()
        now = self._clock.monotonic()
        for node in self.nodes.values():
            if node.state is NodeState.LOST or now - node.last_seen < self._node_timeout:
                continue
            node.state = NodeState.LOST
            decisions.lost.append(node.name)
            self._changes.append(replace(node))
            self._event("node.lost", node.name, f"silent for {now - node.last_seen:.0f} s")
            for grant in list(self.grants.values()):
                if grant.node == node.name and grant.state is GrantState.LIVE:
                    self._end(grant, NODE_LOST)
        for request in self.queue.overdue(now):
            queued = len(self.queue)
            decisions.answers[request.request_id] = refusals.not_in_time(
                request, queued + 1, queued
            )
            self._event("request.expired", request.request_id, request.program)
        self._serve_queue(decisions)
        return decisions

    # grants

    def submit(self, request: GrantRequest) -> Decisions:
        """Decides on a request; without an answer in the result it waits in the queue.

        A request id that already holds a live grant is answered with that grant.
        """
        decisions = Decisions()
        if held := self._held_by(request.request_id):
            decisions.answers[request.request_id] = held
            return decisions
        refusal = refusals.malformed(request) or refusals.never(
            request, [self._empty(gpu) for gpu in self._allowed(request)]
        )
        if refusal:
            decisions.answers[request.request_id] = refusal
            self._event("request.refused", request.request_id, refusal.message)
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
            refusal = refusals.not_in_time(request, position, len(self.queue))
            decisions.answers[request.request_id] = refusal
            self._event("request.refused", request.request_id, refusal.message)
        return decisions

    def waiting(self, request: GrantRequest) -> Waiting:
        """Where a queued request stands."""
        position = self.queue.position(request.request_id)
        return Waiting(position, refusals.waiting_line(request, position, len(self.queue)))

    def withdraw(self, request_id: str, reason: str) -> Decisions:
        """The asker is gone: leaves the queue, or gives back the grant whose answer was lost."""
        decisions = Decisions()
        self.queue.remove(request_id)
        if held := self._held_by(request_id):
            self._end(held.grant, reason)
        self._serve_queue(decisions)
        return decisions

    def release(self, grant_id: str, reason: str) -> Decisions:
        """A server says that nothing of the grant runs any more."""
        decisions = Decisions()
        grant = self.grants.get(grant_id)
        if grant and grant.state is GrantState.LIVE:
            self._end(grant, reason)
        self._serve_queue(decisions)
        return decisions

    def session_started(self, session_id: str, client_pid: int, channel: str) -> None:
        """The client of an opening session is there."""
        session = self.sessions.get(session_id)
        if session and session.state is SessionState.OPENING:
            session.state = SessionState.RUNNING
            session.client_pid = client_pid or session.client_pid
            session.channel = channel or session.channel
            self._changes.append(replace(session))
            self._event("session.running", session.id, f"{session.program} on {session.node}")

    # within

    def _restore(self, snapshot: Snapshot) -> None:
        now = self._clock.monotonic()
        for node in snapshot.nodes:
            if node.state is NodeState.UP:
                node.state = NodeState.AWAY
            # silence counts from now on: the controller was the one who was away
            node.last_seen = now
            self.nodes[node.name] = node
        self.gpus = {gpu.key: gpu for gpu in snapshot.gpus}
        for grant in snapshot.grants:
            self.grants[grant.id] = grant
            if grant.state is GrantState.LIVE:
                self._by_request[grant.request_id] = grant.id
                self._ledger.book(grant)
        self.sessions = {session.id: session for session in snapshot.sessions}

    def _replace_gpus(self, node: str, gpus: list[Gpu]) -> None:
        reported = {gpu.key for gpu in gpus}
        for key in [k for k in self.gpus if k.node == node and k not in reported]:
            del self.gpus[key]
            self._changes.append(GpuRemoved(key.node, key.uuid))
            self._event("gpu.gone", str(key), "its node no longer reports it")
        for gpu in gpus:
            if self.gpus.get(gpu.key) != gpu:
                self.gpus[gpu.key] = gpu
                self._changes.append(gpu)
                self._event("gpu.joined", str(gpu.key), f"{gpu.model}, {gpu.memory_mib} MiB")

    def _reconcile(self, node: str, report: ReportedSession, decisions: Decisions) -> None:
        session = report.session
        grant = self.grants.get(session.grant_id)
        if grant and grant.state is GrantState.ENDED and grant.reason != NODE_LOST:
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
            )
            self._hold(grant)
            self._event("grant.adopted", grant.id, f"{node} runs session {session.id}")
        known = self.sessions.get(session.id)
        if known is None or known.state is not session.state:
            self.sessions[session.id] = session
            self._changes.append(replace(session))

    def _with_overhead(self, node: str, vgpus: tuple[Vgpu, ...]) -> tuple[Vgpu, ...]:
        gpus = [self.gpus.get(GpuKey(node, vgpu.gpu_uuid)) for vgpu in vgpus]
        return tuple(
            replace(vgpu, overhead_mib=gpu.context_overhead_mib if gpu else 0)
            for vgpu, gpu in zip(vgpus, gpus, strict=True)
        )

    def _held_by(self, request_id: str) -> Granted | None:
        grant = self.grants.get(self._by_request.get(request_id, ""))
        if grant is None or grant.state is not GrantState.LIVE:
            return None
        sessions = self.sessions_of(grant.id)
        return Granted(grant, sessions[0]) if sessions else None

    def _allowed(self, request: GrantRequest) -> list[Gpu]:
        return [
            gpu
            for gpu in self.gpus.values()
            if self.nodes[gpu.node].state is not NodeState.LOST
            and (not request.local_only or gpu.node == request.node)
        ]

    def _vgpu_count_of(self, gpu: Gpu) -> int:
        return self._vgpu_count or self.nodes[gpu.node].vgpu_count or 1

    def _empty(self, gpu: Gpu) -> GpuRoom:
        return GpuRoom(gpu, gpu.memory_mib - gpu.reserved_mib, 100, self._vgpu_count_of(gpu))

    def _room(self, gpu: Gpu) -> GpuRoom:
        used, empty = self._ledger.usage(gpu.key), self._empty(gpu)
        return replace(
            empty,
            free_mib=empty.free_mib - used.memory_mib,
            free_percent=empty.free_percent - used.compute_percent,
        )

    def _serve_queue(self, decisions: Decisions) -> None:
        # a request that does not fit holds the nodes that it may use against those behind it, so
        # that small requests cannot starve a large one; other nodes' requests pass it
        held: set[str] = set()
        for entry in self.queue:
            request = entry.request
            allowed = [gpu for gpu in self._allowed(request) if gpu.node not in held]
            chosen = self._policy.choose(
                request,
                (self._room(g) for g in allowed if self.nodes[g.node].state is NodeState.UP),
            )
            if chosen is None:
                held.update(gpu.node for gpu in allowed)
                continue
            self.queue.remove(request.request_id)
            decisions.answers[request.request_id] = self._grant(request, chosen)

    def _grant(self, request: GrantRequest, rooms: list[GpuRoom]) -> Granted:
        now = self._clock.wall()
        node = rooms[0].gpu.node
        grant = Grant(
            id=self._new_id(),
            request_id=request.request_id,
            node=node,
            vgpus=tuple(slice_on(request, room.gpu, room.vgpu_count) for room in rooms),
            priority=request.priority,
            created=now,
        )
        session = Session(
            id=self._new_id(),
            grant_id=grant.id,
            node=node,
            channel=request.channel,
            host=request.host,
            program=request.program,
            client_pid=request.client_pid,
            client_uid=request.client_uid,
            domain_uuid=request.domain_uuid,
            domain_name=request.domain_name,
            started=now,
        )
        self._hold(grant)
        self.sessions[session.id] = session
        self._changes.append(replace(session))
        self._event("grant.made", grant.id, f"{refusals.wanted(request)} for {request.program}")
        return Granted(grant, session)

    def _hold(self, grant: Grant) -> None:
        self.grants[grant.id] = grant
        self._by_request[grant.request_id] = grant.id
        self._ledger.book(grant)
        self._changes.append(replace(grant))

    def _end(self, grant: Grant, reason: str) -> None:
        now = self._clock.wall()
        self._ledger.unbook(grant)
        self._by_request.pop(grant.request_id, None)
        grant.state, grant.ended, grant.reason = GrantState.ENDED, now, reason
        grant.generation += 1
        self._changes.append(replace(grant))
        for session in self.sessions_of(grant.id):
            if session.state is not SessionState.ENDED:
                session.state, session.ended, session.reason = SessionState.ENDED, now, reason
                self._changes.append(replace(session))
        self._event("grant.ended", grant.id, reason)
        self._forget_old()

    def _forget_old(self) -> None:
        # ended grants are kept for people to look at, in the order in which they were made
        excess = len(self.grants) - self._ended_kept
        if excess <= 0:
            return
        ended = [g.id for g in self.grants.values() if g.state is GrantState.ENDED]
        for grant_id in ended[: max(0, len(ended) - self._ended_kept)]:
            del self.grants[grant_id]
            for session in self.sessions_of(grant_id):
                del self.sessions[session.id]

    def _event(self, kind: str, subject: str, text: str) -> None:
        self._changes.append(Event(self._clock.wall(), kind, subject, text))
