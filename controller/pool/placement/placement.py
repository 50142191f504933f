# SPDX-License-Identifier: Apache-2.0
"""Chooses GPUs for a request: on one node, on cards of their own if possible, else as it allows.

Called by the scheduler and by reservations; it changes nothing. What a request may use are the open
GPUs of the pool (or what is free of a reservation, where that is shared out), less those that are
barred to it. The order: cards of their own on one node; then several vGPUs on one card, if the
request allows that; then several nodes, if it allows that. `choose` finds a place whenever there is
one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.gpus.allocations import Usage
from sluice.controller.pool.gpus.capacity import GpuCapacity, NodeCapacity, PoolCapacity
from sluice.controller.pool.gpus.occupancy import sharing_for
from sluice.controller.pool.gpus.slices import FreeCapacity, fits, slice_on
from sluice.controller.pool.model import Gpu, GpuKey, Sharing, Vgpu
from sluice.controller.pool.placement.policies import (
    LOOKED_AT,
    POLICIES,
    BinPack,
    Locality,
    PlacementPolicy,
    Spread,
)
from sluice.controller.pool.placement.search import PlacementSearch

RDMA_LABEL = "rdma"  # of nodes on one RDMA network

__all__ = [
    "POLICIES",
    "BinPack",
    "FreeCapacity",
    "Locality",
    "PlacementPolicy",
    "Spread",
    "choose",
    "choose_among",
    "fits",
    "slice_on",
    "vgpus_on",
]


def choose(
    policy: PlacementPolicy,
    request: GrantRequest,
    pool_capacity: PoolCapacity,
    barred: Collection[GpuKey] = (),
    *,
    across: Collection[str] = (),
) -> list[GpuCapacity] | None:
    """A GPU for each vGPU of the request, or None if it does not fit now.

    The same GPU comes twice where two vGPUs go to one card. The first GPU's node is the grant's
    own. `across`: the nodes that can have a part of a grant.
    """
    search = PlacementSearch(request, pool_capacity, barred)
    near = [search.within(nodes) for nodes in policy.neighbourhoods(request, pool_capacity)]
    for place in near:
        if chosen := policy.choose(place, pool_capacity):
            return chosen
    if request.same_gpu and search.count > 1:
        for place in near:
            if chosen := _together(place):
                return chosen
    if across and request.may_span:
        for place in near:
            if chosen := _across(place, across):
                return _near_by_rdma(place, across, pool_capacity, chosen) or chosen
    return None


def choose_among(
    policy: PlacementPolicy, request: GrantRequest, few: Iterable[FreeCapacity]
) -> list[FreeCapacity] | None:
    """The same of a few GPUs with what somebody has free on them; the result is of `few`."""
    by_key = {capacity.gpu.key: capacity for capacity in few}
    by_node: dict[str, list[FreeCapacity]] = {}
    for capacity in by_key.values():
        by_node.setdefault(capacity.gpu.node, []).append(capacity)

    def usage(key: GpuKey) -> Usage:
        capacity = by_key[key]
        empty_mib = capacity.gpu.memory_mib - capacity.gpu.reserved_mib
        free_mib, free_percent = capacity.free_mib, capacity.free_percent
        return Usage(empty_mib - free_mib, 100 - free_percent, occupancy=capacity.occupancy)

    pool_capacity = PoolCapacity(usage)
    for name, here in by_node.items():
        gpus: list[Gpu] = [capacity.gpu for capacity in here]
        first = here[0]
        pool_capacity.put(name, (), gpus, first.vgpu_count, is_open=True, sharing=first.sharing)
    chosen = choose(policy, request, pool_capacity)
    return [by_key[capacity.gpu.key] for capacity in chosen] if chosen else None


def vgpus_on(
    request: GrantRequest, capacities: Sequence[GpuCapacity] | Sequence[FreeCapacity]
) -> tuple[Vgpu, ...]:
    """The vGPUs that the request gets on the GPUs that were chosen for it."""
    return tuple(_shared_on(request, capacity) for capacity in capacities)


def _shared_on(request: GrantRequest, capacity: GpuCapacity | FreeCapacity) -> Vgpu:
    vgpu = slice_on(request, capacity.gpu, capacity.vgpu_count)
    sharing = sharing_for(request, vgpu.compute_percent, capacity.sharing)
    return replace(vgpu, sharing=sharing or Sharing.AUTO)


def _together(search: PlacementSearch) -> list[GpuCapacity] | None:
    """GPUs of one node, some of them more than once: as many cards as there are, evenly used."""
    for node in search.emptiest_first():
        floor = search.floor(node.family)
        if (
            floor is None
            or node.total_mib < search.count * floor.memory_mib
            or node.total_percent < search.count * floor.compute_percent
        ):
            continue
        times = [(capacity, search.fitting_times(capacity)) for capacity in search.fitting(node)]
        if sum(count for _, count in times) < search.count:
            continue
        times.sort(key=lambda each: (-each[1], -each[0].free_mib, each[0].gpu.uuid))
        rounds = [
            capacity for turn in range(search.count) for capacity, count in times if count > turn
        ]
        return rounds[: search.count]
    return None


def _near_by_rdma(
    search: PlacementSearch,
    able: Collection[str],
    pool_capacity: PoolCapacity,
    chosen: Sequence[GpuCapacity],
) -> list[GpuCapacity] | None:
    """The same on nodes that reach each other by RDMA (label `rdma`), where it takes no more."""
    most = len({capacity.gpu.node for capacity in chosen})
    fabrics = [label for label in pool_capacity.by_label if label[0] == RDMA_LABEL]
    for label in sorted(fabrics):
        found = _across(search.within(pool_capacity.by_label[label]), able)
        if found and len({capacity.gpu.node for capacity in found}) <= most:
            return found
    return None


def _across(search: PlacementSearch, able: Collection[str]) -> list[GpuCapacity] | None:
    """Whole cards of several nodes, of as few as can be; the last is one with few to spare."""
    found: list[tuple[NodeCapacity, list[GpuCapacity]]] = []
    cards = 0
    for node in search.by_untouched(1, most_first=True):
        if node.name in able and (fitting := search.fitting(node)):
            found.append((node, fitting))
            cards += len(fitting)
            if cards >= search.count and len(found) >= LOOKED_AT:
                break
    found.sort(key=lambda each: (-len(each[1]), each[0].name))
    chosen: list[GpuCapacity] = []
    for index, (_, fitting) in enumerate(found):
        left = search.count - len(chosen)
        if len(fitting) >= left:
            # of the rest, the last that is enough has the fewest to spare
            enough = [rest for _, rest in found[index:] if len(rest) >= left]
            return chosen + enough[-1][:left]
        chosen += fitting
    return None
