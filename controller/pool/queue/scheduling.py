# SPDX-License-Identifier: Apache-2.0
"""Serves the queue: who gets room now, who waits for what, and who gives way.

Owned by pool.Pool; progress.Progress calls `serve` after whatever may have made room. A request
that does not fit holds the GPUs that it would fit on if they were empty against those behind it, so
that nobody behind it delays it; requests that cannot use those GPUs pass. One that only its
project's quota keeps waiting holds nothing. Room that was made by ending others' work is claimed
for the request that it was made for, whatever its place in the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from sluice.controller.pool.admission import refusals, rights
from sluice.controller.pool.decisions import Decisions, EndOrder, Granted, GrantRequest, Refused
from sluice.controller.pool.gpus.capacity import GpuCapacity
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.gpus.slices import FreeCapacity, fits
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.model import (
    Clock,
    GpuKey,
    Grant,
    IdFactory,
    Mode,
    NodeState,
    Reservation,
    ReservationState,
    Session,
    Vgpu,
)
from sluice.controller.pool.placement import feasibility, placement
from sluice.controller.pool.placement.policies import PlacementPolicy
from sluice.controller.pool.projects.quotas import Held
from sluice.controller.pool.queue.preemption import (
    Candidate,
    Claim,
    Loss,
    Yield,
    booking_of,
    freed_by,
    make_plan,
)
from sluice.controller.pool.queue.waiting import Entry, WaitingQueue
from sluice.controller.pool.reservations.reserving import Reserving
from sluice.resources.ends import End, EndCause


class Ending:
    """The Yield of a pool that cannot suspend: the work ends with a CUDA error."""

    def __init__(self, ledger: GrantLedger) -> None:
        self._ledger = ledger

    def ask(self, grant: Grant, why: End) -> list[EndOrder]:
        """Has the server end it; nobody joins it any more."""
        self._ledger.end_soon(grant, why)
        return [EndOrder(grant.node, grant.id, why)]


class _Blocked(Enum):
    BY_ROOM = "its GPUs are full"
    BY_RESERVATION = "its reservation is in use"
    BY_QUOTA = "its project holds what it may"
    BY_JOB = "its job's GPUs have no room for another context"


@dataclass(frozen=True, slots=True)
class _Placement:
    request: GrantRequest  # with sizes filled in where a reservation gives them
    capacities: Sequence[GpuCapacity] | Sequence[FreeCapacity]
    reservation: str = ""

    @property
    def vgpus(self) -> tuple[Vgpu, ...]:
        """What the request gets there."""
        return placement.vgpus_on(self.request, self.capacities)


def _sized(request: GrantRequest, reservation: Reservation) -> GrantRequest:
    """The request with the reservation's sizes where it leaves them open."""
    return replace(
        request,
        memory_mib=request.memory_mib or reservation.memory_mib,
        compute_percent=request.compute_percent or reservation.compute_percent,
    )


