# SPDX-License-Identifier: Apache-2.0
"""How a GPU is named in a path or a filter: node:uuid, a UUID that only one node has, or the
beginning of either.
"""

from __future__ import annotations

from collections.abc import Collection

from sluice.controller.api.problems import Problem, not_found
from sluice.controller.pool.model import GpuKey
from sluice.resources.problem_types import ProblemType

LEAST_CHARACTERS = 8  # of a UUID's beginning


def gpu_key(known: Collection[GpuKey], gpu_id: str) -> GpuKey:
    """The one of these GPUs with that name; a problem document if there is none, or several."""
    node, _, uuid = gpu_id.rpartition(":")
    if (key := GpuKey(node, uuid)) in known:
        return key
    there = [key for key in known if node in ("", key.node)]
    found = [key for key in there if key.uuid == uuid]
    if not found and len(uuid) >= LEAST_CHARACTERS:
        found = [key for key in there if key.uuid.startswith(uuid)]
    if not found:
        raise not_found("gpu", gpu_id)
    if len(found) > 1:
        names = ", ".join(map(str, sorted(found, key=str)[:4]))
        raise Problem(
            409, ProblemType.AMBIGUOUS_GPU, f"{gpu_id} may be several: name one of {names}"
        )
    return found[0]
