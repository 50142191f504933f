# SPDX-License-Identifier: Apache-2.0
"""GPU time that was used since it was last asked for, by GPU and by project.

Filled by vgpu_times, emptied by history.sampling; there is one only where history is kept. Between
two questions it has as many entries as GPUs and projects that worked.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from sluice.controller.pool.model import DEFAULT_PROJECT, GpuKey, Grant


class Used(NamedTuple):
    """Seconds of GPUs' time."""

    of_gpu: dict[GpuKey, float]
    of_project: dict[str, float]


class UsedTally:
    """The seconds."""

    def __init__(self) -> None:
        self._gpus: defaultdict[GpuKey, float] = defaultdict(float)
        self._projects: defaultdict[str, float] = defaultdict(float)

    def add(self, grant: Grant, number: int, seconds: float) -> None:
        """A vGPU of a grant had so many more."""
        vgpu = grant.vgpus[number]
        self._gpus[GpuKey(vgpu.node or grant.node, vgpu.gpu_uuid)] += seconds
        self._projects[grant.project or DEFAULT_PROJECT] += seconds

    def take(self) -> Used:
        """All of it; it begins anew."""
        taken = Used(self._gpus, self._projects)
        self._gpus, self._projects = defaultdict(float), defaultdict(float)
        return taken
