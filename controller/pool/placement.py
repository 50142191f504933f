# SPDX-License-Identifier: Apache-2.0
"""Chooses GPUs for a request: the policy interface, the bin-pack policy, and the sizes by default.

Called by pool.Pool with a view of the free room; it changes nothing. A policy sees only GPUs that
the request may use and returns distinct ones of a single node, or None when it does not fit now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sluice.controller.pool.model import Gpu, GrantRequest, Vgpu


@dataclass(frozen=True, slots=True)
class GpuRoom:
    """A GPU and what is free on it; vgpu_count is its node's default cut."""

    gpu: Gpu
    free_mib: int
    free_percent: int
    vgpu_count: int


class PlacementPolicy(Protocol):
    """Picks GPUs; small, so that spread and locality can be written beside bin-pack."""

    def choose(self, request: GrantRequest, rooms: Iterable[GpuRoom]) -> list[GpuRoom] | None:
        """Returns request.vgpu_count rooms of one node, or None."""
        ...


def slice_on(request: GrantRequest, gpu: Gpu, vgpu_count: int) -> Vgpu:
    """Returns the vGPU that the request means on this GPU.

    A default slice is 1/vgpu_count of what the GPU can give, its contexts included, so that
    vgpu_count of them fit.
    """
    share = (gpu.memory_mib - gpu.reserved_mib) // vgpu_count
    overhead = request.contexts * gpu.context_overhead_mib
    memory = request.memory_mib or max(1, share - overhead)
    percent = request.compute_percent or max(1, 100 // vgpu_count)
    return Vgpu(gpu.uuid, memory, percent, overhead)


def fits(request: GrantRequest, room: GpuRoom) -> bool:
    """Whether one vGPU of the request fits into what is free."""
    vgpu = slice_on(request, room.gpu, room.vgpu_count)
    return (
        vgpu.memory_mib + vgpu.overhead_mib <= room.free_mib
        and vgpu.compute_percent <= room.free_percent
    )


class BinPack:
    """Fills the fullest GPUs first, so that whole cards stay free for large requests."""

    def choose(self, request: GrantRequest, rooms: Iterable[GpuRoom]) -> list[GpuRoom] | None:
        """Takes the node, and on it the GPUs, with the least free room that still fits."""
        by_node: dict[str, list[GpuRoom]] = defaultdict(list)
        for room in rooms:
            if fits(request, room):
                by_node[room.gpu.node].append(room)
        best: list[GpuRoom] | None = None
        for fitting in by_node.values():
            if len(fitting) < request.vgpu_count:
                continue
            fitting.sort(key=lambda room: (room.free_mib, room.free_percent, room.gpu.uuid))
            chosen = fitting[: request.vgpu_count]
            if best is None or _free(chosen) < _free(best):
                best = chosen
        return best


def _free(rooms: list[GpuRoom]) -> tuple[int, int, str]:
    return (
        sum(room.free_mib for room in rooms),
        sum(room.free_percent for room in rooms),
        rooms[0].gpu.node,
    )
