# SPDX-License-Identifier: Apache-2.0
"""One step of history, out of the pool's memory.

Used by keeper. A large pool is looked at in slices, between which the controller serves others: a
slice is a millisecond or so. What is promised is as it is at that moment, what was used is the
whole step's.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict

from sluice.controller.history.series import POOL, Values, of_gpu, of_node, of_project
from sluice.controller.pool.grants.used_tally import Used
from sluice.controller.pool.model import DEFAULT_PROJECT, GpuKey
from sluice.controller.pool.pool import Pool

SLICE = 200
MOST_PROJECTS = 2000
_PERCENT = 100.0


async def sample(pool: Pool, used: Used | None, seconds: float) -> dict[str, Values]:
    """Every series' values; without `used` nobody knows what was used in the step."""
    found: dict[str, Values] = {}
    of_nodes: defaultdict[str, list[Values]] = defaultdict(list)
    keys = list(pool.gpus)
    for at in range(0, len(keys), SLICE):
        for key in keys[at : at + SLICE]:
            if key in pool.gpus:
                values = _of_gpu(pool, key, used, seconds)
                found[of_gpu(key.node, key.uuid)] = values
                of_nodes[key.node].append(values)
        await asyncio.sleep(0)
    sums = {node: _sum(values) for node, values in of_nodes.items()}
    found |= {of_node(node): values for node, values in sums.items()}
    found[POOL] = _sum(list(sums.values())) if sums else Values(0.0, 0.0, 0.0, 0.0)
    projects = sorted({each or DEFAULT_PROJECT for each in pool.quotas.projects()})[:MOST_PROJECTS]
    for at in range(0, len(projects), SLICE):
        for project in projects[at : at + SLICE]:
            held = pool.quotas.held(project)
            found[of_project(project)] = Values(
                used.of_project.get(project, 0.0) / seconds if used else math.nan,
                held.compute_percent / _PERCENT,
                held.memory_mib,
                held.vgpus,
            )
        await asyncio.sleep(0)
    return found


def _of_gpu(pool: Pool, key: GpuKey, used: Used | None, seconds: float) -> Values:
    usage = pool.usage(key)
    return Values(
        used.of_gpu.get(key, 0.0) / seconds if used else math.nan,
        usage.compute_percent / _PERCENT,
        usage.memory_mib,
        usage.vgpus,
    )


def _sum(values: list[Values]) -> Values:
    return Values(*map(sum, zip(*values, strict=True)))
