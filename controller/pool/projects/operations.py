# SPDX-License-Identifier: Apache-2.0
"""What operators set for a project: how much it may hold, and with what priority.

Part of pool.Pool, called by controller.api through the grant service.
"""

from __future__ import annotations

from dataclasses import replace

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.grants.ledger import GrantLedger
from sluice.controller.pool.impossible import Unknown
from sluice.controller.pool.model import Quota, QuotaRemoved
from sluice.controller.pool.queue.progress import Progress


class QuotaOperations:
    """Steps that change quotas."""

    def __init__(self, ledger: GrantLedger, progress: Progress) -> None:
        self._ledger = ledger
        self._progress = progress

    def set_quota(self, quota: Quota) -> Decisions:
        """From now on a project may hold this; what it holds already stays."""
        known = self._ledger.quotas.limits.get(quota.project)
        quota = replace(quota, generation=known.generation + 1 if known else 1)
        self._ledger.quotas.limits[quota.project] = quota
        self._ledger.changes.append(quota)
        text = (
            f"{quota.vgpus} vGPUs, {quota.memory_mib} MiB, {quota.compute_percent} % "
            f"(0: no limit){', may preempt' if quota.may_preempt else ''}"
            + ("" if quota.max_priority is None else f", priority at most {quota.max_priority}")
        )
        self._ledger.event("quota.set", quota.project, text)
        return self._progress.after(Decisions())

    def remove_quota(self, project: str) -> Decisions:
        """The project may hold what there is; raises Unknown."""
        if self._ledger.quotas.limits.pop(project, None) is None:
            raise Unknown("quota", project)
        self._ledger.changes.append(QuotaRemoved(project))
        self._ledger.event("quota.removed", project, "no limit")
        return self._progress.after(Decisions())
