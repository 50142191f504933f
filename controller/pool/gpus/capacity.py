# SPDX-License-Identifier: Apache-2.0
"""What is free on every GPU, sorted so that a placement looks at few of them.

Owned by fleet.Fleet, which says which nodes and GPUs there are (`put`, `drop`) and lets the
allocations tell of every booking (`changed`); read by placement and fragmentation. GPUs on which
any request means the same slice are of one kind. It promises that the orders below always agree
with the allocations, and that they depend on names and figures only, never on who came first:

    kind.by_percent     the kind's GPUs by free compute, then by free memory
    family.by_nth       nodes with GPUs of the same kinds, by the free memory of their n-th best GPU
    by_total            nodes by all their free memory, most first
    family.by_untouched nodes with such GPUs by how many of them have nothing on them

A booking changes a few entries of these. Closed GPUs (those of a node that is away) are in none,
but are remembered, so that what could fit later is told from what never can.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sortedcontainers import SortedList

from sluice.controller.pool.gpus.allocations import Usage
from sluice.controller.pool.gpus.fragmentation import Fragments
from sluice.controller.pool.gpus.oversubscription import ONCE, Promise
from sluice.controller.pool.gpus.slices import WHOLE_PERCENT, FreeCapacity
from sluice.controller.pool.model import IN_TURNS, Gpu, GpuKey, Labels, NodeSharing

NOTHING = Usage()


class GpuKind:
    """GPUs on which any request means the same slice: they differ in what is free only."""

    __slots__ = (
        "architecture",
        "by_percent",
        "model",
        "promise",
        "sample",
        "sharing",
        "vgpu_count",
    )

    def __init__(
        self, gpu: Gpu, vgpu_count: int, sharing: NodeSharing, promise: Promise = ONCE
    ) -> None:
        self.promise = promise
        self.sample = gpu
        self.model = gpu.model
        self.architecture = gpu.architecture
        self.vgpu_count = vgpu_count
        self.sharing = sharing
        # by free percent the GPUs that have it: (free MiB, node, UUID, capacity)
        self.by_percent: dict[int, SortedList] = defaultdict(SortedList)


class GpuCapacity:
    """A GPU and what is free on it, now."""

    __slots__ = (
        "beside_mib",
        "free_mib",
        "free_percent",
        "gpu",
        "host_left_mib",
        "is_open",
        "kind",
        "largest_mib",
        "node",
        "occupancy",
        "there_left_mib",
    )

    def __init__(self, gpu: Gpu, kind: GpuKind, node: NodeCapacity, *, is_open: bool) -> None:
        self.gpu = gpu
        self.kind = kind
        self.node = node
        self.is_open = is_open
        self.set_usage(NOTHING)

    def set_usage(self, usage: Usage) -> None:
        """Takes over what is allocated."""
        self.free_mib = self.kind.promise.limit_mib(self.gpu) - usage.memory_mib
        # where memory is promised more than once: beside what never moves, and what has to fit in
        there = self.gpu.memory_mib - self.gpu.reserved_mib
        self.beside_mib = there - usage.staying_mib
        self.there_left_mib = there - usage.memory_mib
        self.host_left_mib = self.there_left_mib + self.kind.promise.beyond_mib
        self.largest_mib = usage.largest_mib if self.kind.promise.is_over else 0
        self.free_percent = 100 - usage.compute_percent
        self.occupancy = usage.occupancy

    @property
    def vgpu_count(self) -> int:
        """The default cut of its node."""
        return self.kind.vgpu_count

    @property
    def figures(self) -> FreeCapacity:
        """A copy of what is free on it now."""
        return FreeCapacity(
            self.gpu,
            self.free_mib,
            self.free_percent,
            self.kind.vgpu_count,
            self.kind.sharing,
            self.occupancy,
            self.beside_mib if self.kind.promise.is_over else None,
            self.largest_mib,
            self.there_left_mib,
            self.host_left_mib,
        )

    @property
    def sharing(self) -> NodeSharing:
        """How vGPUs of it can be shared."""
        return self.kind.sharing

    @property
    def entry(self) -> tuple[int, str, str, GpuCapacity]:
        """Its place among those with the same free percent."""
        return (self.free_mib, self.gpu.node, self.gpu.uuid, self)


class Family:
    """Nodes whose GPUs are of the same kinds."""

    __slots__ = ("by_nth", "by_untouched", "kinds")

    def __init__(self, kinds: tuple[GpuKind, ...]) -> None:
        self.kinds = kinds
        # at index n - 1: (free MiB of the GPU that is n-th best by that, node's name, node)
        self.by_nth: list[SortedList] = []
        self.by_untouched = SortedList()  # (untouched GPUs, node's name, node)


class NodeCapacity:
    """A node's GPUs and the figures by which it is found."""

    __slots__ = (
        "closed_gpus",
        "family",
        "free_mib",
        "free_percent",
        "in_group",
        "labels",
        "name",
        "open_gpus",
        "shape",
        "total_mib",
        "total_percent",
        "untouched",
    )

    def __init__(self, name: str, labels: Labels) -> None:
        self.name = name
        self.labels = labels
        self.open_gpus: list[GpuCapacity] = []
        self.closed_gpus: list[GpuCapacity] = []
        self.family = Family(())
        self.shape: Shape = ()
        self.free_mib: list[int] = []  # of each open GPU, most first
        self.free_percent: list[int] = []  # the same of compute
        self.total_mib = 0
        self.total_percent = 0
        self.untouched = 0
        self.in_group = 0  # the most untouched GPUs that one NVLink group has

    def every(self) -> list[GpuCapacity]:
        """Its GPUs, closed ones too."""
        return [*self.open_gpus, *self.closed_gpus]

    def sum_up(self) -> None:
        """Sums up its GPUs anew."""
        self.free_mib = sorted([capacity.free_mib for capacity in self.open_gpus], reverse=True)
        self.free_percent = sorted(
            [capacity.free_percent for capacity in self.open_gpus], reverse=True
        )
        self.total_mib = sum(self.free_mib)
        self.total_percent = sum(self.free_percent)
        # nothing is booked on them: every vGPU takes some compute
        untouched = [
            capacity for capacity in self.open_gpus if capacity.free_percent == WHOLE_PERCENT
        ]
        self.untouched = len(untouched)
        self.in_group = 0
        if untouched:
            groups = Counter([capacity.gpu.nvlink_group for capacity in untouched])
            alone = 1 if groups.pop("", 0) else 0
            self.in_group = max(groups.values(), default=alone)


