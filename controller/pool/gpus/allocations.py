# SPDX-License-Identifier: Apache-2.0
"""What is allocated of every GPU: what live grants take of its memory and compute.

Owned by grants.bookings; each live grant is booked once and unbooked once. It promises exact sums:
a GPU's use is the sum of the vGPUs of live grants and their contexts' overhead, nothing else.
Whoever set `on_change` is told of each GPU whose use has changed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from sluice.controller.pool.gpus.occupancy import NOBODY, Occupancy, processes_of
from sluice.controller.pool.gpus.oversubscription import stays
from sluice.controller.pool.model import GpuKey, Grant


@dataclass(slots=True)
class Usage:
    """What is promised of one GPU."""

    memory_mib: int = 0
    compute_percent: int = 0
    vgpus: int = 0
    staying_mib: int = 0  # of the memory: contexts, and vGPUs that can never be moved for others
    movable: Counter[int] = field(default_factory=Counter)  # how many of the others have how much
    occupancy: Occupancy = NOBODY

    @property
    def largest_mib(self) -> int:
        """Of those that can be moved."""
        return max(self.movable, default=0)


class Allocations:
    """Use by GPU, changed only by booking and unbooking whole grants."""

    def __init__(self) -> None:
        self._usage: dict[GpuKey, Usage] = {}
        self.on_change: Callable[[GpuKey, Usage], None] = lambda key, usage: None

    def usage(self, key: GpuKey) -> Usage:
        """The use of a GPU; zeros if nothing is booked on it."""
        return self._usage.get(key) or Usage()

    def book(self, grant: Grant) -> None:
        """Adds a grant's vGPUs."""
        self._add(grant, 1)

    def unbook(self, grant: Grant) -> None:
        """Takes a grant's vGPUs off again."""
        self._add(grant, -1)

    @contextlib.contextmanager
    def without(self, grants: Iterable[Grant]) -> Iterator[None]:
        """For the length of a block, the allocations as they would be if these grants had ended."""
        gone = list(grants)
        for grant in gone:
            self.unbook(grant)
        try:
            yield
        finally:
            for grant in gone:
                self.book(grant)

    def _add(self, grant: Grant, sign: int) -> None:
        processes = processes_of(grant)
        for key, vgpu in grant.placed():
            if vgpu.is_unknown:
                continue
            usage = self._usage.setdefault(key, Usage())
            at = usage.occupancy
            usage.occupancy = (
                at.plus(vgpu.sharing, grant.project, processes)
                if sign > 0
                else at.minus(vgpu.sharing, processes)
            )
            usage.staying_mib += sign * vgpu.overhead_mib
            if stays(grant, vgpu):
                usage.staying_mib += sign * vgpu.memory_mib
            else:
                usage.movable[vgpu.memory_mib] += sign
                if not usage.movable[vgpu.memory_mib]:
                    del usage.movable[vgpu.memory_mib]
            usage.memory_mib += sign * (vgpu.memory_mib + vgpu.overhead_mib)
            usage.compute_percent += sign * vgpu.compute_percent
            usage.vgpus += sign
            if usage.vgpus == 0:
                del self._usage[key]
            self.on_change(key, usage)