class Scheduler:
    """The queue and what is done about it."""

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
        across: bool,
    ) -> None:
        self._clock = clock
        self._new_id = new_id
        self._ledger = ledger
        self._fleet = fleet
        self._jobs = jobs
        self._policy = policy
        self._job_sessions = job_sessions
        self._across = across
        self._over_quota_waits = over_quota_waits
        self._claims: dict[str, Claim] = {}
        self._yield: Yield = Ending(ledger)
        self.reserving = Reserving(clock, ledger, fleet, policy)
        self.queue = WaitingQueue(ageing_seconds)
        self.paused = ""  # why nothing is granted for now; what waits goes on waiting

    # the queue

    def enqueue(self, request: GrantRequest) -> None:
        """Lets a request wait from now on."""
        now = self._clock.monotonic()
        wait = max(0.0, request.wait_seconds - request.waited_seconds)
        self.queue.add(request, None if request.wait_seconds < 0 else now + wait, now)

    def leave(self, request_id: str) -> None:
        """It waits no more."""
        self.queue.remove(request_id)
        self._drop_claim(request_id)

    def why_waiting(self, request: GrantRequest) -> str:
        """In words what keeps it waiting; "" where it is room alone."""
        if self.paused:
            return self.paused
        if claim := self._claims.get(request.request_id):
            return f"{len(claim.waits_for)} grant(s) are being ended for it"
        if request.mode is Mode.RESERVED:
            return "its reservation is in use"
        if self._jobs.grant_of(request) or self._ledger.reservations.of(request):
            return ""
        return str(self._ledger.quotas.exceeded(request.project, Held.at_least(request)) or "")

    def serve(self, decisions: Decisions) -> None:
        """Grants what fits, in order, and has others give way for whom may ask that."""
        if self.paused:
            return
        for claim in list(self._claims.values()):
            self._serve_claim(claim, decisions)
        held: set[GpuKey] = set()
        everything = len(self._fleet.gpus)
        for entry in self.queue.walk():
            if entry.request.request_id in self._claims:
                continue
            outcome = self._try(entry.request, held)
            if outcome is _Blocked.BY_ROOM:
                held |= self._fleet.reach(entry.alike)
            elif outcome is _Blocked.BY_JOB:
                held.update(self._gpus_of_job(entry.request))
            elif not isinstance(outcome, _Blocked):
                self._answer(entry.request, outcome, decisions)
            if len(held) >= everything:
                break
        for entry in self.queue.preempting():
            if entry.request.request_id not in self._claims:
                self._preempt(entry, decisions)

    def _answer(
        self, request: GrantRequest, answer: Granted | Refused | None, decisions: Decisions
    ) -> None:
        self.leave(request.request_id)
        if answer:
            decisions.answers[request.request_id] = answer

    def never_reserved(self, request: GrantRequest) -> Refused | None:
        """Why what is to be drawn on a reservation never can be."""
        held = self._ledger.reservations.of(request)
        if not held:
            return refusals.not_reserved(request)
        for reservation in held:
            sized = _sized(request, reservation)
            capacities = self.reserving.capacities(reservation, request, as_if_empty=True)
            if placement.choose_among(self._policy, sized, capacities):
                return None
        return refusals.larger_than_reserved(request)

    # one request

    def reaching(self, request: GrantRequest) -> GrantRequest:
        """What its own node can never give may be another's, if the server there relays."""
        if not (request.relay and request.local_only):
            return request
        if grant := self._jobs.grant_of(request):
            return replace(request, local_only=grant.node == request.node)
        anywhere = replace(request, local_only=False)
        if self._ledger.reservations.of(request):
            # what is held for it, wherever that is, goes before what its node has for everybody
            for reach in (request, anywhere):
                if self.never_reserved(reach) is None:
                    return reach
        if request.mode is Mode.RESERVED:
            return anywhere
        here = feasibility.never(request, self._fleet.capacity, across=False) is None
        return request if here else anywhere

    def _try(self, request: GrantRequest, held: set[GpuKey]) -> Granted | Refused | _Blocked | None:
        if request.reservation:
            return self._try_reservation(request, held)
        joined = self._join(request)
        if joined is not None:
            return joined
        found = self._place(request, held)
        if found is None:
            reserved = request.mode is Mode.RESERVED
            return _Blocked.BY_RESERVATION if reserved else _Blocked.BY_ROOM
        if not found.reservation and (stopped := self._over_quota(found)):
            return stopped
        return self._grant(found)

    def _place(self, request: GrantRequest, held: set[GpuKey]) -> _Placement | None:
        for reservation in self._ledger.reservations.of(request):
            sized = _sized(request, reservation)
            capacities = self.reserving.capacities(reservation, request)
            if own := placement.choose_among(self._policy, sized, capacities):
                return _Placement(sized, own, reservation.id)
        if request.mode is Mode.RESERVED:
            return None
        chosen = placement.choose(
            self._policy, request, self._fleet.capacity, held, across=self._across
        )
        return _Placement(request, chosen) if chosen else None

    def _over_quota(self, found: _Placement) -> Refused | _Blocked | None:
        request, quotas = found.request, self._ledger.quotas
        wanted = Held.of(found.vgpus)
        if never := quotas.never(request.project, wanted):
            return refusals.over_quota(request, never)
        exceeded = quotas.exceeded(request.project, wanted)
        if exceeded and not self._over_quota_waits:
            return refusals.over_quota(request, exceeded)
        return _Blocked.BY_QUOTA if exceeded else None

    def _grant(self, found: _Placement) -> Granted | Refused:
        request = found.request
        grant = Grant(
            id=self._new_id(),
            request_id=request.request_id,
            node=found.capacities[0].gpu.node,
            vgpus=found.vgpus,
            priority=request.priority,
            created=self._clock.wall(),
            job=request.job,
            job_domain=request.job_domain,
            job_processes=request.job_processes,
            project=request.project,
            reservation=found.reservation,
        )
        if refusal := self._join_refusal(request, grant):
            return refusal
        self._ledger.begin(grant)
        drawn = f", drawn on reservation {grant.reservation}" if grant.reservation else ""
        text = f"{refusals.wanted(request)} for {request.program}{drawn}"
        self._ledger.event("grant.made", grant.id, text)
        return Granted(grant, self._ledger.open_session(request, grant))

    def _try_reservation(self, request: GrantRequest, held: set[GpuKey]) -> _Blocked | None:
        reservation = self._ledger.reservations.records[request.reservation]
        slots = self.reserving.place(request, held)
        if slots is None:
            return _Blocked.BY_ROOM
        if self._ledger.quotas.exceeded(request.project, Held.of(slots)):
            return _Blocked.BY_QUOTA
        self.reserving.hold(reservation, slots)
        return None

    # jobs

    def _join(self, request: GrantRequest) -> Granted | Refused | _Blocked | None:
        """A session of a job's live grant, or why not; None where the job has no grant."""
        if self._jobs.foreign(request):
            return refusals.foreign_job(request)
        grant = self._jobs.grant_of(request)
        if grant is None:
            return None
        if refusal := self.not_to_join(request, grant) or self._join_refusal(request, grant):
            return refusal
        newcomer = Session(
            "", grant.id, grant.node, "", "", "", 0, 0, "", "", 0.0, chosen=request.chosen
        )
        vgpus = self._ledger.charged(grant, [*self._ledger.live_sessions_of(grant.id), newcomer])
        more: Counter[GpuKey] = Counter()
        for (key, old), new in zip(grant.placed(), vgpus, strict=True):
            more[key] += new.overhead_mib - old.overhead_mib
        if any(mib > max(0, self._free_for(grant, key)) for key, mib in more.items()):
            return _Blocked.BY_JOB
        if self._fleet.nodes[grant.node].state is not NodeState.UP:
            return _Blocked.BY_JOB
        session = self._ledger.open_session(request, grant)
        self._ledger.recount(grant)
        self._ledger.event(
            "session.joined", session.id, f"{request.program} joins grant {grant.id}"
        )
        return Granted(grant, session)

    def not_to_join(self, request: GrantRequest, grant: Grant) -> Refused | None:
        """Why it has no right to its job's grant."""
        return rights.not_to_join(request, grant, self._ledger.quotas, self._ledger.reservations)

    def _join_refusal(self, request: GrantRequest, grant: Grant) -> Refused | None:
        live, ending = len(self._ledger.live_sessions_of(grant.id)), self._jobs.is_ending(grant)
        return refusals.cannot_join(request, grant, live, self._job_sessions, ending=ending)

    def _free_for(self, grant: Grant, key: GpuKey) -> int:
        """What the grant could take more of a GPU's memory; nothing if the GPU is gone."""
        capacity = self._fleet.capacity.of(key)
        if capacity is None:
            return -1
        if grant.reservation:
            reservation = self._ledger.reservations.records[grant.reservation]
            return self._ledger.reservations.free(reservation)[key].memory_mib
        return capacity.free_mib

    def _gpus_of_job(self, request: GrantRequest) -> list[GpuKey]:
        grant = self._jobs.grant_of(request)
        return [key for key, _ in grant.placed()] if grant else []

    # preemption

    def _preempt(self, entry: Entry, decisions: Decisions) -> None:
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
            if self._jobs.is_ending(grant):
                continue  # it was told to already, perhaps by a controller before this one
            text = (
                f"preempted: request {request.request_id} of priority {request.priority} "
                f"(project {request.project}) takes the room of priority {grant.priority}"
            )
            decisions.ends += self._yield.ask(grant, End(EndCause.PREEMPTED, text))
            self._ledger.event("grant.preempted", grant.id, text)
        text = f"{len(plan.victims)} grant(s) give way on node {claim.booking.node}"
        self._ledger.event("request.preempts", request.request_id, text)

    def _candidates(
        self, request: GrantRequest, capacities: Sequence[FreeCapacity]
    ) -> list[Candidate]:
        """Whom the request may have ended: its own reservation's users free nothing."""
        grants = {
            g.id: g for capacity in capacities for g in self._ledger.live_on_gpu(capacity.gpu.key)
        }
        lower = [
            grant
            for grant in grants.values()
            if grant.priority < request.priority
            and not grant.reservation
            and not self._jobs.is_ending(grant)
        ]
        lowest = min((grant.priority for grant in lower), default=0)
        now = self._clock.wall()
        ending = [
            Candidate(grant, Loss(0, 0, 0.0, 0), freed_by(grant))
            for grant in grants.values()
            if self._jobs.is_ending(grant) and not grant.reservation
        ]
        return ending + [
            Candidate(
                grant,
                Loss(
                    len(self._ledger.live_sessions_of(grant.id)),
                    grant.priority - lowest,
                    max(0.0, now - grant.created),
                    sum(vgpu.memory_mib for vgpu in grant.vgpus),
                ),
                freed_by(grant),
            )
            for grant in lower
        ]

    def _serve_claim(self, claim: Claim, decisions: Decisions) -> None:
        entry = self.queue.get(claim.request_id)
        if entry is None or self._jobs.grant_of(entry.request) or self._jobs.foreign(entry.request):
            # it has left, or its job got a grant meanwhile: it joins, or is refused, in its turn
            self._drop_claim(claim.request_id)
            return
        claim.waits_for = {g for g in claim.waits_for if self._ledger.is_live(g)}
        self._ledger.allocations.unbook(claim.booking)
        capacities = self._claimed(claim)
        if capacities and all(fits(entry.request, capacity) for capacity in capacities):
            found: _Placement | None = _Placement(entry.request, capacities)
        else:
            # room elsewhere will do as well
            found = self._place(entry.request, set())
        if found and not self._over_quota(found):
            del self._claims[claim.request_id]
            self._answer(entry.request, self._grant(found), decisions)
        elif capacities and claim.waits_for:
            self._ledger.allocations.book(claim.booking)
        else:
            # a GPU has gone, or something else was found running there: a new plan is made
            del self._claims[claim.request_id]

    def _claimed(self, claim: Claim) -> list[FreeCapacity]:
        gpus = [self._fleet.gpus.get(capacity.gpu.key) for capacity in claim.capacities]
        capacities = [
            self._fleet.capacity_of(gpu) for gpu in gpus if gpu and self._fleet.is_open(gpu)
        ]
        return capacities if len(capacities) == len(claim.capacities) else []

    def _drop_claim(self, request_id: str) -> None:
        if claim := self._claims.pop(request_id, None):
            self._ledger.allocations.unbook(claim.booking)

    def claimed_on(self, key: GpuKey) -> tuple[int, int]:
        """MiB and percent of a GPU that are booked for requests which do not have them yet."""
        frees = [freed_by(claim.booking).get(key, (0, 0)) for claim in self._claims.values()]
        return sum(mib for mib, _ in frees), sum(percent for _, percent in frees)

    def reservations_waiting(self) -> int:
        """How many reservations have yet to find their room."""
        records = self._ledger.reservations.records.values()
        return sum(1 for r in records if r.state is ReservationState.WAITING)
