# SPDX-License-Identifier: Apache-2.0
"""Claims: GPUs on which others give way to a request, kept for it until it has them.

Owned by scheduling.Scheduler. It promises that room which was made by ending others' work goes to
the request that it was made for, whatever its place in the queue, unless it leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.controller.pool.decisions import (
    Decisions,
    Granted,
    GrantRequest,
    Refused,
)
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.gpus.slices import FreeCapacity, fits
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.suspension import SuspensionState
from sluice.controller.pool.model import (
    Clock,
    GpuKey,
    Grant,
    GrantState,
    Mode,
)
from sluice.controller.pool.projects.quotas import Held
from sluice.controller.pool.queue.granting import Granting, Placed
from sluice.controller.pool.queue.preemption import (
    NO_LOSS,
    Candidate,
    Claim,
    Loss,
    Yield,
    booking_of,
    freed_by,
    make_plan,
    memory_freed_by,
)
from sluice.controller.pool.queue.waiting import Entry
from sluice.resources.ends import End, EndCause

Answer = Granted | Refused
RUNNING = (SuspensionState.NONE, SuspensionState.RESUMING)


class Claims:
    """Requests that others give way to."""

    def __init__(
        self,
        clock: Clock,
        ledger: GrantLedger,
        fleet: Fleet,
        jobs: Jobs,
        granting: Granting,
        give_way: Yield,
    ) -> None:
        self._clock = clock
        self._ledger = ledger
        self._fleet = fleet
        self._jobs = jobs
        self._granting = granting
        self._yield = give_way
        self._claims: dict[str, Claim] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._claims

    def of(self, request_id: str) -> Claim | None:
        """What is being made free for a request."""
        return self._claims.get(request_id)

    def every(self) -> list[Claim]:
        """All of them, oldest first."""
        return list(self._claims.values())

    def preempt(self, entry: Entry, decisions: Decisions) -> None:
        """Has others give way to a request that may ask for that, if it helps."""
        request = entry.request
        if self._jobs.grant_of(request) or request.mode is Mode.RESERVED:
            return
        if self._ledger.quotas.exceeded(request.project, Held.at_least(request)):
            return
        reach = self._fleet.reach(entry.alike)
        gpus = [self._fleet.gpus[key] for key in reach]
        capacities = [self._fleet.capacity_of(gpu) for gpu in gpus if self._fleet.is_open(gpu)]
        plan = make_plan(request, capacities, self._candidates(request, capacities))
        if plan is None:
            return
        claim = Claim(request.request_id, booking_of(request, plan.capacities), plan.capacities)
        self._ledger.allocations.book(claim.booking)
        self._claims[request.request_id] = claim
        for victim in plan.victims:
            grant = victim.grant
            claim.waits_for.add(grant.id)
            if self._gives_way(grant):
                continue  # it was told to already, perhaps by a controller before this one
            text = (
                f"preempted: request {request.request_id} of priority {request.priority} "
                f"(project {request.project}) takes the room of priority {grant.priority}"
            )
            self._yield.ask(grant, End(EndCause.PREEMPTED, text), decisions)
            self._ledger.event("grant.preempted", grant.id, text)
        text = f"{len(plan.victims)} grant(s) give way on node {claim.booking.node}"
        self._ledger.event("request.preempts", request.request_id, text)

    def settle(self, claim: Claim, entry: Entry | None) -> tuple[GrantRequest, Answer] | None:
        """What the request is answered, where its room is there by now, or other room is."""
        if entry is None or self._jobs.grant_of(entry.request) or self._jobs.foreign(entry.request):
            # it has left, or its job got a grant meanwhile: it joins, or is refused, in its turn
            self.drop(claim.request_id)
            return None
        self._ledger.allocations.unbook(claim.booking)
        waits_for = [self._ledger.grants.records.get(g) for g in claim.waits_for]
        live = [g for g in waits_for if g and g.state is GrantState.LIVE]
        if any(g.suspension in RUNNING and not self._jobs.is_ending(g) for g in live):
            # it could not be suspended: a new plan is made, without it if that can be
            del self._claims[claim.request_id]
            return None
        claim.waits_for = {
            g.id
            for g in live
            if self._gives_way(g) or g.suspension is not SuspensionState.SUSPENDED
        }
        capacities = self._claimed(claim)
        if capacities and all(fits(entry.request, capacity) for capacity in capacities):
            found: Placed | None = Placed(entry.request, capacities)
        else:
            # room elsewhere will do as well
            found = self._granting.place(entry.request, set())
        if found and not self._granting.over_quota(found):
            del self._claims[claim.request_id]
            return entry.request, self._granting.grant(found)
        if capacities and claim.waits_for:
            self._ledger.allocations.book(claim.booking)
        else:
            # a GPU has gone, or something else was found running there: a new plan is made
            del self._claims[claim.request_id]
        return None

    def drop(self, request_id: str) -> None:
        """The request wants it no more."""
        if claim := self._claims.pop(request_id, None):
            self._ledger.allocations.unbook(claim.booking)

    def on_gpu(self, key: GpuKey) -> tuple[int, int]:
        """MiB and percent of a GPU that are booked for requests which do not have them yet."""
        frees = [freed_by(claim.booking).get(key, (0, 0)) for claim in self._claims.values()]
        return sum(mib for mib, _ in frees), sum(percent for _, percent in frees)

    def _candidates(
        self, request: GrantRequest, capacities: Sequence[FreeCapacity]
    ) -> list[Candidate]:
        """Whom the request may have ended: its own reservation's users free nothing."""
        grants = {
            g.id: g
            for capacity in capacities
            for g in self._ledger.grants.live_on_gpu(capacity.gpu.key)
        }
        giving_way = [g for g in grants.values() if self._gives_way(g) and not g.reservation]
        lower = [
            grant
            for grant in grants.values()
            if grant.priority < request.priority
            and not grant.reservation
            and not self._gives_way(grant)
            and grant.suspension is not SuspensionState.RESUMING
        ]
        lowest = min((grant.priority for grant in lower), default=0)
        return [self._candidate(grant, NO_LOSS) for grant in giving_way] + [
            self._candidate(grant, self._loss(grant, lowest)) for grant in lower
        ]

    def _gives_way(self, grant: Grant) -> bool:
        """Whether it is being ended or suspended already, or is out and keeps its place yet."""
        suspends = grant.suspension is SuspensionState.SUSPENDING or grant.is_undecided
        return self._jobs.is_ending(grant) or suspends

    def _loss(self, grant: Grant, lowest: int) -> Loss:
        sessions = len(self._ledger.sessions.live_of(grant.id))
        return Loss(
            sessions,
            grant.priority - lowest,
            max(0.0, self._clock.wall() - grant.created),
            sum(vgpu.memory_mib for vgpu in grant.vgpus),
            0 if self._yield.spares(grant) else sessions,
        )

    def _candidate(self, grant: Grant, loss: Loss) -> Candidate:
        suspends = not self._jobs.is_ending(grant) and (
            self._gives_way(grant) or self._yield.spares(grant)
        )
        frees = memory_freed_by(grant) if suspends else freed_by(grant)
        return Candidate(grant, loss, frees, stays=suspends)

    def _claimed(self, claim: Claim) -> list[FreeCapacity]:
        gpus = [self._fleet.gpus.get(capacity.gpu.key) for capacity in claim.capacities]
        capacities = [
            self._fleet.capacity_of(gpu) for gpu in gpus if gpu and self._fleet.is_open(gpu)
        ]
        return capacities if len(capacities) == len(claim.capacities) else []
