# SPDX-License-Identifier: Apache-2.0
"""What each vGPU has had of its GPU's time, as its node reports it.

Owned by ledger.GrantLedger, which says when a grant ends; rpc.node_service takes reports in. It is
kept in memory only: a controller that begins hears of all of it again, and of how much was counted
before. It promises that a second of GPU time is counted once for its project, whether server or
controller was restarted meanwhile, as long as one of the two remembers; where neither does, what
was used in between is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sluice.controller.pool.grants.used_tally import UsedTally
from sluice.controller.pool.model import DEFAULT_PROJECT, Grant

#: Of which sums are kept; the oldest makes room.
MOST_PROJECTS = 10_000


@dataclass(frozen=True, slots=True)
class VgpuReport:
    """A node's figures of one vGPU: seconds since its sessions began, shares from 0 to 1."""

    grant_id: str
    number: int  # in the grant
    used: float
    waited: float | None  # None: it does not know yet
    share_1s: float
    share_60s: float
    counted_used: float = 0.0  # of it, what an earlier controller was told
    counted_waited: float = 0.0


@dataclass(slots=True)
class VgpuTime:
    """What is known of one vGPU."""

    last: VgpuReport
    used: float  # seconds of its GPU's time
    waited: float  # seconds that its work waited for a turn

    @property
    def share_1s(self) -> float:
        """That it used of its GPU in the last second."""
        return self.last.share_1s

    @property
    def share_60s(self) -> float:
        """And in the last minute."""
        return self.last.share_60s


class VgpuTimes:
    """Every vGPU that its node has told of, by its grant and its number there."""

    def __init__(self, count: Callable[[Grant, float, float], None]) -> None:
        """`count` is told what a grant had: GPU-seconds used, and waited."""
        self._count = count
        #: Where history is kept, what it is made of.
        self.tally: UsedTally | None = None
        #: GPU-seconds of each project since this controller began, for its metrics.
        self.used_of_project: dict[str, float] = {}
        self._of_grant: dict[str, dict[int, VgpuTime]] = {}

    def of(self, grant_id: str, number: int) -> VgpuTime | None:
        """One vGPU; None where its node has said nothing."""
        return self._of_grant.get(grant_id, {}).get(number)

    def take(self, grant: Grant, report: VgpuReport) -> None:
        """What the node of a live grant says of one of its vGPUs."""
        if not 0 <= report.number < len(grant.vgpus):
            return
        known = self._of_grant.setdefault(grant.id, {})
        time = known.get(report.number)
        if time is None:
            known[report.number] = VgpuTime(report, report.used, report.waited or 0.0)
            used = max(0.0, report.used - report.counted_used)
            waited = max(0.0, (report.waited or 0.0) - report.counted_waited)
        else:
            # less than before: its server was restarted, and sessions of a job had ended
            used = max(0.0, report.used - time.last.used)
            time.used += used
            waited = self._waited(time, report)
        if used or waited:
            self._count(grant, used, waited)
            self._sum_up(grant.project or DEFAULT_PROJECT, used)
            if used and self.tally is not None:
                self.tally.add(grant, report.number, used)

    def _waited(self, time: VgpuTime, report: VgpuReport) -> float:
        """How much longer it waited than is counted; the report is its last from now on."""
        before, time.last = time.last, report
        if report.waited is None:  # a server that was restarted has not asked yet
            time.last = replace(report, waited=before.waited)
            return 0.0
        if before.waited is None:
            time.waited = report.waited
            return max(0.0, report.waited - report.counted_waited)
        more = max(0.0, report.waited - before.waited)
        time.waited += more
        return more

    def _sum_up(self, project: str, used: float) -> None:
        if project not in self.used_of_project and len(self.used_of_project) >= MOST_PROJECTS:
            del self.used_of_project[next(iter(self.used_of_project))]
        self.used_of_project[project] = self.used_of_project.get(project, 0.0) + used

    def forget(self, grant_id: str) -> None:
        """The grant has ended."""
        self._of_grant.pop(grant_id, None)
