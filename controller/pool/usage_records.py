# SPDX-License-Identifier: Apache-2.0
"""What projects and people have had of the pool: records as stores keep them.

Made by projects.usage and projects.shares; part of model.Change.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """What a project held in one hour, in seconds times what it held; exact up to `until`."""

    project: str
    hour: int  # of the epoch
    vgpu_seconds: float
    memory_mib_seconds: float
    compute_percent_seconds: float
    until: float
    # of the GPUs' time, as nodes have reported it by then
    gpu_seconds: float = 0.0  # that its vGPUs used
    gpu_wait_seconds: float = 0.0  # that their work waited for turns


@dataclass(frozen=True, slots=True)
class UsageShare:
    """What a person had of a project under a label in one day (UTC), as in a UsageRecord."""

    project: str
    person: str  # empty: nobody in particular
    label: str  # empty: none
    day: int  # of the epoch
    vgpu_seconds: float
    memory_mib_seconds: float
    compute_percent_seconds: float
    until: float
    gpu_seconds: float = 0.0
    gpu_wait_seconds: float = 0.0
