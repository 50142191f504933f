# SPDX-License-Identifier: Apache-2.0
"""Grants and their sessions: begun, ended, and charged to their GPUs; every change is noted.

Owned by pool.Pool, whose parts decide what is done here. It promises that a live grant is booked
exactly once, with a context for each session that has one there, and that what must be stored is in
`changes`, in order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from sluice.controller.pool.decisions import Granted, GrantRequest
from sluice.controller.pool.gpus.allocations import Allocations
from sluice.controller.pool.grants.jobs import Jobs, with_contexts
from sluice.controller.pool.model import (
    DEFAULT_PROJECT,
    NODE_LOST,
    Change,
    Clock,
    Event,
    Gpu,
    GpuKey,
    Grant,
    GrantState,
    IdFactory,
    Reservation,
    ReservationState,
    Session,
    SessionState,
    UsageRecord,
    Vgpu,
    as_it_is,
)
from sluice.controller.pool.ordered import Ordered
from sluice.controller.pool.projects.quotas import Held, Quotas
from sluice.controller.pool.projects.usage import UsageMeters
from sluice.controller.pool.reservations.reservations import Reservations
from sluice.resources.ends import End, EndCause


class GrantLedger:
    """What is granted."""

    def __init__(
        self, clock: Clock, new_id: IdFactory, jobs: Jobs, gpus: dict[GpuKey, Gpu], ended_kept: int
    ) -> None:
        self._clock = clock
        self._new_id = new_id
        self._jobs = jobs
        self._gpus = gpus
        self._ended_kept = ended_kept
        self._by_request: dict[str, str] = {}  # request id, session id
        self.allocations = Allocations()
        self.changes: list[Change] = []
        self.grants: dict[str, Grant] = {}
        self.sessions: dict[str, Session] = {}
        self.grants_in_order: Ordered[Grant] = Ordered()  # by age, then id
        self.sessions_in_order: Ordered[Session] = Ordered()  # the same
        self._live_sessions: Counter[str] = Counter()  # by node
        self.quotas = Quotas()
        self.usage = UsageMeters(clock)
        self.reservations = Reservations()
        self._sessions_of: dict[str, dict[str, Session]] = {}
        self._live_on: dict[str, dict[str, Grant]] = defaultdict(dict)
        self._live_by_gpu: dict[GpuKey, dict[str, Grant]] = defaultdict(dict)
        self._ended: dict[str, None] = {}  # ids of ended grants, oldest first
        self._opening: dict[str, float] = {}  # session ids, oldest first, and since when

    # what there is

    def sessions_of(self, grant_id: str) -> list[Session]:
        """Every session of a grant, ended ones too."""
        return list(self._sessions_of.get(grant_id, {}).values())

    def live_sessions_of(self, grant_id: str) -> list[Session]:
        """Those that have not ended."""
        return [s for s in self.sessions_of(grant_id) if s.state is not SessionState.ENDED]

    def ended(self) -> list[Grant]:
        """The ended grants that are remembered."""
        return [self.grants[grant_id] for grant_id in self._ended]

    def live_sessions_on(self, node: str) -> int:
        """How many sessions live on a node."""
        return self._live_sessions[node]

    def live_on(self, node: str) -> list[Grant]:
        """The live grants that have a vGPU on a node."""
        return list(self._live_on.get(node, {}).values())

    def live_on_gpu(self, key: GpuKey) -> list[Grant]:
        """The live grants that have a vGPU there."""
        return list(self._live_by_gpu.get(key, {}).values())

    def is_live(self, grant_id: str) -> bool:
        """Whether there is such a grant and it has not ended."""
        grant = self.grants.get(grant_id)
        return grant is not None and grant.state is GrantState.LIVE

    def held_by(self, request_id: str) -> Granted | None:
        """What a request was granted that still lives."""
        session = self.sessions.get(self._by_request.get(request_id, ""))
        if session is None or session.state is SessionState.ENDED:
            return None
        return Granted(self.grants[session.grant_id], session)

    def charged(self, grant: Grant, sessions: Sequence[Session]) -> tuple[Vgpu, ...]:
        """The grant's vGPUs with what these sessions' contexts take."""
        gpus = [self._gpus.get(key) for key, _ in grant.placed()]
        return with_contexts(grant, sessions, [g.context_overhead_mib if g else 0 for g in gpus])

    def never_opened(self, seconds: float) -> list[str]:
        """The live grants whose sessions' clients have not come for so long, each of them once."""
        grants = []
        for session_id, since in list(self._opening.items()):
            if self._clock.monotonic() - since < seconds:
                break
            del self._opening[session_id]
            session = self.sessions.get(session_id)
            if session is None or session.state is not SessionState.OPENING:
                continue
            if self.is_live(session.grant_id) and not self.grants[session.grant_id].job:
                grants.append(session.grant_id)
        return grants

    # beginnings

    def restore(
        self,
        grants: Sequence[Grant],
        sessions: Sequence[Session],
        reservations: Sequence[Reservation] = (),
        usage: Sequence[UsageRecord] = (),
    ) -> None:
        """Takes in what the store remembered."""
        held: dict[str, Held] = {}
        for reservation in reservations:
            self.reservations.add(reservation)
            if reservation.state is ReservationState.HELD:
                self._book_slots(reservation, 1)
                of_it = Held.of(reservation.slots)
                account = reservation.project or DEFAULT_PROJECT
                held[account] = self.quotas.change(reservation.project, of_it, 1)
        for grant in grants:
            grant.lost |= grant.reason == NODE_LOST  # release 0.1 stored only the reason
            self._put(grant)
            if grant.state is not GrantState.LIVE:
                continue
            self._book(grant, 1)
            self._jobs.add(grant)
            if grant.ordered_end:
                self._jobs.end_soon(grant.id, grant.ordered_end)
            if not grant.reservation:
                of_it = Held.of(grant.vgpus)
                held[grant.project or DEFAULT_PROJECT] = self.quotas.change(grant.project, of_it, 1)
        ended = [g for g in grants if g.state is GrantState.ENDED]
        self._ended = dict.fromkeys(g.id for g in sorted(ended, key=lambda g: g.ended or 0.0))
        for session in sessions:
            self._remember(session)
            holder = self.grants.get(session.grant_id)
            if holder and session.state is not SessionState.ENDED:
                # a store of before there were jobs names the request with the grant only
                session.request_id = session.request_id or holder.request_id
                self._by_request[session.request_id] = session.id
        self.usage.restore(usage, held)

    def begin(self, grant: Grant) -> None:
        """A grant lives from now on."""
        self._ended.pop(grant.id, None)
        self._put(grant)
        self._jobs.add(grant)
        self._book(grant, 1)
        self._count(grant, 1)
        self.changes.append(as_it_is(grant))

    def open_session(self, request: GrantRequest, grant: Grant) -> Session:
        """A session of the grant, whose client is not there yet."""
        relayed = request.is_relayed_from(grant.node)
        session = Session(
            id=self._new_id(),
            grant_id=grant.id,
            node=grant.node,
            channel="relay" if relayed else request.channel,
            host=request.host,
            program=request.program,
            client_pid=request.client_pid,
            client_uid=request.client_uid,
            domain_uuid=request.domain_uuid,
            domain_name=request.domain_name,
            started=self._clock.wall(),
            request_id=request.request_id,
            chosen=request.chosen,
            relay=request.node if relayed else "",
        )
        self.add_session(session)
        return session

    def add_session(self, session: Session) -> None:
        """A session that is new, or of which a server knows better."""
        self._remember(session)
        if session.request_id:
            self._by_request[session.request_id] = session.id
        self.changes.append(as_it_is(session))

    def recount(self, grant: Grant) -> None:
        """A job's sessions changed: their contexts are charged anew."""
        if not grant.job:
            return
        self.rebook(grant, self.charged(grant, self.live_sessions_of(grant.id)))

    def rebook(self, grant: Grant, vgpus: tuple[Vgpu, ...]) -> None:
        """A live grant's vGPUs are other ones, or of other sizes."""
        counted = Held.of(vgpus) != Held.of(grant.vgpus)
        self._book(grant, -1)
        if counted:
            self._count(grant, -1)
        grant.vgpus = vgpus
        grant.generation += 1
        self._book(grant, 1)
        if counted:
            self._count(grant, 1)
        self.changes.append(as_it_is(grant))

    def move_to_pool(self, grant: Grant) -> None:
        """What it used of a reservation it uses of the pool from now on."""
        self._book(grant, -1)
        grant.reservation = ""
        grant.generation += 1
        self._book(grant, 1)
        self._count(grant, 1)
        self.changes.append(as_it_is(grant))

    def hold_slots(self, reservation: Reservation, sign: int) -> None:
        """A reservation's vGPUs are held from now on, or no longer; its state is the caller's."""
        self._book_slots(reservation, sign)
        self._count_held(reservation.project, Held.of(reservation.slots), sign)

    def over(self, reservation: Reservation) -> None:
        """A reservation has ended; what it held is the caller's."""
        self.reservations.remove(reservation)
        self.reservations.forget_old(self._ended_kept)

    # ends

    def end_soon(self, grant: Grant, why: End) -> None:
        """It is to end, and is booked until its server says that it has; nobody joins it."""
        self._jobs.end_soon(grant.id, why)
        grant.ending, grant.ending_cause = why.text, why.cause
        grant.generation += 1
        self.changes.append(as_it_is(grant))

    def end(self, grant: Grant, why: End, *, lost: bool = False) -> None:
        """A grant ends, and its sessions with it; `lost`: as its node is silent."""
        if why.cause is EndCause.UNKNOWN and grant.ending:
            why = End(grant.ending_cause, why.text)  # its server is of 0.1, and names none
        self._book(grant, -1)
        self._count(grant, -1)
        self._jobs.remove(grant)
        grant.state, grant.ended = GrantState.ENDED, self._clock.wall()
        grant.reason, grant.cause = why.text, why.cause
        grant.lost = lost
        grant.generation += 1
        self.changes.append(as_it_is(grant))
        for session in self.sessions_of(grant.id):
            self.mark_ended(session, why)
        self.event("grant.ended", grant.id, why.text)
        self._ended[grant.id] = None
        self._forget_old()

    def end_session(self, grant: Grant, session: Session, why: End) -> None:
        """A session of a live grant ends: the grant with it, unless a job keeps it."""
        if not grant.job:
            self.end(grant, why)
            return
        self.mark_ended(session, why)
        self.event("session.ended", session.id, why.text)
        self.recount(grant)
        self.end_if_over(grant)

    def end_if_over(self, grant: Grant) -> None:
        """A job's grant ends when there is nobody for whom it would be kept."""
        if why := self._jobs.over(grant, len(self.live_sessions_of(grant.id))):
            self.end(grant, why)

    def end_unreported(self, node: str, known: set[str]) -> None:
        """Ends what a node came back without: sessions not known by their or their request's id."""
        why = End(EndCause.NOT_RUNNING, "the server does not run it any more")
        for grant in self.live_on(node):
            if grant.node != node:
                continue  # its sessions are elsewhere
            live = self.live_sessions_of(grant.id)
            gone = [s for s in live if s.id not in known and s.request_id not in known]
            for session in gone:
                self.mark_ended(session, why)
            if len(gone) == len(live) and not grant.job:
                self.end(grant, why)
            elif gone:
                self.recount(grant)

    def mark_ended(self, session: Session, why: End) -> None:
        """A session has ended; what becomes of its grant is the caller's."""
        if session.state is not SessionState.ENDED:
            self._by_request.pop(session.request_id, None)
            self._opening.pop(session.id, None)
            self._live_sessions[session.node] -= 1
            session.state = SessionState.ENDED
            session.reason, session.cause = why.text, why.cause
            session.ended = self._clock.wall()
            self.changes.append(as_it_is(session))

    def event(self, kind: str, subject: str, text: str) -> None:
        """A line of the event log."""
        self.changes.append(Event(self._clock.wall(), kind, subject, text))

    # within

    def _put(self, grant: Grant) -> None:
        if known := self.grants.get(grant.id):
            self.grants_in_order.drop(_age(known.created, known.id))
        self.grants[grant.id] = grant
        self.grants_in_order.put(_age(grant.created, grant.id), grant)

    def _remember(self, session: Session) -> None:
        if known := self.sessions.get(session.id):
            self.sessions_in_order.drop(_age(known.started, known.id))
            self._live_sessions[known.node] -= known.state is not SessionState.ENDED
        self.sessions[session.id] = session
        self.sessions_in_order.put(_age(session.started, session.id), session)
        self._live_sessions[session.node] += session.state is not SessionState.ENDED
        self._sessions_of.setdefault(session.grant_id, {})[session.id] = session
        if session.state is SessionState.OPENING:
            self._opening.setdefault(session.id, self._clock.monotonic())
        else:
            self._opening.pop(session.id, None)

    def _book(self, grant: Grant, sign: int) -> None:
        if grant.reservation:
            self.reservations.draw(grant, sign)
        elif sign > 0:
            self.allocations.book(grant)
        else:
            self.allocations.unbook(grant)
        nodes = [self._live_on[node] for node in grant.nodes]
        gpus = [self._live_by_gpu[key] for key, _ in grant.placed()]
        for keep in (*nodes, *gpus):
            if sign > 0:
                keep[grant.id] = grant
            else:
                keep.pop(grant.id, None)

    def _count(self, grant: Grant, sign: int) -> None:
        # what draws on a reservation is counted with it
        if not grant.reservation:
            self._count_held(grant.project, Held.of(grant.vgpus), sign)

    def _count_held(self, project: str, held: Held, sign: int) -> None:
        account = project or DEFAULT_PROJECT
        self.changes += self.usage.change(account, self.quotas.change(project, held, sign))

    def _book_slots(self, reservation: Reservation, sign: int) -> None:
        for slot in reservation.slots:
            vgpu = Vgpu(slot.gpu_uuid, slot.memory_mib, slot.compute_percent, slot.overhead_mib)
            booking = Grant(reservation.id, "", slot.node, (vgpu,), 0, 0.0)
            (self.allocations.book if sign > 0 else self.allocations.unbook)(booking)

    def _forget_old(self) -> None:
        # ended grants are kept for people to look at, in the order in which they ended
        while len(self._ended) > self._ended_kept:
            grant_id = next(iter(self._ended))
            del self._ended[grant_id]
            grant = self.grants.pop(grant_id)
            self.grants_in_order.drop(_age(grant.created, grant_id))
            for session_id, session in self._sessions_of.pop(grant_id, {}).items():
                del self.sessions[session_id]
                self.sessions_in_order.drop(_age(session.started, session_id))


def _age(since: float, identity: str) -> tuple[float, str]:
    return since, identity
