# SPDX-License-Identifier: Apache-2.0
"""Grants and their sessions: begun, ended, and charged to their GPUs; every change is noted.

Owned by pool.Pool, which decides what is done here. It promises that a live grant is booked exactly
once, with a context for each session that has one there, and that what must be stored is in
`changes`, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sluice.controller.pool.jobs import Jobs, with_contexts
from sluice.controller.pool.ledger import Ledger
from sluice.controller.pool.model import (
    Change,
    Clock,
    Event,
    Gpu,
    GpuKey,
    Grant,
    Granted,
    GrantRequest,
    GrantState,
    IdFactory,
    Session,
    SessionState,
    Vgpu,
)


class Books:
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
        self.ledger = Ledger()
        self.changes: list[Change] = []
        self.grants: dict[str, Grant] = {}
        self.sessions: dict[str, Session] = {}
        self._sessions_of: dict[str, dict[str, Session]] = {}  # by grant, then by their own id
        self._ended: dict[str, None] = {}  # ids of ended grants, the first to end first

    # what there is

    def sessions_of(self, grant_id: str) -> list[Session]:
        """Every session of a grant, ended ones too."""
        return list(self._sessions_of.get(grant_id, {}).values())

    def live_sessions_of(self, grant_id: str) -> list[Session]:
        """Those that have not ended."""
        return [s for s in self.sessions_of(grant_id) if s.state is not SessionState.ENDED]

    def live_on(self, node: str) -> list[Grant]:
        """The live grants that have a vGPU on a node."""
        return [g for g in self.grants.values() if g.state is GrantState.LIVE and node in g.nodes]

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

    # beginnings

    def restore(self, grants: Sequence[Grant], sessions: Sequence[Session]) -> None:
        """Takes in what the store remembered."""
        for grant in grants:
            self.grants[grant.id] = grant
            if grant.state is GrantState.LIVE:
                self.ledger.book(grant)
                self._jobs.add(grant)
        for grant in sorted(grants, key=lambda grant: grant.ended or 0.0):
            if grant.state is GrantState.ENDED:
                self._ended[grant.id] = None
        for session in sessions:
            self._enter(session)
            holder = self.grants.get(session.grant_id)
            if holder and session.state is not SessionState.ENDED:
                # a store of before there were jobs names the request with the grant only
                session.request_id = session.request_id or holder.request_id
                self._by_request[session.request_id] = session.id

    def begin(self, grant: Grant) -> None:
        """A grant lives from now on."""
        self.grants[grant.id] = grant
        self._ended.pop(grant.id, None)
        self._jobs.add(grant)
        self.ledger.book(grant)
        self.changes.append(replace(grant))

    def open_session(self, request: GrantRequest, grant: Grant) -> Session:
        """A session of the grant, whose client is not there yet."""
        session = Session(
            id=self._new_id(),
            grant_id=grant.id,
            node=grant.node,
            channel=request.channel,
            host=request.host,
            program=request.program,
            client_pid=request.client_pid,
            client_uid=request.client_uid,
            domain_uuid=request.domain_uuid,
            domain_name=request.domain_name,
            started=self._clock.wall(),
            request_id=request.request_id,
            chosen=request.chosen,
        )
        self.add_session(session)
        return session

    def add_session(self, session: Session) -> None:
        """A session that is new, or of which a server knows better."""
        self._enter(session)
        if session.request_id:
            self._by_request[session.request_id] = session.id
        self.changes.append(replace(session))

    def recount(self, grant: Grant) -> None:
        """A job's sessions changed: their contexts are charged anew."""
        if not grant.job:
            return
        vgpus = self.charged(grant, self.live_sessions_of(grant.id))
        self.ledger.unbook(grant)
        grant.vgpus = vgpus
        grant.generation += 1
        self.ledger.book(grant)
        self.changes.append(replace(grant))

    # ends

    def end(self, grant: Grant, reason: str) -> None:
        """A grant ends, and its sessions with it."""
        self.ledger.unbook(grant)
        self._jobs.remove(grant)
        grant.state, grant.ended, grant.reason = GrantState.ENDED, self._clock.wall(), reason
        grant.generation += 1
        self.changes.append(replace(grant))
        for session in self.sessions_of(grant.id):
            self.mark_ended(session, reason)
        self.event("grant.ended", grant.id, reason)
        self._ended[grant.id] = None
        self._forget_old()

    def end_session(self, grant: Grant, session: Session, reason: str) -> None:
        """A session of a live grant ends: the grant with it, unless a job keeps it."""
        if not grant.job:
            self.end(grant, reason)
            return
        self.mark_ended(session, reason)
        self.event("session.ended", session.id, reason)
        self.recount(grant)
        self.end_if_over(grant)

    def end_if_over(self, grant: Grant) -> None:
        """A job's grant ends when there is nobody for whom it would be kept."""
        if reason := self._jobs.over(grant, len(self.live_sessions_of(grant.id))):
            self.end(grant, reason)

    def end_unreported(self, node: str, known: set[str]) -> None:
        """Ends what a node came back without: sessions not known by their or their request's id."""
        reason = "the server does not run it any more"
        for grant in self.live_on(node):
            if grant.node != node:
                continue  # its sessions are elsewhere
            live = self.live_sessions_of(grant.id)
            gone = [s for s in live if s.id not in known and s.request_id not in known]
            for session in gone:
                self.mark_ended(session, reason)
            if len(gone) == len(live) and not grant.job:
                self.end(grant, reason)
            elif gone:
                self.recount(grant)

    def mark_ended(self, session: Session, reason: str) -> None:
        """A session has ended; what becomes of its grant is the caller's."""
        if session.state is not SessionState.ENDED:
            self._by_request.pop(session.request_id, None)
            session.state, session.reason = SessionState.ENDED, reason
            session.ended = self._clock.wall()
            self.changes.append(replace(session))

    def event(self, kind: str, subject: str, text: str) -> None:
        """A line of the event log."""
        self.changes.append(Event(self._clock.wall(), kind, subject, text))

    def _enter(self, session: Session) -> None:
        self.sessions[session.id] = session
        self._sessions_of.setdefault(session.grant_id, {})[session.id] = session

    def _forget_old(self) -> None:
        # ended grants are kept for people to look at, in the order in which they ended
        while len(self._ended) > self._ended_kept:
            grant_id = next(iter(self._ended))
            del self._ended[grant_id]
            del self.grants[grant_id]
            for session_id in self._sessions_of.pop(grant_id, ()):
                del self.sessions[session_id]
