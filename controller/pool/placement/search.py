# SPDX-License-Identifier: Apache-2.0
"""A request as the search for room sees it: what it needs of each kind of GPU, and where it may go.

Made anew for each decision by placement; it reads the capacity and changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator
from typing import NamedTuple

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.gpus.capacity import (
    Family,
    GpuCapacity,
    GpuKind,
    NodeCapacity,
    PoolCapacity,
)
from sluice.controller.pool.gpus.occupancy import sharing_for
from sluice.controller.pool.gpus.oversubscription import would_stay
from sluice.controller.pool.gpus.slices import WHOLE_PERCENT, is_wanted, slice_on
from sluice.controller.pool.model import GpuKey, Sharing

FEW_NODES = 64  # so many are looked at one by one rather than found in the orders of all


class Need(NamedTuple):
    """What one vGPU takes of a GPU, its contexts included."""

    memory_mib: int
    compute_percent: int
    sharing: Sharing = Sharing.AUTO
    overhead_mib: int = 0  # of its memory, its contexts'
    stays: bool = False  # it can never be moved for others

    def times_beside(self, capacity: GpuCapacity) -> int | None:
        """How many of it can be there so that each can be brought in; None: any number.

        Beside what never moves the largest that does has to fit, wherever the others are.
        """
        if not capacity.kind.promise.is_over:
            return None
        alone = self.memory_mib - self.overhead_mib
        largest = capacity.largest_mib if self.stays else max(alone, capacity.largest_mib)
        # as many as are there, or change places by way of host memory
        most = max(capacity.there_left_mib, capacity.host_left_mib - largest, 0) // self.memory_mib
        left = max(0, capacity.beside_mib - largest)
        if self.stays:
            return min(most, left // self.memory_mib)
        if capacity.beside_mib < largest:
            return 0
        return min(most, left // self.overhead_mib) if self.overhead_mib else most


class PlacementSearch:
    """What is looked for."""

    def __init__(
        self,
        request: GrantRequest,
        pool_capacity: PoolCapacity,
        barred: Collection[GpuKey] = (),
        *,
        lasting: bool = False,
    ) -> None:
        """`lasting`: what GPUs are for a while only is left out of account."""
        self.request = request
        self._lasting = lasting
        self.count = request.count
        self._pool_capacity = pool_capacity
        self._barred = barred
        self._needs: dict[GpuKind, Need | None] = {}
        self._floors: dict[Family, Need | None] = {}
        self.nodes = pool_capacity.with_labels(request.labels)
        if request.local_only:
            own = {request.node}
            self.nodes = own if self.nodes is None else self.nodes & own

    def within(self, nodes: Collection[str] | None) -> PlacementSearch:
        """The same search, on these nodes only; None: no further bound."""
        if nodes is None:
            return self
        narrower = object.__new__(PlacementSearch)
        narrower.__dict__.update(self.__dict__)
        narrower.nodes = (
            set(nodes) if self.nodes is None else {name for name in nodes if name in self.nodes}
        )
        return narrower

    # what it needs

    def need(self, kind: GpuKind) -> Need | None:
        """What a vGPU takes of such a GPU; None: it is not one that will do."""
        try:
            return self._needs[kind]
        except KeyError:
            pass
        need = None
        if is_wanted(self.request, kind.model, kind.architecture):
            vgpu = slice_on(self.request, kind.sample, kind.vgpu_count)
            percent = vgpu.compute_percent
            sharing = sharing_for(self.request, percent, kind.sharing, lasting=self._lasting)
            if sharing is not None:
                overhead = vgpu.overhead_mib
                stays = would_stay(self.request, sharing)
                need = Need(vgpu.memory_mib + overhead, percent, sharing, overhead, stays)
        self._needs[kind] = need
        return need

    def floor(self, family: Family) -> Need | None:
        """The least that a vGPU takes on any GPU of such nodes; None: there is none for it."""
        try:
            return self._floors[family]
        except KeyError:
            pass
        needs = [need for kind in family.kinds if (need := self.need(kind))]
        floor = (
            Need(min(n.memory_mib for n in needs), min(n.compute_percent for n in needs))
            if needs
            else None
        )
        self._floors[family] = floor
        return floor

    @property
    def is_whole(self) -> bool:
        """Whether it wants whole cards, wherever it goes."""
        asked = self.request.compute_percent
        if asked or self.request.cross_node:
            return self.request.cross_node or asked == WHOLE_PERCENT
        needs = [need for kind in self._pool_capacity.kinds() if (need := self.need(kind))]
        return bool(needs) and all(need.compute_percent == WHOLE_PERCENT for need in needs)

    # where it may go

    def may_join(self, capacity: GpuCapacity, need: Need) -> bool:
        """Whether such a vGPU may be on the GPU beside what is there."""
        request = self.request
        return need.times_beside(capacity) != 0 and capacity.occupancy.admits(
            need.sharing, request.project, request.contexts
        )

    @property
    def few_nodes(self) -> list[NodeCapacity] | None:
        """The nodes that it is bound to, by name, if these are few."""
        if self.nodes is None or len(self.nodes) > FEW_NODES:
            return None
        known = self._pool_capacity.nodes
        return [known[name] for name in sorted(self.nodes) if name in known]

    def may_use(self, capacity: GpuCapacity) -> bool:
        """Whether it may go to this GPU, whatever is free there."""
        return (self.nodes is None or capacity.gpu.node in self.nodes) and (
            not self._barred or capacity.gpu.key not in self._barred
        )

    def fitting(self, node: NodeCapacity) -> list[GpuCapacity]:
        """The node's GPUs that one vGPU fits on, by UUID."""
        if self.nodes is not None and node.name not in self.nodes:
            return []
        found = []
        for capacity in node.open_gpus:
            need = self.need(capacity.kind)
            if (
                need is not None
                and capacity.free_mib >= need.memory_mib
                and capacity.free_percent >= need.compute_percent
                and self.may_join(capacity, need)
            ):
                found.append(capacity)
        if self._barred:
            found = [capacity for capacity in found if capacity.gpu.key not in self._barred]
        return found

    def fitting_times(self, capacity: GpuCapacity) -> int:
        """How many of its vGPUs fit on the GPU together."""
        need = self.need(capacity.kind)
        if need is None or not self.may_join(capacity, need):
            return 0
        beside = need.times_beside(capacity)
        return min(
            capacity.free_mib // need.memory_mib,
            max(0, capacity.free_percent) // need.compute_percent,
            *(() if beside is None else (beside,)),
        )

    def may_fit(self, node: NodeCapacity) -> bool:
        """A quick look: False if it cannot fit there on GPUs of their own."""
        n, floor = self.count, self.floor(node.family)
        return (
            floor is not None
            and len(node.free_mib) >= n
            and node.free_mib[n - 1] >= floor.memory_mib
            and node.free_percent[n - 1] >= floor.compute_percent
            and (self.nodes is None or node.name in self.nodes)
        )

    # orders

    def tightest_first(self) -> Iterator[NodeCapacity]:
        """Nodes where it may fit, those first whose n-th best GPU has the least memory free."""
        few = self.few_nodes
        if few is not None:
            yield from (node for node in few if self.may_fit(node))
            return
        n = self.count
        orders = []
        for family in self._pool_capacity.families():
            floor = self.floor(family)
            if floor is not None and len(family.by_nth) >= n:
                order = family.by_nth[n - 1]
                orders.append(order.islice(order.bisect_left((floor.memory_mib,))))
        for _, _, node in heapq.merge(*orders) if len(orders) > 1 else (orders or [()])[0]:
            if self.may_fit(node):
                yield node

    def emptiest_first(self) -> Iterator[NodeCapacity]:
        """Nodes where it may be, those with the most free memory first."""
        few = self.few_nodes
        if few is not None:
            yield from sorted(few, key=lambda node: (-node.total_mib, node.name))
            return
        for _, _, node in self._pool_capacity.by_total:
            if self.nodes is None or node.name in self.nodes:
                yield node

    def by_untouched(self, at_least: int, *, most_first: bool = False) -> Iterator[NodeCapacity]:
        """Nodes with at least so many untouched GPUs: those with small GPUs first, and of these
        the ones with the fewest (or the most) untouched."""
        few = self.few_nodes
        if few is not None:
            enough = [node for node in few if node.untouched >= at_least]
            enough.sort(key=lambda node: (node.untouched, node.name), reverse=most_first)
            yield from enough
            return
        for family in self._smallest_first():
            order = family.by_untouched
            start = order.bisect_left((at_least,))
            for _, _, node in order.islice(start, reverse=most_first):
                if self.nodes is None or node.name in self.nodes:
                    yield node

    def _smallest_first(self) -> list[Family]:
        sizes = []
        for family in self._pool_capacity.families():
            wanted = [kind.sample for kind in family.kinds if self.need(kind)]
            if wanted and family.by_untouched:
                _, name, _ = family.by_untouched[0]
                sizes.append((min(g.memory_mib - g.reserved_mib for g in wanted), name, family))
        return [family for _, _, family in sorted(sizes, key=lambda size: size[:2])]
