# SPDX-License-Identifier: Apache-2.0
"""Who may be on a GPU beside whom: vGPUs that have turns, or those of one project that run at once.

Kept by allocations, read by placement and preemption. Through NVIDIA's MPS a vGPU has a part of the
multiprocessors, in turns a part of the time; with both a share of p would be p of p, and two
projects never share an MPS server (docs/decisions/0005). So a GPU has the one kind or the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.model import DEFAULT_PROJECT, Grant, NodeSharing, ShareKeeping
from sluice.protocol.frames import MAX_CONCURRENT_SESSIONS, MIN_CONCURRENT_PERCENT
from sluice.resources.vgpu_request import Sharing, sharing_on

WHOLE_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many vGPUs of a GPU have turns, and how many, of how many processes, run at once."""

    in_turns: int = 0
    at_once: int = 0
    processes: int = 0
    project: str = ""  # whose those are

    def admits(self, sharing: Sharing, project: str, processes: int) -> bool:
        """Whether a vGPU of that kind may join."""
        if sharing is not Sharing.CONCURRENT:
            return self.at_once == 0
        if self.at_once == 0:
            return self.in_turns == 0
        return (
            self.in_turns == 0
            and self.project == (project or DEFAULT_PROJECT)
            and self.processes + processes <= MAX_CONCURRENT_SESSIONS
        )

    def plus(self, sharing: Sharing, project: str, processes: int) -> Occupancy:
        """With such a vGPU besides."""
        if sharing is not Sharing.CONCURRENT:
            return Occupancy(self.in_turns + 1, self.at_once, self.processes, self.project)
        whose = project or DEFAULT_PROJECT
        return Occupancy(self.in_turns, self.at_once + 1, self.processes + processes, whose)

    def minus(self, sharing: Sharing, processes: int) -> Occupancy:
        """Without one of them."""
        if sharing is not Sharing.CONCURRENT:
            return Occupancy(self.in_turns - 1, self.at_once, self.processes, self.project)
        left = self.at_once - 1
        whose = self.project if left else ""
        return Occupancy(self.in_turns, left, self.processes - processes, whose)


NOBODY = Occupancy()


def processes_of(grant: Grant) -> int:
    """How many MPS clients each of its vGPUs may be, if it runs at once with others."""
    return max(1, grant.job_processes)


def sharing_for(
    request: GrantRequest, compute_percent: int, on: NodeSharing, *, lasting: bool = False
) -> Sharing | None:
    """How the request's vGPU is shared on such a node's GPU; None: not as it has to be.

    What is reserved is promised, so its share has to be one that is kept. `lasting`: what is only
    so for a while does not count.
    """
    concurrent = on.concurrent and compute_percent >= MIN_CONCURRENT_PERCENT
    chosen = sharing_on(request.sharing, on.pool, on.default, concurrent=concurrent)
    if chosen is Sharing.CONCURRENT or not request.reservation or compute_percent == WHOLE_PERCENT:
        return chosen
    kept = on.shares is ShareKeeping.KEPT or (lasting and on.shares is ShareKeeping.AWAY)
    return chosen if kept else None
