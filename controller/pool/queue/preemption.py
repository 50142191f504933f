# SPDX-License-Identifier: Apache-2.0
"""Preemption: whose work gives way to a request, and who has the room until the request has it.

Called by scheduling.Scheduler. A plan names GPUs for the request and the cheapest set of grants of
lower priority whose going makes room there: the fewest sessions that end, then the fewest at all,
then the lowest priorities, then the least time that they have run, then the least memory. Up to
EXACT_CANDIDATES grants the set is the cheapest one; beyond, it is found greedily and has nobody in
it who could stay. Victims are
asked through Yield and the room is claimed (booked for the request) from then on, so that nobody
else takes what they give back one after another.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sluice.controller.pool.decisions import Decisions, GrantRequest
from sluice.controller.pool.gpus.occupancy import processes_of, sharing_for
from sluice.controller.pool.gpus.oversubscription import would_stay
from sluice.controller.pool.gpus.slices import FreeCapacity, is_wanted, slice_on
from sluice.controller.pool.model import GpuKey, Grant
from sluice.controller.pool.placement.placement import vgpus_on
from sluice.resources.ends import End

EXACT_CANDIDATES = 12

LossOrder = tuple[int, int, int, float, int]


class Yield(Protocol):
    """How a grant is made to give its room back: it is suspended, or ends."""

    def ask(self, grant: Grant, why: End, decisions: Decisions) -> None:
        """Adds what its server is to be told; the room is back when the ledger says so."""
        ...

    def spares(self, grant: Grant) -> bool:
        """Whether its work would go on later."""
        ...


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost when a grant goes, the worst first; sums compare like single ones."""

    sessions: int
    priority: int
    seconds: float
    memory_mib: int
    ended: int = 0  # sessions whose work is lost: worse than any number that are suspended

    def plus(self, other: Loss) -> Loss:
        """Both together."""
        return Loss(
            self.sessions + other.sessions,
            self.priority + other.priority,
            self.seconds + other.seconds,
            self.memory_mib + other.memory_mib,
            self.ended + other.ended,
        )

    @property
    def order(self) -> LossOrder:
        """For comparing."""
        return (self.ended, self.sessions, self.priority, self.seconds, self.memory_mib)


