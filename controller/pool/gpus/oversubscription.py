# SPDX-License-Identifier: Apache-2.0
"""How much of a GPU's memory may be promised, and what of it has to be there at once.

Used by capacity and placement (docs/oversubscription.md). A GPU may be promised `factor` times, as
far as its node's host memory can take what is beyond. What can never be moved is counted whole, and
with the largest vGPU that can be, it fits on the GPU: so each can always be brought in alone. Two
change places by way of host memory, so there has to be room in it for the largest once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.model import Gpu, Grant, Node, Sharing, Vgpu


@dataclass(frozen=True, slots=True)
class Promise:
    """Of a GPU."""

    factor: float = 1.0
    beyond_mib: int = 0  # at most so much more than there is

    @property
    def is_over(self) -> bool:
        """Whether memory may be promised more than once."""
        return self.factor > 1 and self.beyond_mib > 0

    def limit_mib(self, gpu: Gpu) -> int:
        """What may be promised of it, contexts included."""
        there = gpu.memory_mib - gpu.reserved_mib
        return min(int(there * self.factor), there + self.beyond_mib) if self.is_over else there


ONCE = Promise()
#: The vGPUs of which a session's page can tell the arbiter (kMemoryPlaces): of a grant with more
#: nothing is moved.
MOST_MOVED = 16


def promises_of(node: Node, pool_factor: float, gpus: Iterable[Gpu]) -> dict[str, Promise]:
    """Of a node's GPUs, by UUID: what its server says of each, or of all, or else the pool.

    Those of which more is promised than they have share its host memory alike.
    """
    if not node.swap_mib:
        return {}
    factors = {
        gpu.uuid: gpu.memory_oversubscription or node.memory_oversubscription or pool_factor
        for gpu in gpus
    }
    over = {uuid: factor for uuid, factor in factors.items() if factor > 1}
    return {uuid: Promise(factor, node.swap_mib // len(over)) for uuid, factor in over.items()}


def stays(grant: Grant, vgpu: Vgpu) -> bool:
    """Whether a vGPU's memory can never be moved for others. Nothing that changes decides it."""
    return (
        bool(grant.reservation)
        or grant.spans_nodes
        or vgpu.sharing is Sharing.CONCURRENT
        or len(grant.vgpus) > MOST_MOVED
    )


def would_stay(request: GrantRequest, sharing: Sharing) -> bool:
    """The same of what is asked for."""
    return (
        bool(request.reservation)
        or request.may_span
        or sharing is Sharing.CONCURRENT
        or request.count > MOST_MOVED
    )
