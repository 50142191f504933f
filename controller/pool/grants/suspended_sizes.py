# SPDX-License-Identifier: Apache-2.0
"""What a grant's vGPUs take when it runs, and what of them stays while it is suspended.

Used by suspending.Suspending; it changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.model import Grant, Vgpu

MOST_MIB = 1 << 32  # more than any context takes


class SuspendedSizes:
    """Of the ledger's grants, with the contexts of the sessions that they have now."""

    def __init__(self, ledger: GrantLedger) -> None:
        self._ledger = ledger

    def when_it_runs(self, grant: Grant) -> tuple[Vgpu, ...]:
        """Its vGPUs with all that they have then, contexts included."""
        return self.sized(grant) if grant.running_vgpus else self._with_contexts(grant)

    def sized(self, grant: Grant) -> tuple[Vgpu, ...]:
        """The same of one that is suspended."""
        return tuple(
            replace(now, memory_mib=size.memory_mib, compute_percent=size.compute_percent)
            for now, size in zip(self._with_contexts(grant), grant.running_vgpus, strict=True)
        )

    def staying(self, grant: Grant, staying_mib: tuple[int, ...]) -> tuple[Vgpu, ...]:
        """Its vGPUs with what stays of them, without compute."""
        told = [*staying_mib, *[0] * len(grant.vgpus)]
        return tuple(
            replace(now, memory_mib=min(stays, full.memory_mib), compute_percent=0)
            for now, full, stays in zip(
                self._with_contexts_that_stay(grant), grant.running_vgpus, told, strict=False
            )
        )

    def _with_contexts(self, grant: Grant) -> tuple[Vgpu, ...]:
        """As they are, with all of its contexts on their GPUs."""
        return self._ledger.charged(grant, self._ledger.sessions.live_of(grant.id))

    def _with_contexts_that_stay(self, grant: Grant) -> tuple[Vgpu, ...]:
        vgpus = self._with_contexts(grant)
        if not (grant.contexts and grant.contexts.are_off):
            return vgpus
        told = [*grant.contexts.mib, *[MOST_MIB] * len(vgpus)]
        return tuple(
            replace(vgpu, overhead_mib=min(vgpu.overhead_mib, mib))
            for vgpu, mib in zip(vgpus, told, strict=False)
        )
