# SPDX-License-Identifier: Apache-2.0
"""How a GPU is named in a path: node:uuid, or a UUID that only one node has."""

from __future__ import annotations

from sluice.controller.api.problems import Problem, not_found
from sluice.controller.pool.model import GpuKey
from sluice.controller.pool.pool import Pool


def gpu_key(pool: Pool, gpu_id: str) -> GpuKey:
    """The GPU of that name; a problem document if there is none, or more than one."""
    node, _, uuid = gpu_id.rpartition(":")
    if (key := GpuKey(node, uuid)) in pool.gpus:
        return key
    same = [key for key in pool.gpus if key.uuid == gpu_id]
    if len(same) > 1:
        names = ", ".join(map(str, same))
        raise Problem(409, "Ambiguous GPU", f"{gpu_id} is on several nodes: name one of {names}")
    if not same:
        raise not_found("gpu", gpu_id)
    return same[0]