NO_LOSS = Loss(0, 0, 0.0, 0)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A grant that may be made to go, and what that would free."""

    grant: Grant
    loss: Loss
    frees: dict[GpuKey, tuple[int, int]]  # MiB and percent
    stays: bool = False  # it keeps its place beside others: it is suspended

    @property
    def order(self) -> tuple[LossOrder, str]:
        """For comparing; ids make it the same every time."""
        return (self.loss.order, self.grant.id)


@dataclass(frozen=True, slots=True)
class Plan:
    """Who goes, and where the request then fits."""

    victims: tuple[Candidate, ...]
    capacities: tuple[FreeCapacity, ...]  # as they are now

    @property
    def loss(self) -> Loss:
        """Of all victims."""
        total = NO_LOSS
        for victim in self.victims:
            total = total.plus(victim.loss)
        return total


@dataclass(slots=True)
class Claim:
    """Room that is being made for a request; booked as a grant that is not one."""

    request_id: str
    booking: Grant
    capacities: tuple[FreeCapacity, ...]
    waits_for: set[str] = field(default_factory=set)  # grants


def make_plan(
    request: GrantRequest, capacities: Iterable[FreeCapacity], candidates: Sequence[Candidate]
) -> Plan | None:
    """The cheapest way to make the request fit on one node; None where there is none."""
    by_node: dict[str, list[FreeCapacity]] = {}
    for capacity in capacities:
        by_node.setdefault(capacity.gpu.node, []).append(capacity)
    best: Plan | None = None
    for node, node_capacities in sorted(by_node.items()):
        here = sorted((c for c in candidates if node in c.grant.nodes), key=lambda c: c.order)
        plan = _on_node(request, node_capacities, here)
        if plan and (best is None or plan.loss.order < best.loss.order):
            best = plan
    return best


def _on_node(
    request: GrantRequest, capacities: list[FreeCapacity], candidates: list[Candidate]
) -> Plan | None:
    if request.count == 1:
        # one GPU decides: who is not on it frees nothing there
        plans = []
        for capacity in capacities:
            here = [c for c in candidates if capacity.gpu.key in c.frees]
            if plan := _cheapest(request, [capacity], here):
                plans.append(plan)
        # names decide between alike ones, so that it is the same every time
        return min(plans, key=lambda p: (p.loss.order, p.capacities[0].gpu.uuid), default=None)
    keys = {capacity.gpu.key for capacity in capacities}
    return _cheapest(request, capacities, [c for c in candidates if keys & c.frees.keys()])


def _cheapest(
    request: GrantRequest, capacities: list[FreeCapacity], candidates: list[Candidate]
) -> Plan | None:
    def place(victims: Sequence[Candidate]) -> tuple[FreeCapacity, ...] | None:
        fitting = [capacity for capacity in capacities if _fits(request, capacity, victims)]
        fitting.sort(
            key=lambda capacity: (capacity.free_mib, capacity.free_percent, capacity.gpu.uuid)
        )
        enough = len(fitting) >= request.count
        return tuple(fitting[: request.count]) if enough else None

    if place(candidates) is None:
        return None
    search = _exact if len(candidates) <= EXACT_CANDIDATES else _greedy
    victims = search(place, candidates)
    found = place(victims)
    assert found is not None
    return Plan(tuple(victims), found)


Place = Callable[[Sequence[Candidate]], "tuple[FreeCapacity, ...] | None"]


def _exact(place: Place, candidates: list[Candidate]) -> list[Candidate]:
    """Looks at sets of candidates in the order of their loss; the first that frees enough is it."""
    if place([]) is not None:
        return []
    # each set is reached once: from the one without its last member, or with another last member
    first = candidates[0].loss
    heap: list[tuple[LossOrder, tuple[int, ...], Loss]] = []
    heapq.heappush(heap, (first.order, (0,), first))
    while True:
        _, members, loss = heapq.heappop(heap)
        chosen = [candidates[index] for index in members]
        if place(chosen) is not None:
            return chosen
        following = members[-1] + 1
        if following < len(candidates):
            more = loss.plus(candidates[following].loss)
            heapq.heappush(heap, (more.order, (*members, following), more))
            without = NO_LOSS
            for member in chosen[:-1]:
                without = without.plus(member.loss)
            other = without.plus(candidates[following].loss)
            heapq.heappush(heap, (other.order, (*members[:-1], following), other))


def _greedy(place: Place, candidates: list[Candidate]) -> list[Candidate]:
    """Adds the cheapest until it is enough, then lets stay whoever can, the dearest first."""
    chosen: list[Candidate] = []
    for candidate in candidates:
        if place(chosen) is not None:
            break
        chosen.append(candidate)
    for candidate in reversed(list(chosen)):
        rest = [other for other in chosen if other is not candidate]
        if place(rest) is not None:
            chosen = rest
    return chosen


def _fits(request: GrantRequest, capacity: FreeCapacity, victims: Iterable[Candidate]) -> bool:
    key = capacity.gpu.key
    wanted = slice_on(request, capacity.gpu, capacity.vgpu_count)
    sharing = sharing_for(request, wanted.compute_percent, capacity.sharing)
    free_mib, free_percent = capacity.free_mib, capacity.free_percent
    left = capacity.occupancy
    for victim in victims:
        mib, percent = victim.frees.get(key, (0, 0))
        free_mib += mib
        free_percent += percent
        for at, vgpu in victim.grant.placed():
            if at == key and not victim.stays:
                left = left.minus(vgpu.sharing, processes_of(victim.grant))
    return (
        sharing is not None
        and left.admits(sharing, request.project, request.contexts)
        and wanted.memory_mib + wanted.overhead_mib <= free_mib
        and wanted.compute_percent <= free_percent
        and capacity.without(free_mib - capacity.free_mib).brings_in(
            wanted.memory_mib, wanted.overhead_mib, stays=would_stay(request, sharing)
        )
        and is_wanted(request, capacity.gpu.model, capacity.gpu.architecture)
    )


def freed_by(grant: Grant) -> dict[GpuKey, tuple[int, int]]:
    """What a grant's going gives back of each GPU."""
    frees: dict[GpuKey, tuple[int, int]] = {}
    for key, vgpu in grant.placed():
        mib, percent = frees.get(key, (0, 0))
        frees[key] = (mib + vgpu.memory_mib + vgpu.overhead_mib, percent + vgpu.compute_percent)
    return frees


def memory_freed_by(grant: Grant) -> dict[GpuKey, tuple[int, int]]:
    """What a grant's suspension gives back at most: its contexts stay."""
    frees: dict[GpuKey, tuple[int, int]] = {}
    for key, vgpu in grant.placed():
        mib, percent = frees.get(key, (0, 0))
        frees[key] = (mib + vgpu.memory_mib, percent + vgpu.compute_percent)
    return frees


def booking_of(request: GrantRequest, capacities: Sequence[FreeCapacity]) -> Grant:
    """What is booked for a request while room is being made for it."""
    return Grant(
        id=request.request_id,
        request_id="",
        node=capacities[0].gpu.node,
        vgpus=vgpus_on(request, capacities),
        priority=request.priority,
        created=0.0,
        job_processes=request.job_processes,
        project=request.project,
    )
