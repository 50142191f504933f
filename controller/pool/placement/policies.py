# SPDX-License-Identifier: Apache-2.0
"""Which of the GPUs that a request fits on it gets: bin-pack, spread and locality.

Chosen by [pool] policy, called by placement. A policy has one verb for GPUs of their own on one
node, and says in which neighbourhoods to look first. Every policy finds a place if there is one.
Whole cards are chosen alike by all: in one NVLink group where that is possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.gpus.capacity import GpuCapacity, NodeCapacity, PoolCapacity
from sluice.controller.pool.placement.search import PlacementSearch

LOOKED_AT = 32  # nodes that a request of several vGPUs fits on and that are compared
NEAR_LABELS = ("rack", "rdma")  # a node's labels that say who is near, the nearest first


class PlacementPolicy(Protocol):
    """How GPUs are picked; small, so that another one is quickly written."""

    def choose(
        self, search: PlacementSearch, pool_capacity: PoolCapacity
    ) -> list[GpuCapacity] | None:
        """Returns search.count GPUs of one node that it fits on, or None if there are none."""
        ...

    def neighbourhoods(
        self, request: GrantRequest, pool_capacity: PoolCapacity
    ) -> Iterator[Collection[str] | None]:
        """Yields sets of nodes, where to look first; the last one is None, everywhere."""
        ...


class BinPack:
    """Fills the fullest GPUs first, so that whole cards stay free for large requests."""

    def choose(
        self, search: PlacementSearch, pool_capacity: PoolCapacity
    ) -> list[GpuCapacity] | None:
        """Takes the GPUs with the least free memory that still fits.

        One vGPU goes to the fullest GPU of all. For several on one node, the LOOKED_AT nodes with
        the least room to spare are compared.
        """
        if search.is_whole:
            return whole_cards(search)
        if search.count == 1:
            capacity = _fullest(search, pool_capacity)
            return [capacity] if capacity else None
        best: tuple[tuple[int, int, str], list[GpuCapacity]] | None = None
        looked_at = 0
        for node in search.tightest_first():
            fitting = search.fitting(node)
            if len(fitting) < search.count:
                continue
            fitting.sort(
                key=lambda capacity: (capacity.free_mib, capacity.free_percent, capacity.gpu.uuid)
            )
            chosen = fitting[: search.count]
            score = (
                sum(capacity.free_mib for capacity in chosen),
                sum(capacity.free_percent for capacity in chosen),
                node.name,
            )
            if best is None or score < best[0]:
                best = (score, chosen)
            looked_at += 1
            if looked_at == LOOKED_AT:
                break
        return best[1] if best else None

    def neighbourhoods(
        self, request: GrantRequest, pool_capacity: PoolCapacity
    ) -> Iterator[Collection[str] | None]:
        """Looks everywhere at once."""
        yield None


class Spread:
    """Takes the emptiest node and its emptiest GPUs: neighbours disturb each other least."""

    def choose(
        self, search: PlacementSearch, pool_capacity: PoolCapacity
    ) -> list[GpuCapacity] | None:
        """Takes the node with the most free memory in all that it fits on."""
        if search.is_whole:
            return whole_cards(search, most_first=True)
        for node in search.emptiest_first():
            if not search.may_fit(node):
                continue
            fitting = search.fitting(node)
            if len(fitting) >= search.count:
                fitting.sort(
                    key=lambda capacity: (
                        -capacity.free_mib,
                        -capacity.free_percent,
                        capacity.gpu.uuid,
                    )
                )
                return fitting[: search.count]
        return None

    def neighbourhoods(
        self, request: GrantRequest, pool_capacity: PoolCapacity
    ) -> Iterator[Collection[str] | None]:
        """Looks everywhere at once."""
        yield None


class Locality(BinPack):
    """Goes near the node that asks, and packs there."""

    def neighbourhoods(
        self, request: GrantRequest, pool_capacity: PoolCapacity
    ) -> Iterator[Collection[str] | None]:
        """Its own node, then its rack, then what its RDMA reaches, then everywhere."""
        node = pool_capacity.nodes.get(request.node)
        if node is not None:
            yield (node.name,)
            for name in NEAR_LABELS:
                for label in node.labels:
                    if label[0] == name:
                        yield pool_capacity.by_label[label]
        yield None


POLICIES: dict[str, type[PlacementPolicy]] = {
    "bin-pack": BinPack,
    "spread": Spread,
    "locality": Locality,
}


def whole_cards(search: PlacementSearch, *, most_first: bool = False) -> list[GpuCapacity] | None:
    """Untouched cards of one node, in one NVLink group if any node has one that is large enough.

    Nodes with small cards come first, and of these the ones with the fewest untouched, or the most.
    """
    for grouped in (True, False):
        for node in search.by_untouched(search.count, most_first=most_first):
            if (grouped and node.in_group < search.count) or not search.may_fit(node):
                continue
            if chosen := _whole_on(search, node, grouped=grouped):
                return chosen
    return None


def _whole_on(
    search: PlacementSearch, node: NodeCapacity, *, grouped: bool
) -> list[GpuCapacity] | None:
    """The smallest group that is large enough; without one, the fewest groups."""
    groups: dict[str, list[GpuCapacity]] = {}
    for capacity in search.fitting(node):
        # a card without NVLink is a group of its own
        groups.setdefault(capacity.gpu.nvlink_group or f" {capacity.gpu.uuid}", []).append(capacity)
    by_size = sorted(groups.items(), key=lambda group: (len(group[1]), group[0]))
    for _, group in by_size:
        if len(group) >= search.count:
            return group[: search.count]
    every = [capacity for _, group in reversed(by_size) for capacity in group]
    return every[: search.count] if not grouped and len(every) >= search.count else None


def _fullest(search: PlacementSearch, pool_capacity: PoolCapacity) -> GpuCapacity | None:
    """The GPU with the least free memory, then compute, that one vGPU fits on."""
    few = search.few_nodes
    if few is not None:
        fitting = [capacity for node in few for capacity in search.fitting(node)]
        return min(fitting, key=lambda r: (r.free_mib, r.free_percent, *r.entry[1:3]), default=None)
    best: tuple[tuple[int, int, str, str], GpuCapacity] | None = None
    for kind in pool_capacity.kinds():
        need = search.need(kind)
        if need is None:
            continue
        for percent, order in kind.by_percent.items():
            if percent < need.compute_percent:
                continue
            start = order.bisect_left((need.memory_mib,))
            for mib, node, uuid, capacity in order.islice(start):
                score = (mib, percent, node, uuid)
                if best is not None and score >= best[0]:
                    break
                if search.may_use(capacity) and search.may_join(capacity, need):
                    best = (score, capacity)
                    break
    return best[1] if best else None
