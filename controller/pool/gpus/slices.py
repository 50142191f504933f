# SPDX-License-Identifier: Apache-2.0
"""What a request means on a GPU: the size of its vGPU there, and whether it is of a wanted kind.

Used by placement, refusals, preemption and reservations; nothing here knows what is free.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.gpus.occupancy import NOBODY, WHOLE_PERCENT, Occupancy, sharing_for
from sluice.controller.pool.gpus.oversubscription import would_stay
from sluice.controller.pool.model import IN_TURNS, Gpu, NodeSharing, Vgpu

__all__ = ["WHOLE_PERCENT", "FreeCapacity", "fits", "is_wanted", "slice_on"]


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """A GPU and what is free on it; vgpu_count is its node's default cut."""

    gpu: Gpu
    free_mib: int
    free_percent: int
    vgpu_count: int
    sharing: NodeSharing = IN_TURNS
    occupancy: Occupancy = NOBODY
    # where memory is promised more than once: what there is beside what never moves, and the
    # largest vGPU that can be moved; None: it is not
    beside_mib: int | None = None
    largest_mib: int = 0
    there_left_mib: int = 0  # on the GPU itself; less than 0: so much of what is promised is beyond
    host_left_mib: int = 0  # and with host memory

    def without(self, freed_mib: int) -> FreeCapacity:
        """With so much less promised; what stays and what is largest is taken to be as before."""
        return replace(
            self,
            there_left_mib=self.there_left_mib + freed_mib,
            host_left_mib=self.host_left_mib + freed_mib,
        )

    def fits_alone(self, memory_mib: int, more_overhead_mib: int = 0) -> bool:
        """Whether one that is there already can have so much: beside all that never moves.

        Where more of contexts comes there with it, the largest has to fit beside that, too.
        """
        if self.beside_mib is None:
            return True
        largest = max(memory_mib, self.largest_mib) if more_overhead_mib > 0 else memory_mib
        return largest + max(0, more_overhead_mib) <= self.beside_mib

    def brings_in(self, memory_mib: int, overhead_mib: int, *, stays: bool) -> bool:
        """Whether, with such a vGPU, each can still be brought in beside all that never moves."""
        if self.beside_mib is None:
            return True
        alone = memory_mib + self.largest_mib if stays else max(memory_mib, self.largest_mib)
        more = memory_mib + overhead_mib
        largest = self.largest_mib if stays else max(memory_mib, self.largest_mib)
        swaps = more <= self.there_left_mib or self.host_left_mib - more >= largest
        return overhead_mib + alone <= self.beside_mib and swaps


def slice_on(request: GrantRequest, gpu: Gpu, vgpu_count: int) -> Vgpu:
    """Returns the vGPU that the request means on this GPU.

    A default slice is 1/vgpu_count of what the GPU can give, its contexts included, so that
    vgpu_count of them fit. vGPUs that may be on several nodes are whole in compute.
    """
    share = (gpu.memory_mib - gpu.reserved_mib) // vgpu_count
    overhead = request.contexts * gpu.context_overhead_mib
    memory = request.memory_mib or max(1, share - overhead)
    percent = request.compute_percent or max(1, 100 // vgpu_count)
    if request.cross_node:
        percent = WHOLE_PERCENT
    return Vgpu(gpu.uuid, memory, percent, overhead, gpu.node)


def is_wanted(request: GrantRequest, model: str, architecture: str) -> bool:
    """Whether a GPU is of the model and the architecture that are asked for, if any are.

    A model is named by some of its words, in any case: "h200" is "NVIDIA H200", and "a10" is not
    "NVIDIA A100".
    """
    words = model.lower().split()
    return all(word in words for word in request.gpu_model.lower().split()) and (
        request.gpu_architecture.lower() in ("", architecture.lower())
    )


def fits(request: GrantRequest, capacity: FreeCapacity) -> bool:
    """Whether one vGPU of the request fits into what is free."""
    vgpu = slice_on(request, capacity.gpu, capacity.vgpu_count)
    sharing = sharing_for(request, vgpu.compute_percent, capacity.sharing)
    return (
        sharing is not None
        and capacity.occupancy.admits(sharing, request.project, request.contexts)
        and vgpu.memory_mib + vgpu.overhead_mib <= capacity.free_mib
        and vgpu.compute_percent <= capacity.free_percent
        and capacity.brings_in(
            vgpu.memory_mib, vgpu.overhead_mib, stays=would_stay(request, sharing)
        )
        and is_wanted(request, capacity.gpu.model, capacity.gpu.architecture)
    )
