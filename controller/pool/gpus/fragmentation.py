# SPDX-License-Identifier: Apache-2.0
"""How much of the free memory can still be given in useful pieces.

Owned by capacity.PoolCapacity, which counts every open GPU in and out as it changes, so that
reading the figures is cheap; read by pool.Pool for REST and metrics.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sluice.controller.pool.gpus.slices import WHOLE_PERCENT, FreeCapacity


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Of the GPUs that something could be placed on now.

    A share is between 0 (all that is free can be given in such pieces) and 1 (none of it can).
    """

    free_mib: int  # booked by nobody
    free_cards: int  # GPUs with nothing on them
    free_default_slices: int  # vGPUs of the default size that fit
    largest_vgpu_mib: int  # the most that one vGPU could get
    whole_card_loss: float  # the share of the free memory that is not on free cards
    default_slice_loss: float  # the share of it that no default slice can use


class Fragments:
    """The running sums."""

    def __init__(self) -> None:
        self._free_mib = 0
        self._on_cards_mib = 0
        self._in_slices_mib = 0
        self._cards = 0
        self._slices = 0
        self._largest: Counter[int] = Counter()  # GPUs by the largest vGPU that they could give

    def count(self, capacity: FreeCapacity, sign: int) -> None:
        """Adds a GPU as it is now, or takes it off as it was added."""
        free = max(0, capacity.free_mib)
        self._free_mib += sign * free
        if capacity.free_percent == WHOLE_PERCENT:
            self._cards += sign
            self._on_cards_mib += sign * free
        slices, of_each = _default_slices(capacity)
        self._slices += sign * slices
        self._in_slices_mib += sign * slices * of_each
        if (
            capacity.free_percent > 0
            and (most := capacity.free_mib - capacity.gpu.context_overhead_mib) > 0
        ):
            self._largest[most] += sign
            if not self._largest[most]:
                del self._largest[most]

    def read(self) -> Fragmentation:
        """The figures of now."""
        return Fragmentation(
            free_mib=self._free_mib,
            free_cards=self._cards,
            free_default_slices=self._slices,
            largest_vgpu_mib=max(self._largest, default=0),
            whole_card_loss=_loss(self._on_cards_mib, self._free_mib),
            default_slice_loss=_loss(self._in_slices_mib, self._free_mib),
        )


def _default_slices(capacity: FreeCapacity) -> tuple[int, int]:
    """How many default slices fit beside what is there, and the MiB of each with its context."""
    gpu, count = capacity.gpu, capacity.vgpu_count
    each = max((gpu.memory_mib - gpu.reserved_mib) // count, gpu.context_overhead_mib + 1)
    fit = min(capacity.free_mib // each, capacity.free_percent // max(1, 100 // count), count)
    return max(0, fit), each


def _loss(usable_mib: int, free_mib: int) -> float:
    return 1 - min(1.0, usable_mib / free_mib) if free_mib else 0.0
