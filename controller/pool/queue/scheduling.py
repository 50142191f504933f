# SPDX-License-Identifier: Apache-2.0
"""Serves the queue: who gets room now, who waits for what, and who gives way.

Owned by pool.Pool; progress.Progress calls `serve` after whatever may have made room. A request
that does not fit holds the GPUs that it would fit on if they were empty against those behind it, so
that nobody behind it delays it; requests that cannot use those GPUs pass. One that only its
project's quota keeps waiting holds nothing. Room that was made by ending others' work is claimed
for the request that it was made for (claims), whatever its place in the queue; what becomes of a
request in its turn is granting's.
"""

from __future__ import annotations

from collections import deque

from sluice.controller.pool.decisions import Decisions, Granted, GrantRequest, Refused
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.suspending import Suspending
from sluice.controller.pool.grants.suspension import SuspensionState
from sluice.controller.pool.model import (
    Clock,
    GpuKey,
    Grant,
    IdFactory,
    Mode,
)
from sluice.controller.pool.placement.policies import PlacementPolicy
from sluice.controller.pool.projects.quotas import Held
from sluice.controller.pool.queue.claims import Claims
from sluice.controller.pool.queue.granting import Blocked, Granting
from sluice.controller.pool.queue.preemption import Yield
from sluice.controller.pool.queue.waiting import WaitingQueue
from sluice.controller.pool.reservations.reserving import Reserving


class Scheduler:
    """The queue, and in which order it is served."""

    def __init__(
        self,
        clock: Clock,
        new_id: IdFactory,
        ledger: GrantLedger,
        fleet: Fleet,
        jobs: Jobs,
        policy: PlacementPolicy,
        *,
        ageing_seconds: float,
        job_sessions: int,
        over_quota_waits: bool,
        suspending: Suspending,
        give_way: Yield,
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._fleet = fleet
        self._jobs = jobs
        self.reserving = Reserving(clock, ledger, fleet, policy)
        self.granting = Granting(
            clock,
            new_id,
            ledger,
            fleet,
            jobs,
            policy,
            self.reserving,
            job_sessions=job_sessions,
            over_quota_waits=over_quota_waits,
        )
        self._suspending = suspending
        self.claims = Claims(clock, ledger, fleet, jobs, self.granting, give_way)
        self.queue = WaitingQueue(ageing_seconds)
        self.paused = ""  # why nothing is granted for now; what waits goes on waiting

    def enqueue(self, request: GrantRequest) -> None:
        """Lets a request wait from now on."""
        now = self._clock.monotonic()
        wait = max(0.0, request.wait_seconds - request.waited_seconds)
        self.queue.add(request, None if request.wait_seconds < 0 else now + wait, now)

    def leave(self, request_id: str) -> None:
        """It waits no more."""
        self.queue.remove(request_id)
        self.claims.drop(request_id)

    def why_waiting(self, request: GrantRequest) -> str:
        """In words what keeps it waiting; "" where it is room alone."""
        if self.paused:
            return self.paused
        if claim := self.claims.of(request.request_id):
            return f"{len(claim.waits_for)} grant(s) are being ended for it"
        if request.mode is Mode.RESERVED:
            return "its reservation is in use"
        if grant := self._jobs.grant_of(request):
            return self.granting.why_not_joined(grant)
        if self._ledger.reservations.of(request):
            return ""
        return str(self._ledger.quotas.exceeded(request.project, Held.at_least(request)) or "")

    def serve(self, decisions: Decisions) -> None:
        """Grants what fits, in order, and has others give way for whom may ask that."""
        if self.paused:
            return
        for claim in self.claims.every():
            if answered := self.claims.settle(claim, self.queue.get(claim.request_id)):
                self._answer(*answered, decisions)
        held: set[GpuKey] = set()
        everything, reservations = len(self._fleet.gpus), self._ledger.reservations
        suspended = deque(self._suspending.in_order())
        for entry in self.queue.walk():
            if entry.request.request_id in self.claims:
                continue
            while suspended and suspended[0][0] <= entry.order[:2]:
                self._resume(suspended.popleft()[1], held, decisions)
            if len(held) >= everything and not self._has_its_own(entry.request):
                continue
            outcome = self.granting.attempt(entry.request, held)
            if outcome is Blocked.BY_ROOM:
                held |= self._fleet.reach(entry.alike)
            elif outcome is Blocked.BY_JOB:
                held.update(self._gpus_of_job(entry.request))
            elif not isinstance(outcome, Blocked):
                self._answer(entry.request, outcome, decisions)
            if len(held) >= everything and self._jobs.are_none and reservations.are_none:
                break
        for _, grant in suspended:
            self._resume(grant, held, decisions)
        for entry in self.queue.preempting():
            if entry.request.request_id not in self.claims:
                self.claims.preempt(entry, decisions)

    def _has_its_own(self, request: GrantRequest) -> bool:
        """Whether what others wait for concerns it not: a reservation's owner, a job's process."""
        reservations = self._ledger.reservations
        return bool((request.job and self._jobs.grant_of(request)) or reservations.of(request))

    def _resume(self, grant: Grant, held: set[GpuKey], decisions: Decisions) -> None:
        """A suspended grant in its turn: it comes back, or holds its GPUs against those behind."""
        held.update(self._suspending.attempt(grant, held, decisions))

    def _answer(
        self, request: GrantRequest, answer: Granted | Refused | None, decisions: Decisions
    ) -> None:
        self.leave(request.request_id)
        if answer:
            decisions.answers[request.request_id] = answer

    def _gpus_of_job(self, request: GrantRequest) -> list[GpuKey]:
        """What a process that waits to join its job holds against those behind it.

        Nothing where the job is suspended: that waits in its own turn, for these GPUs too, and
        until it is to come back they are others'.
        """
        grant = self._jobs.grant_of(request)
        if grant is None or grant.suspension is not SuspensionState.NONE:
            return []
        return [key for key, _ in grant.placed()]
