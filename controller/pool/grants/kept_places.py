# SPDX-License-Identifier: Apache-2.0
"""Room on GPUs that grants are to move to, booked from the order until they are there.

Owned by bookings.Bookings, beside the grants' own vGPUs; kept and dropped by suspending.Suspending,
and dropped by the ledger with a grant's end. It promises that a grant has one such place at most,
booked as if it ran there, so that nobody else is promised that room. While it is being restored
there, and booked there itself, it is what its contexts have left where it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from sluice.controller.pool.gpus.allocations import Allocations
from sluice.controller.pool.model import GpuKey, Grant, Vgpu


def taken(vgpus: Sequence[Vgpu]) -> tuple[int, int]:
    """MiB, contexts included, and percent of compute, in all."""
    mib = sum(vgpu.memory_mib + vgpu.overhead_mib for vgpu in vgpus)
    return mib, sum(vgpu.compute_percent for vgpu in vgpus)


class KeptPlaces:
    """By grant."""

    def __init__(self, allocations: Allocations) -> None:
        self._allocations = allocations
        self._booked: dict[str, Grant] = {}  # as a grant that is not one

    def keep(self, grant: Grant, vgpus: tuple[Vgpu, ...]) -> None:
        """Books these for it, in the place of what was kept before."""
        self.drop(grant.id)
        booking = Grant(
            *(grant.id, "", grant.node, vgpus, grant.priority, grant.created),
            job_processes=grant.job_processes,
            project=grant.project,
        )
        self._booked[grant.id] = booking
        self._allocations.book(booking)

    def drop(self, grant_id: str) -> None:
        """It is there, or is not to go there; nothing where nothing is kept."""
        if booking := self._booked.pop(grant_id, None):
            self._allocations.unbook(booking)

    def of(self, grant_id: str) -> tuple[Vgpu, ...]:
        """What is kept for a grant."""
        booking = self._booked.get(grant_id)
        return booking.vgpus if booking else ()

    def on(self, grant_id: str) -> str:
        """The GPU on which that is; "": nothing is."""
        return next((vgpu.gpu_uuid for vgpu in self.of(grant_id)), "")

    def used_of(self, key: GpuKey) -> tuple[int, int]:
        """MiB and percent of a GPU that are kept for grants which are not there yet."""
        there = [
            vgpu for booking in self._booked.values() for at, vgpu in booking.placed() if at == key
        ]
        return taken(there)

    @contextlib.contextmanager
    def without(self, grant_id: str) -> Iterator[None]:
        """For the length of a block, as if nothing were kept for this grant."""
        booking = self._booked.get(grant_id)
        with self._allocations.without([booking] if booking else []):
            yield
