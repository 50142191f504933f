# SPDX-License-Identifier: Apache-2.0
"""Which place is kept for a grant that moves, from the order until it is there.

Used by suspending.Suspending, at each turn of such a grant's; the room is moving.MovePlaces', the
booking kept_places.KeptPlaces'. It promises that what is on its way has its place on the GPU where
it goes, and while it is being restored there what it has yet on the GPU that it leaves; and that
what has to wait for something else than that keeps nothing.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.grants.jobs import Jobs
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.grants.moving import MovePlaces, at, own_gpu
from sluice.controller.pool.grants.suspended_sizes import SuspendedSizes
from sluice.controller.pool.grants.suspension import ReportedSuspension, SuspensionState
from sluice.controller.pool.model import GpuKey, Grant, Vgpu


class PlacesOnTheWay:
    """Of the pool's grants."""

    def __init__(
        self,
        ledger: GrantLedger,
        fleet: Fleet,
        jobs: Jobs,
        places: MovePlaces,
        sizes: SuspendedSizes,
    ) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._jobs = jobs
        self._places = places
        self._sizes = sizes

    def keep(self, grant: Grant, *, stands: bool) -> None:
        """Where it is to go is booked, as it is when it runs; `stands`: as long as its VM does."""
        if grant.suspension is SuspensionState.RESUMING:
            return  # it is booked there itself
        comes = grant.resumes and not stands and not self._jobs.is_ending(grant)
        if grant.moving_to and comes:
            self._places.keep(grant, at(self._sizes.when_it_runs(grant), grant.moving_to))
        else:
            self._ledger.places.drop(grant.id)

    def leaves(self, grant: Grant, stays: tuple[Vgpu, ...]) -> None:
        """It is booked where it goes from now on; what `stays` is gone when it is there."""
        if stays[0].gpu_uuid != own_gpu(grant).uuid:
            self._ledger.places.keep(grant, stays)

    def learn(self, grant: Grant, report: ReportedSuspension) -> None:
        """Where one goes, as its server says, of which nobody here knows that it moves."""
        there = report.moving_to if not report.error else ""
        known = GpuKey(grant.node, there) in self._fleet.gpus and there != own_gpu(grant).uuid
        grant.moving_to = there if known and not self._places.why_never(grant) else ""
        if grant.moving_to:
            self._places.keep(grant, at(self._sizes.when_it_runs(grant), there))
        else:
            self._ledger.places.drop(grant.id)

    def learn_what_stays(self, grant: Grant, report: ReportedSuspension) -> None:
        """Of one that was on its way before this controller began: what is yet where it was."""
        there, mib = report.gpu_uuids[:1], report.contexts.mib if report.contexts else ()
        if len(grant.vgpus) == len(mib) == 1 and there:
            left = replace(grant.vgpus[0], memory_mib=0, compute_percent=0, overhead_mib=mib[0])
            self.leaves(grant, at((left,), there[0]))
