# SPDX-License-Identifier: Apache-2.0
"""Grants and their sessions: begun, ended, and charged to their GPUs; every change is noted.

Owned by pool.Pool, whose parts decide what is done here. The records are grant_table's and
session_table's, the accounts bookings'. It promises that a live grant is booked exactly once, with
a context for each session that has one there, and that what must be stored is in `changes`, in
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sluice.controller.pool.decisions import Granted, GrantRequest
from sluice.controller.pool.grants.bookings import Bookings
from sluice.controller.pool.grants.grant_memory import GrantMemories
from sluice.controller.pool.grants.grant_table import GrantTable
from sluice.controller.pool.grants.jobs import Jobs, with_contexts
from sluice.controller.pool.grants.node_parts import parts_of
from sluice.controller.pool.grants.session_table import SessionTable
from sluice.controller.pool.grants.vgpu_times import VgpuTimes
from sluice.controller.pool.model import (
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
    Session,
    SessionState,
    Vgpu,
    as_it_is,
    known,
)
from sluice.controller.pool.projects.quotas import Held
from sluice.controller.pool.usage_records import UsageRecord, UsageShare
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
        self._bookings = Bookings(clock)
        self.grants = GrantTable(ended_kept)
        self.sessions = SessionTable(clock)
        self.allocations = self._bookings.allocations
        self.places = self._bookings.places
        self.reservations = self._bookings.reservations
        self.quotas = self._bookings.quotas
        self.usage = self._bookings.usage
        self.shares = self._bookings.shares
        self.vgpu_times = VgpuTimes(self._bookings.measured)
        self.memories = GrantMemories()
        self.changes: list[Change] = []

    # what there is

    def held_by(self, request_id: str) -> Granted | None:
        """What a request was granted that still lives."""
        session = self.sessions.held_by(request_id)
        if session is None:
            return None
        grant = self.grants.records[session.grant_id]
        if not grant.spans_nodes:
            return Granted(grant, session)
        # as they were opened: a process of a job may number its vGPUs otherwise than the grant
        own = [s for s in self.sessions.live_of(grant.id) if s.request_id == session.request_id]
        first, *others = own if grant.job else sorted(own, key=lambda s: s.chosen)
        return Granted(grant, first, tuple(others))

    def charged(self, grant: Grant, sessions: Sequence[Session]) -> tuple[Vgpu, ...]:
        """The grant's vGPUs with what these sessions' contexts take."""
        gpus = [self._gpus.get(key) for key, _ in grant.placed()]
        return with_contexts(grant, sessions, [g.context_overhead_mib if g else 0 for g in gpus])

    def never_opened(self, seconds: float) -> list[str]:
        """The live grants whose sessions' clients have not come for so long, each of them once."""
        return [
            session.grant_id
            for session in self.sessions.take_unopened(seconds)
            if self.grants.is_live(session.grant_id)
            and not self.grants.records[session.grant_id].job
        ]

    # beginnings

    def restore(
        self,
        grants: Sequence[Grant],
        sessions: Sequence[Session],
        reservations: Sequence[Reservation] = (),
        usage: Sequence[UsageRecord] = (),
        shares: Sequence[UsageShare] = (),
    ) -> None:
        """Takes in what the store remembered."""
        for grant in grants:
            grant.lost |= grant.reason == NODE_LOST  # release 0.1 stored only the reason
            self.grants.put(grant)
        live = [grant for grant in grants if grant.state is GrantState.LIVE]
        for grant in live:
            self.grants.place(grant)
        for grant in sorted(live, key=lambda g: g.created, reverse=True):
            self._jobs.add(grant)
            if grant.ordered_end:
                self._jobs.end_soon(grant.id, grant.ordered_end)
        ended = [grant for grant in grants if grant.state is GrantState.ENDED]
        for grant in sorted(ended, key=lambda g: g.ended or 0.0):
            self.grants.put_ended(grant)
        for session in sessions:
            self.sessions.put(session)
            holder = self.grants.get(session.grant_id)
            if holder and session.state is not SessionState.ENDED:
                # a store of before there were jobs names the request with the grant only
                session.request_id = session.request_id or holder.request_id
                self.sessions.put_request(session)
        self._bookings.restore(live, reservations, usage, shares)

    def begin(self, grant: Grant) -> None:
        """A grant lives from now on."""
        self.grants.put(grant)
        self._jobs.add(grant)
        self._book(grant)
        self.changes += self._bookings.count(grant, 1)
        self.changes.append(as_it_is(grant))

    def open_sessions(self, request: GrantRequest, grant: Grant) -> Granted:
        """The sessions of a process that is to use the grant: one on each node that it uses."""
        if not grant.spans_nodes:
            return Granted(grant, self.open_session(request, grant))
        first, *others = (
            self.open_session(replace(request, chosen=places), grant, node)
            for node, places in parts_of(grant, request.chosen)
        )
        return Granted(grant, first, tuple(others))

    def open_session(self, request: GrantRequest, grant: Grant, node: str = "") -> Session:
        """A session of the grant on its own node, or another; its client is not there yet."""
        relayed = request.is_relayed_from(grant.node)
        session = Session(
            id=self._new_id(),
            grant_id=grant.id,
            node=node or grant.node,
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
            **request.container.fields,
        )
        self.add_session(session)
        return session

    def add_session(self, session: Session) -> None:
        """A session that is new, or of which a server knows better."""
        self.sessions.put(session)
        self.sessions.put_request(session)
        self.changes.append(as_it_is(session))

    def recount(self, grant: Grant) -> None:
        """A job's sessions changed: their contexts are charged anew."""
        if not grant.job:
            return
        vgpus = self.charged(grant, self.sessions.live_of(grant.id))
        if (
            grant.contexts and grant.contexts.are_off
        ):  # they come back when there is room, as its memory does
            least = zip(vgpus, grant.vgpus, strict=True)
            vgpus = tuple(
                replace(full, overhead_mib=min(full.overhead_mib, now.overhead_mib))
                for full, now in least
            )
        self.rebook(grant, vgpus)

    def rebook(self, grant: Grant, vgpus: tuple[Vgpu, ...]) -> None:
        """A live grant's vGPUs are other ones, or of other sizes."""
        counted = Held.of(known(vgpus)) != Held.of(grant.known_vgpus)
        self._unbook(grant)
        if counted:
            self.changes += self._bookings.count(grant, -1)
        grant.vgpus = vgpus
        grant.generation += 1
        self._book(grant)
        if counted:
            self.changes += self._bookings.count(grant, 1)
        self.changes.append(as_it_is(grant))

    def move_to_pool(self, grant: Grant, whole: str = "") -> None:
        """What it used of a reservation it uses of the pool from now on, or of what that was of."""
        self._unbook(grant)
        grant.reservation = whole
        grant.generation += 1
        self._book(grant)
        self.changes += self._bookings.count(grant, 1)
        self.changes.append(as_it_is(grant))

    def hold_slots(self, reservation: Reservation, sign: int) -> None:
        """A reservation's vGPUs are held from now on, or no longer; its state is the caller's."""
        self._bookings.book_slots(reservation, sign)
        self.changes += self._bookings.count_slots(reservation, sign)

    def over(self, reservation: Reservation) -> None:
        """A reservation has ended; what it held is the caller's."""
        self.reservations.remove(reservation)
        self.reservations.forget_old(self._ended_kept)

    # ends

    def end_soon(self, grant: Grant, why: End) -> None:
        """It is to end, and is booked until its server says that it has; nobody joins it."""
        self._jobs.end_soon(grant.id, why)
        self.places.drop(grant.id)  # it goes nowhere any more
        grant.ending, grant.ending_cause = why.text, why.cause
        grant.generation += 1
        self.changes.append(as_it_is(grant))

    def end(self, grant: Grant, why: End, *, lost: bool = False) -> None:
        """A grant ends, and its sessions with it; `lost`: as its node is silent."""
        if why.cause is EndCause.UNKNOWN and grant.ending:
            why = End(grant.ending_cause, why.text)  # its server is of 0.1, and names none
        self._unbook(grant)
        self.places.drop(grant.id)
        self.changes += self._bookings.count(grant, -1)
        self.vgpu_times.forget(grant.id)
        self.memories.forget(grant.id)
        self._jobs.remove(grant)
        grant.state, grant.ended = GrantState.ENDED, self._clock.wall()
        grant.reason, grant.cause = why.text, why.cause
        grant.lost = lost
        grant.generation += 1
        self.changes.append(as_it_is(grant))
        for session in self.sessions.of(grant.id):
            self.mark_ended(session, why)
        self.event("grant.ended", grant.id, why.text)
        self.grants.put_ended(grant)
        for forgotten in self.grants.forget_old():
            self.sessions.forget_of(forgotten.id)

    def end_session(self, grant: Grant, session: Session, why: End) -> None:
        """A session of a live grant ends: the grant with it, unless a job keeps it."""
        if not grant.job and not self._runs_elsewhere(grant, session.node):
            self.end(grant, why)
            return
        if session.state is not SessionState.ENDED:
            self.mark_ended(session, why)
            self.event("session.ended", session.id, why.text)
        if grant.job:
            self.recount(grant)
            self.end_if_over(grant)

    def give_back(self, granted: Granted, why: End) -> bool:
        """A process does not begin; True: nothing else used its grant, which has ended with it.

        Where a node did not take it, its next try is to be placed anew, though its job is held.
        """
        grant, own = granted.grant, {session.id for session in granted.sessions}
        is_used = not own.issuperset(s.id for s in self.sessions.live_of(grant.id))
        is_held = why.cause is EndCause.WITHDRAWN and self._jobs.is_held(grant)
        if not grant.job or not (is_used or is_held):
            self.end(grant, why)
            return True
        for session in granted.sessions:
            self.mark_ended(session, why)
            self.event("session.ended", session.id, why.text)
        self.recount(grant)
        return False

    def lose_part(self, grant: Grant, node: str, why: End) -> bool:
        """A node no longer runs its part of a grant; False: the grant has no other that lives."""
        if not self._runs_elsewhere(grant, node):
            return False
        for session in self.sessions.live_of(grant.id):
            if session.node == node:
                self.mark_ended(session, why)
                self.event("session.ended", session.id, why.text)
        self.recount(grant)
        return True

    def _runs_elsewhere(self, grant: Grant, node: str) -> bool:
        return grant.spans_nodes and any(s.node != node for s in self.sessions.live_of(grant.id))

    def end_if_over(self, grant: Grant) -> None:
        """A job's grant ends when there is nobody for whom it would be kept."""
        if why := self._jobs.over(grant, len(self.sessions.live_of(grant.id))):
            self.end(grant, why)

    def end_unreported(self, node: str, known: set[str]) -> None:
        """Ends what a node came back without: sessions not known by their or their request's id."""
        why = End(EndCause.NOT_RUNNING, "the server does not run it any more")
        for grant in self.grants.live_on(node):
            live = self.sessions.live_of(grant.id)
            gone = [
                s
                for s in live
                if s.node == node and s.id not in known and s.request_id not in known
            ]
            for session in gone:
                self.mark_ended(session, why)
            if len(gone) == len(live) and not grant.job:
                self.end(grant, why)
            elif gone and grant.job:
                self.recount(grant)

    def mark_ended(self, session: Session, why: End) -> None:
        """A session has ended; what becomes of its grant is the caller's."""
        if session.state is not SessionState.ENDED:
            self.sessions.leave(session)
            session.state = SessionState.ENDED
            session.reason, session.cause = why.text, why.cause
            session.ended = self._clock.wall()
            self.changes.append(as_it_is(session))

    def event(self, kind: str, subject: str, text: str) -> None:
        """A line of the event log."""
        self.changes.append(Event(self._clock.wall(), kind, subject, text))

    # within

    def _book(self, grant: Grant) -> None:
        self._bookings.book(grant)
        self.grants.place(grant)

    def _unbook(self, grant: Grant) -> None:
        self._bookings.unbook(grant)
        self.grants.displace(grant)
