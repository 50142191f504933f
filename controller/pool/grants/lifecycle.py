# SPDX-License-Identifier: Apache-2.0
"""What becomes of grants once they are made: sizes change, sessions and jobs end.

Part of pool.Pool; its steps follow what servers report and operators order. It promises that a
grant which is to end is booked until its server says that nothing of it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sluice.controller.pool.decisions import (
    Decisions,
    EndOrder,
    Granted,
    ResizeOrder,
    end_orders,
    session_end_orders,
)
from sluice.controller.pool.grants.grant_memory import GrantMemory
from sluice.controller.pool.grants.jobs import JobKey, Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.move_orders import MoveOrders
from sluice.controller.pool.grants.resizing import Resizing
from sluice.controller.pool.grants.suspending import Suspending
from sluice.controller.pool.grants.suspension import ReportedSuspension
from sluice.controller.pool.grants.vgpu_times import VgpuReport
from sluice.controller.pool.model import Grant, GrantState, Session, SessionState, as_it_is
from sluice.controller.pool.queue.progress import Progress
from sluice.resources.ends import End, EndCause


class GrantLifecycle:
    """Steps of grants, sessions and jobs that exist."""

    def __init__(
        self,
        ledger: GrantLedger,
        jobs: Jobs,
        resizing: Resizing,
        suspending: Suspending,
        moves: MoveOrders,
        progress: Progress,
        opening_seconds: float,
    ) -> None:
        self._ledger = ledger
        self._jobs = jobs
        self._resizing = resizing
        self._suspending = suspending
        self._moves = moves
        self._progress = progress
        self._opening_seconds = opening_seconds

    def why_over(self, grant_id: str) -> End | None:
        """Why a grant that was made has ended or is being ended; None while it is neither."""
        grant = self._ledger.grants.records[grant_id]
        return self._jobs.why_ending(grant) if self._ledger.grants.is_live(grant_id) else grant.end

    # grants

    def release(self, grant_id: str, why: End) -> Decisions:
        """A server says that nothing of the grant runs any more."""
        grant = self._ledger.grants.get(grant_id)
        if grant and grant.state is GrantState.LIVE:
            self._ledger.end(grant, why)
        return self._progress.after(Decisions())

    def end_soon(self, grant_id: str, why: End) -> Decisions:
        """The operator ends a grant: its server is told, and nobody joins it any more."""
        grant = self._ledger.grants.get(grant_id)
        if grant is None or grant.state is not GrantState.LIVE:
            return Decisions()
        self._ledger.end_soon(grant, why)
        return Decisions(ends=end_orders(grant, why))

    def not_taken(self, granted: Granted, why: End) -> Decisions:
        """A session that was granted does not begin: nobody came for it, or no node takes it."""
        grant, session = granted.grant, granted.session
        # some of its nodes may expect the client already
        withdrawn = session_end_orders(granted.sessions, why)
        if not grant.spans_nodes:
            decisions = self.session_ended(session.id, grant.id, why)
            decisions.session_ends += withdrawn
            return decisions
        decisions = Decisions()
        if grant.state is GrantState.LIVE and self._ledger.give_back(granted, why):
            decisions.ends = end_orders(grant, why)
        else:
            decisions.session_ends = withdrawn
        return self._progress.after(decisions)

    # sizes

    def begin_resize(
        self, grant_id: str, memory_mib: int, compute_percent: int
    ) -> ResizeOrder | None:
        """Resizes a grant; None: done. Else the server is to do it. Raises Impossible, Unknown."""
        return self._resizing.begin(grant_id, memory_mib, compute_percent)

    def finish_resize(self, grant_id: str, error: str, *, known: bool = True) -> Decisions:
        """The server has resized it, or says why not; not known: it must report what it runs."""
        self._resizing.finish(grant_id, error, known=known)
        return self._progress.after(Decisions())

    # suspension

    def suspend(self, grant_id: str, why: str) -> Decisions:
        """The operator has a grant suspended; it stays so until he has it resumed.

        Raises Impossible, Unknown.
        """
        decisions = Decisions()
        self._suspending.begin(grant_id, why, decisions, resumes=False)
        return self._progress.after(decisions)

    def resume(self, grant_id: str) -> Decisions:
        """It goes on as soon as there is room. Raises Impossible, Unknown."""
        self._suspending.want_back(grant_id)
        return self._progress.after(Decisions())

    def move(self, grant_id: str, gpu_uuid: str, why: str) -> Decisions:
        """The operator has a grant go on on another GPU of its node; "": any with room.

        Raises Impossible, Unknown.
        """
        decisions = Decisions()
        self._moves.move(grant_id, gpu_uuid, why, decisions)
        return self._progress.after(decisions)

    def guest_standing(self, node: str, grant_id: str, *, paused: bool) -> Decisions:
        """A server says whether the VM stands still whose sessions use a grant."""
        decisions = Decisions()
        self._suspending.guest(node, grant_id, decisions, paused=paused)
        return self._progress.after(decisions)

    def suspension(self, node: str, report: ReportedSuspension) -> Decisions:
        """A server says how what it runs for a grant stands."""
        decisions = Decisions()
        self._suspending.heard(node, report, decisions)
        return self._progress.after(decisions)

    # sessions

    def session_started(self, session_id: str, client_pid: int, channel: str) -> Decisions:
        """The client of an opening session is there."""
        decisions = Decisions()
        session = self._ledger.sessions.get(session_id)
        if session and session.state is SessionState.OPENING:
            session.state = SessionState.RUNNING
            session.client_pid = client_pid or session.client_pid
            session.channel = channel or session.channel
            self._ledger.changes.append(as_it_is(session))
            inside = f" in {session.container.name}" if session.container_id else ""
            text = f"{session.program}{inside} on {session.node}"
            self._ledger.event("session.running", session.id, text)
            if why := self._jobs.why_ending(self._ledger.grants.records[session.grant_id]):
                # its client had the key when the end was ordered, and an older server left it that
                decisions.ends.append(EndOrder(session.node, session.grant_id, why))
        elif session and session.state is SessionState.ENDED:
            # ended here while its client was on its way there
            grant = self._ledger.grants.records[session.grant_id]
            if grant.state is GrantState.ENDED:
                why = End(session.cause, session.reason)
                decisions.ends.append(EndOrder(session.node, grant.id, why))
        return decisions

    def session_connection(
        self, session_id: str, disconnected_since: float | None, channel: str = ""
    ) -> Decisions:
        """The client of a running session lost its connection (Unix time), or has another.

        `channel`: the one by which it goes now; none: as before.
        """
        session = self._ledger.sessions.get(session_id)
        if session and session.state is SessionState.RUNNING:
            session.disconnected_since = disconnected_since
            session.channel = channel or session.channel
            self._ledger.changes.append(as_it_is(session))
        return Decisions()

    def session_ended(self, session_id: str, grant_id: str, why: End, node: str = "") -> Decisions:
        """A server says that a session runs no more; naming none: nothing of the grant does.

        `node`: whose server it is.
        """
        session = self._ledger.sessions.get(session_id)
        grant = self._ledger.grants.get(grant_id)
        if session is None or session.grant_id != grant_id:
            if session_id and grant and grant.job:
                # a job's other processes there go on
                return Decisions()
            if (
                grant
                and grant.state is GrantState.LIVE
                and self._ledger.lose_part(grant, node, why)
            ):
                return self._progress.after(Decisions())
            keep = grant is not None and session_id and self._ledger.sessions.live_of(grant_id)
            return Decisions() if keep else self.release(grant_id, why)
        decisions = Decisions()
        if grant and grant.state is GrantState.LIVE:
            self._ledger.end_session(grant, session, why)
            self._end_given_up(grant, session, why, decisions)
        return self._progress.after(decisions)

    def _end_given_up(self, grant: Grant, ended: Session, why: End, decisions: Decisions) -> None:
        """Who has ended one node's session before coming to the others comes no more.

        So it is where one of the nodes cannot be reached. Of a job, others' sessions go on.
        """
        left = self._ledger.sessions.live_of(grant.id)
        if grant.job:
            left = [s for s in left if ended.request_id and s.request_id == ended.request_id]
        if not left or any(s.state is not SessionState.OPENING for s in left):
            return
        if grant.state is not GrantState.LIVE or self._jobs.is_ending(grant):
            return
        if grant.job:
            decisions.session_ends = session_end_orders(left, why)
        else:
            self._ledger.end_soon(grant, why)
            decisions.ends = end_orders(grant, why)

    def vgpu_times(self, node: str, reports: Sequence[VgpuReport]) -> None:
        """What the vGPUs of a node's grants have had of its GPUs; of others it is not believed."""
        for report in reports:
            grant = self._ledger.grants.get(report.grant_id)
            if grant is None or grant.state is not GrantState.LIVE:
                continue
            # a server numbers what it has
            places = grant.places_on(node)
            if report.number < len(places):
                numbered = replace(report, number=places[report.number])
                self._ledger.vgpu_times.take(grant, numbered)

    def memories(self, node: str, reports: Sequence[GrantMemory]) -> None:
        """Where the memory of a node's grants is; of others it is not believed."""
        for report in reports:
            grant = self._ledger.grants.get(report.grant_id)
            if grant and grant.state is GrantState.LIVE and grant.nodes == {node}:
                self._ledger.memories.take(grant, report)

    # jobs

    def job_held(self, key: JobKey, holder: str) -> None:
        """A job's launcher lives."""
        self._jobs.hold(key, holder)

    def job_released(self, key: JobKey, holder: str) -> Decisions:
        """It was seen to end."""
        self._jobs.release(key, holder)
        self._end_jobs_that_are_over()
        return self._progress.after(Decisions())

    # time

    def end_overdue(self, decisions: Decisions) -> None:
        """Ends what nobody needs any more, or never came for; part of a step."""
        self._end_jobs_that_are_over()
        self._suspending.end_overdue(decisions)
        for grant_id in self._ledger.never_opened(self._opening_seconds):
            text = f"its client did not come within {self._opening_seconds:g} s"
            never_came = End(EndCause.CLIENT_NEVER_CAME, text)
            decisions.ends += self.end_soon(grant_id, never_came).ends

    def _end_jobs_that_are_over(self) -> None:
        for grant in self._jobs.grants():
            self._ledger.end_if_over(grant)