Shape = tuple[tuple[int, GpuKind], ...]  # how many GPUs of which kinds, closed ones too


class PoolCapacity:
    """Every node that may come into question, and the orders in which they are looked at."""

    def __init__(self, usage: Callable[[GpuKey], Usage]) -> None:
        self._usage = usage
        self._gpus: dict[GpuKey, GpuCapacity] = {}
        self._kinds: dict[tuple[Any, ...], GpuKind] = {}
        self._families: dict[tuple[GpuKind, ...], Family] = {}
        self.nodes: dict[str, NodeCapacity] = {}
        self.by_label: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.shapes: dict[Shape, set[str]] = defaultdict(set)  # names of nodes
        self.by_total = SortedList()  # (-free MiB, node's name, node)
        self.fragments = Fragments()

    # what there is

    def put(
        self,
        name: str,
        labels: Labels,
        gpus: Iterable[Gpu],
        vgpu_count: int,
        *,
        is_open: bool | Callable[[Gpu], bool],
        sharing: NodeSharing = IN_TURNS,
        promises: Mapping[str, Promise] | None = None,
    ) -> None:
        """Takes in a node as it is now; GPUs that are not open are remembered only.

        `promises` are by UUID, of those whose memory may be promised more than once.
        """
        self.drop(name)
        promised = promises or {}
        node = self.nodes[name] = NodeCapacity(name, labels)
        for gpu in sorted(gpus, key=lambda gpu: gpu.uuid):
            opened = is_open if isinstance(is_open, bool) else is_open(gpu)
            kind = self._kind(gpu, vgpu_count, sharing, promised.get(gpu.uuid, ONCE))
            capacity = GpuCapacity(gpu, kind, node, is_open=opened)
            capacity.set_usage(self._usage(gpu.key))
            self._gpus[gpu.key] = capacity
            (node.open_gpus if capacity.is_open else node.closed_gpus).append(capacity)
        node.shape = _shape(node.every())
        self.shapes[node.shape].add(name)
        for label in labels:
            self.by_label[label].add(name)
        node.family = self._family(node)
        node.sum_up()
        for capacity in node.open_gpus:
            self._enter(capacity)
        for n, mib in enumerate(node.free_mib):
            node.family.by_nth[n].add((mib, name, node))
        if node.open_gpus:
            self.by_total.add((-node.total_mib, name, node))
            node.family.by_untouched.add((node.untouched, name, node))

    def drop(self, name: str) -> None:
        """Forgets a node."""
        node = self.nodes.pop(name, None)
        if node is None:
            return
        for capacity in node.open_gpus:
            self._leave(capacity)
        for capacity in node.every():
            del self._gpus[capacity.gpu.key]
        for n, mib in enumerate(node.free_mib):
            node.family.by_nth[n].remove((mib, name, node))
        if node.open_gpus:
            self.by_total.remove((-node.total_mib, name, node))
            node.family.by_untouched.remove((node.untouched, name, node))
        self.shapes[node.shape].discard(name)
        if not self.shapes[node.shape]:
            del self.shapes[node.shape]
        for label in node.labels:
            self.by_label[label].discard(name)
            if not self.by_label[label]:
                del self.by_label[label]

    def changed(self, key: GpuKey, usage: Usage) -> None:
        """The allocations have booked or unbooked something on a GPU."""
        capacity = self._gpus.get(key)
        if capacity is None:
            return
        if not capacity.is_open:
            capacity.set_usage(usage)
            return
        self._leave(capacity)
        capacity.set_usage(usage)
        self._enter(capacity)
        self._sum_up(capacity.node)

    def of(self, key: GpuKey) -> GpuCapacity | None:
        """One GPU's room; None for one of a lost node."""
        return self._gpus.get(key)

    def kinds(self) -> set[GpuKind]:
        """Every kind of GPU that there is."""
        return {kind for shape in self.shapes for _, kind in shape}

    def families(self) -> Collection[Family]:
        """Every family of nodes that there ever was."""
        return self._families.values()

    def with_labels(self, labels: Labels) -> set[str] | None:
        """The nodes that have all of them; None: no label is wanted."""
        found = sorted((self.by_label.get(label, set()) for label in labels), key=len)
        return set.intersection(*found) if found else None

    # within

    def _enter(self, capacity: GpuCapacity) -> None:
        if 0 < capacity.free_percent <= 100 and capacity.free_mib > 0:
            capacity.kind.by_percent[capacity.free_percent].add(capacity.entry)
        self.fragments.count(capacity.figures, 1)

    def _leave(self, capacity: GpuCapacity) -> None:
        if 0 < capacity.free_percent <= 100 and capacity.free_mib > 0:
            capacity.kind.by_percent[capacity.free_percent].remove(capacity.entry)
        self.fragments.count(capacity.figures, -1)

    def _sum_up(self, node: NodeCapacity) -> None:
        mibs, total, untouched = node.free_mib, node.total_mib, node.untouched
        node.sum_up()
        for order, old, new in zip(node.family.by_nth, mibs, node.free_mib, strict=False):
            if old != new:
                order.remove((old, node.name, node))
                order.add((new, node.name, node))
        if node.total_mib != total:
            self.by_total.remove((-total, node.name, node))
            self.by_total.add((-node.total_mib, node.name, node))
        if node.untouched != untouched:
            node.family.by_untouched.remove((untouched, node.name, node))
            node.family.by_untouched.add((node.untouched, node.name, node))

    def _kind(self, gpu: Gpu, vgpu_count: int, sharing: NodeSharing, promise: Promise) -> GpuKind:
        key = (
            gpu.model,
            gpu.architecture,
            gpu.memory_mib,
            gpu.reserved_mib,
            gpu.context_overhead_mib,
            vgpu_count,
            sharing,
            promise,
        )
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = GpuKind(gpu, vgpu_count, sharing, promise)
        return kind

    def _family(self, node: NodeCapacity) -> Family:
        kinds = tuple(dict.fromkeys(kind for _, kind in _shape(node.open_gpus)))
        family = self._families.setdefault(kinds, Family(kinds))
        while len(family.by_nth) < len(node.open_gpus):
            family.by_nth.append(SortedList())
        return family


def _shape(capacities: Sequence[GpuCapacity]) -> Shape:
    counts = Counter(capacity.kind for capacity in capacities)
    return tuple(sorted(((n, kind) for kind, n in counts.items()), key=lambda c: (c[0], id(c[1]))))
