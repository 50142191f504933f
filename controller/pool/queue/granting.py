# SPDX-License-Identifier: Apache-2.0
"""From a request to its grant: where it is placed, what its quota says, whose job it joins.

Called by scheduling.Scheduler for a request whose turn it is, and by claims.Claims for one that
others gave way to. A grant that is made here is booked and has its session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from sluice.controller.pool.admission import refusals, rights
from sluice.controller.pool.decisions import Granted, GrantRequest, Refused
from sluice.controller.pool.gpus.capacity import GpuCapacity
from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.gpus.slices import FreeCapacity
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.node_parts import nodes_of
from sluice.controller.pool.grants.suspension import SuspensionState
from sluice.controller.pool.model import (
    Clock,
    GpuKey,
    Grant,
    IdFactory,
    Mode,
    NodeState,
    Reservation,
    Session,
    Vgpu,
)
from sluice.controller.pool.placement import feasibility, placement
from sluice.controller.pool.placement.policies import PlacementPolicy
from sluice.controller.pool.projects.quotas import Held
from sluice.controller.pool.reservations.reserving import Reserving


class Blocked(Enum):
    """Why a request goes on waiting."""

    BY_ROOM = "its GPUs are full"
    BY_RESERVATION = "its reservation is in use"
    BY_QUOTA = "its project holds what it may"
    BY_JOB = "its job's GPUs have no room for another context"


@dataclass(frozen=True, slots=True)
class Placed:
    """A request and the GPUs that were found for it."""

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


class Granting:
    """What becomes of one request, now."""

    def __init__(
        self,
        clock: Clock,
        new_id: IdFactory,
        ledger: GrantLedger,
        fleet: Fleet,
        jobs: Jobs,
        policy: PlacementPolicy,
        reserving: Reserving,
        *,
        job_sessions: int,
        over_quota_waits: bool,
    ) -> None:
        self._clock = clock
        self._new_id = new_id
        self._ledger = ledger
        self._fleet = fleet
        self._jobs = jobs
        self._policy = policy
        self._reserving = reserving
        self._job_sessions = job_sessions
        self._over_quota_waits = over_quota_waits

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
        here = feasibility.never(request, self._fleet.capacity) is None
        return request if here else anywhere

    def never_reserved(self, request: GrantRequest) -> Refused | None:
        """Why what is to be drawn on a reservation never can be."""
        held = self._ledger.reservations.of(request)
        if not held:
            return refusals.not_reserved(request)
        for reservation in held:
            sized = _sized(request, reservation)
            capacities = self._reserving.capacities(reservation, request, as_if_empty=True)
            if placement.choose_among(self._policy, sized, capacities):
                return None
        return refusals.larger_than_reserved(request)

    def attempt(
        self, request: GrantRequest, held: set[GpuKey]
    ) -> Granted | Refused | Blocked | None:
        """Grants it, or says why not; `held` are GPUs that others wait for. None: a reservation."""
        if request.reservation:
            return self._try_reservation(request, held)
        joined = self._join(request)
        if joined is not None:
            return joined
        found = self.place(request, held)
        if found is None:
            reserved = request.mode is Mode.RESERVED
            return Blocked.BY_RESERVATION if reserved else Blocked.BY_ROOM
        if not found.reservation and (stopped := self.over_quota(found)):
            return stopped
        return self.grant(found)

    def place(self, request: GrantRequest, held: set[GpuKey]) -> Placed | None:
        """Where it would be now; what is reserved for it goes before what everybody has."""
        for reservation in self._ledger.reservations.of(request):
            sized = _sized(request, reservation)
            capacities = self._reserving.capacities(reservation, request)
            if own := placement.choose_among(self._policy, sized, capacities):
                return Placed(sized, own, reservation.id)
        if request.mode is Mode.RESERVED:
            return None
        chosen = placement.choose(
            self._policy, request, self._fleet.capacity, held, across=self._fleet.share_grants
        )
        return Placed(request, chosen) if chosen else None

    def preview(self, request: GrantRequest) -> tuple[Vgpu, ...]:
        """What it would get: where there is room now, else where it fits once there is.

        Nothing where only its quota or its node's absence stands in the way.
        """
        if found := self.place(request, set()):
            return found.vgpus
        for reservation in self._ledger.reservations.of(request):
            sized = _sized(request, reservation)
            empty = self._reserving.capacities(reservation, request, as_if_empty=True)
            if own := placement.choose_among(self._policy, sized, empty):
                return placement.vgpus_on(sized, own)
        if request.mode is Mode.RESERVED:
            return ()
        fitting = sorted(
            feasibility.reach(request, self._fleet.capacity), key=lambda key: (key.node, key.uuid)
        )
        on_one = [key for key in fitting if key.node == fitting[0].node]
        known = [capacity for key in on_one if (capacity := self._fleet.capacity.of(key))]
        if not known:
            return ()
        chosen = [known[place % len(known)] for place in range(request.count)]
        return placement.vgpus_on(request, chosen)

    def over_quota(self, found: Placed) -> Refused | Blocked | None:
        """Why its project may not have this, now or ever."""
        request, quotas = found.request, self._ledger.quotas
        wanted = Held.of(found.vgpus)
        if never := quotas.never(request.project, wanted):
            return refusals.over_quota(request, never)
        exceeded = quotas.exceeded(request.project, wanted)
        if exceeded and not self._over_quota_waits:
            return refusals.over_quota(request, exceeded)
        return Blocked.BY_QUOTA if exceeded else None

    def grant(self, found: Placed) -> Granted | Refused:
        """Books what was found, with a session for whoever asked."""
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
            person=request.person,
            label=request.owner_label,
        )
        if refusal := self._join_refusal(request, grant):
            return refusal
        self._ledger.begin(grant)
        drawn = f", drawn on reservation {grant.reservation}" if grant.reservation else ""
        inside = f" in {request.container.name}" if request.container else ""
        text = f"{refusals.wanted(request)} for {request.program}{inside}{drawn}"
        self._ledger.event("grant.made", grant.id, text)
        return self._ledger.open_sessions(request, grant)

    def _try_reservation(self, request: GrantRequest, held: set[GpuKey]) -> Blocked | None:
        reservation = self._ledger.reservations.records[request.reservation]
        slots = self._reserving.place(request, held)
        if slots is None:
            return Blocked.BY_ROOM
        if self._ledger.quotas.exceeded(request.project, Held.of(slots)):
            return Blocked.BY_QUOTA
        self._reserving.hold(reservation, slots)
        return None

    # jobs

    def _join(self, request: GrantRequest) -> Granted | Refused | Blocked | None:
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
        vgpus = self._ledger.charged(grant, [*self._ledger.sessions.live_of(grant.id), newcomer])
        more: Counter[GpuKey] = Counter()
        for (key, old), new in zip(grant.placed(), vgpus, strict=True):
            more[key] += new.overhead_mib - old.overhead_mib
        if any(mib > max(0, self._free_for(grant, key)) for key, mib in more.items()):
            return Blocked.BY_JOB
        if self.why_not_joined(grant) or grant.suspension is not SuspensionState.NONE:
            return Blocked.BY_JOB
        granted = self._ledger.open_sessions(request, grant)
        self._ledger.recount(grant)
        text = f"{request.program} joins grant {grant.id}"
        for session in granted.sessions:
            self._ledger.event("session.joined", session.id, text)
        return granted

    def why_not_joined(self, grant: Grant) -> str:
        """What of a job's own keeps its next process waiting, besides room; "": nothing does."""
        nodes = self._fleet.nodes
        if away := [n for n in grant.nodes_in_order if nodes[n].state is not NodeState.UP]:
            return f"node {away[0]} of its job is not connected"
        if grant.unknown_places:
            numbers = ", ".join(map(str, grant.unknown_places))
            return f"no node has told of vGPU {numbers} of its job since the store was lost"
        # of one node's job it is the end, which is under way
        return self._fleet.why_broken(grant) if grant.spans_nodes else ""

    def not_to_join(self, request: GrantRequest, grant: Grant) -> Refused | None:
        """Why it has no right to its job's grant."""
        return rights.not_to_join(request, grant, self._ledger.quotas, self._ledger.reservations)

    def _join_refusal(self, request: GrantRequest, grant: Grant) -> Refused | None:
        on_nodes = Counter(s.node for s in self._ledger.sessions.live_of(grant.id))
        # those that it adds one to: what its job has elsewhere takes nothing from it
        live = max((on_nodes[node] for node in nodes_of(grant, request.chosen)), default=0)
        ending = self._jobs.is_ending(grant)
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
