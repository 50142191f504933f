# SPDX-License-Identifier: Apache-2.0
"""Requests for vGPUs from the first word to the answer: admitted, queued, granted or refused.

Part of pool.Pool; its steps are called through the grant service. It decides who is refused without
waiting and whose time is over; which of those that wait is served, the scheduler decides.
"""

from __future__ import annotations

from sluice.controller.pool.admission import refusals, rights
from sluice.controller.pool.decisions import (
    Decisions,
    GrantRequest,
    Refused,
    Waiting,
    end_orders,
)
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.impossible import Impossible, Unknown
from sluice.controller.pool.model import Clock, Mode, Vgpu
from sluice.controller.pool.placement import feasibility
from sluice.controller.pool.projects.quotas import Held
from sluice.controller.pool.queue.progress import Progress
from sluice.controller.pool.queue.scheduling import Scheduler
from sluice.controller.pool.queue.waiting import NoPlaceLeft
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End


class Requests:
    """What is asked for and not answered yet."""

    def __init__(
        self,
        clock: Clock,
        ledger: GrantLedger,
        fleet: Fleet,
        jobs: Jobs,
        scheduler: Scheduler,
        progress: Progress,
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._fleet = fleet
        self._jobs = jobs
        self._scheduler = scheduler
        self._queue = scheduler.queue
        self._progress = progress

    # what is known of one

    def knows(self, request_id: str) -> bool:
        """Whether it waits, or holds a session that lives."""
        return request_id in self._queue or self._ledger.held_by(request_id) is not None

    def node_of(self, request_id: str) -> str:
        """The node that asked for what a request was given; empty if it was given nothing."""
        held = self._ledger.held_by(request_id)
        return (held.session.relay or held.grant.node) if held else ""

    def waiting(self, request: GrantRequest) -> Waiting:
        """Where a queued request stands."""
        position = self._queue.position(request.request_id)
        why = self._scheduler.why_waiting(request)
        return Waiting(position, refusals.waiting_line(request, position, len(self._queue), why))

    def why_waiting(self, request: GrantRequest) -> str:
        """In words what keeps a queued request waiting; "" where it is room alone."""
        return self._scheduler.why_waiting(request)

    def not_allowed(self, request: GrantRequest) -> Refused | None:
        """Why it may not ask for this, or may not join its job's grant."""
        if refusal := rights.not_to_ask(request, self._ledger.quotas):
            return refusal
        grant = self._jobs.grant_of(request)
        return self._scheduler.granting.not_to_join(request, grant) if grant else None

    def preview(self, request: GrantRequest) -> tuple[Vgpu, ...] | Refused:
        """The vGPUs that it would get, though perhaps not now; or why it never gets any."""
        request = self._scheduler.granting.reaching(request)
        if refusal := self._at_once(request):
            return refusal
        return self._scheduler.granting.preview(request) or self._not_now(request, 1)

    # steps

    def submit(self, request: GrantRequest) -> Decisions:
        """Decides on a request; without an answer in the result it waits in the queue.

        A request id that already holds a live grant is answered with that grant.
        """
        decisions = Decisions()
        paused = self._scheduler.paused
        if held := self._ledger.held_by(request.request_id):
            decisions.answers[request.request_id] = held
            return decisions
        if paused and request.wait_seconds == 0:
            decisions.answers[request.request_id] = Refused(CudaStatus.UNKNOWN, paused)
            return decisions
        request = self._scheduler.granting.reaching(request)
        if refusal := self._at_once(request):
            decisions.answers[request.request_id] = refusal
            self._ledger.event("request.refused", request.request_id, refusal.message)
            return decisions
        self._scheduler.enqueue(request)
        self._progress.after(decisions)
        if request.request_id not in decisions.answers and request.wait_seconds == 0:
            refusal = self._not_now(request, self._queue.position(request.request_id))
            self._scheduler.leave(request.request_id)
            decisions.answers[request.request_id] = refusal
            self._ledger.event("request.refused", request.request_id, refusal.message)
        return decisions

    def withdraw(self, request_id: str, why: End) -> Decisions:
        """The requester is gone: leaves the queue, or gives back a session not answered."""
        self._scheduler.leave(request_id)
        decisions = Decisions()
        if (held := self._ledger.held_by(request_id)) and held.grant.spans_nodes:
            if self._ledger.give_back(held, why):
                decisions.ends = end_orders(held.grant, why)
        elif held:
            self._ledger.end_session(held.grant, held.session, why)
        return self._progress.after(decisions)

    def move(self, request_id: str, position: int, who: str) -> Decisions:
        """Puts a waiting request at a position, 1 for the next. Raises Unknown, Impossible."""
        before = self._queue.position(request_id)
        try:
            if not self._queue.move(request_id, position):
                raise Unknown("waiting request", request_id)
        except NoPlaceLeft:
            raise Impossible(
                f"others were moved to just there so often that no place is left at {position}; "
                "choose another position"
            ) from None
        now = self._queue.position(request_id)
        if now != before:
            text = f"moved from place {before} to {now} by {who}"
            self._ledger.event("request.moved", request_id, text)
        return self._progress.after(Decisions())

    def refuse_overdue(self, decisions: Decisions) -> None:
        """Refuses those that have waited as long as they were to; part of a step."""
        for request in self._queue.overdue(self._clock.monotonic()):
            self._scheduler.leave(request.request_id)
            decisions.answers[request.request_id] = self._not_now(request, len(self._queue) + 1)
            self._ledger.event("request.expired", request.request_id, request.program)

    # within

    def _at_once(self, request: GrantRequest) -> Refused | None:
        """Why it is refused without waiting."""
        if refusal := refusals.malformed(request):
            return refusal
        if refusal := self.not_allowed(request):
            return refusal
        if self._jobs.grant_of(request):
            return None
        if request.mode is Mode.RESERVED:
            return self._scheduler.granting.never_reserved(request)
        if self._ledger.reservations.of(request):
            return None
        if never := self._ledger.quotas.never(request.project, Held.at_least(request)):
            return refusals.over_quota(request, never)
        return feasibility.never(request, self._fleet.capacity, across=self._fleet.share_grants)

    def _not_now(self, request: GrantRequest, position: int) -> Refused:
        why = self._scheduler.why_waiting(request)
        if self._jobs.grant_of(request) and not why:
            return refusals.no_room_for_context(request)
        return refusals.not_in_time(request, position, len(self._queue), why)
