# SPDX-License-Identifier: Apache-2.0
"""Chooses GPUs for a request: on one node, on cards of their own if possible, else as it allows.

Called by pool.Pool and its parts; it changes nothing. What a request may use are the open GPUs of
rooms (or a few GpuRooms, where somebody's own room is shared out), less those that are barred to
it. The order: cards of their own on one node; then several vGPUs on one card, if the request allows
that; then several nodes, if it allows that. `choose` finds a place whenever there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.gpus.allocations import Usage
from sluice.controller.pool.gpus.capacity import NodeRooms, Room, Rooms
from sluice.controller.pool.gpus.slices import GpuRoom, fits, slice_on
from sluice.controller.pool.model import Gpu, GpuKey, Vgpu
from sluice.controller.pool.placement.policies import (
    LOOKED_AT,
    POLICIES,
    BinPack,
    Locality,
    PlacementPolicy,
    Spread,
)
from sluice.controller.pool.placement.search import Wish

__all__ = [
    "POLICIES",
    "BinPack",
    "GpuRoom",
    "Locality",
    "PlacementPolicy",
    "Spread",
    "choose",
    "choose_among",
    "fits",
    "slice_on",
    "vgpus_on",
]


def choose(
    policy: PlacementPolicy,
    request: GrantRequest,
    rooms: Rooms,
    barred: Collection[GpuKey] = (),
    *,
    across: bool = False,
) -> list[Room] | None:
    """A room for each vGPU of the request, or None if it does not fit now.

    The same room comes twice where two vGPUs go to one card. The first room's node is the grant's
    own: its sessions open there. `across`: whether a grant may be on several nodes at all.
    """
    wish = Wish(request, rooms, barred)
    near = [wish.within(nodes) for nodes in policy.neighbourhoods(request, rooms)]
    for place in near:
        if chosen := policy.choose(place, rooms):
            return chosen
    if request.same_gpu_allowed and wish.count > 1:
        for place in near:
            if chosen := _together(place):
                return chosen
    if across and request.cross_node and wish.count > 1:
        for place in near:
            if chosen := _across(place):
                return chosen
    return None


def choose_among(
    policy: PlacementPolicy, request: GrantRequest, few: Iterable[GpuRoom]
) -> list[GpuRoom] | None:
    """The same of a few GPUs with what somebody has free on them; the result is of `few`."""
    by_key = {room.gpu.key: room for room in few}
    by_node: dict[str, list[GpuRoom]] = {}
    for room in by_key.values():
        by_node.setdefault(room.gpu.node, []).append(room)

    def usage(key: GpuKey) -> Usage:
        room = by_key[key]
        empty_mib = room.gpu.memory_mib - room.gpu.reserved_mib
        return Usage(empty_mib - room.free_mib, 100 - room.free_percent)

    rooms = Rooms(usage)
    for name, here in by_node.items():
        gpus: list[Gpu] = [room.gpu for room in here]
        rooms.put(name, (), gpus, here[0].vgpu_count, is_open=True)
    chosen = choose(policy, request, rooms)
    return [by_key[room.gpu.key] for room in chosen] if chosen else None


def vgpus_on(request: GrantRequest, rooms: Sequence[Room] | Sequence[GpuRoom]) -> tuple[Vgpu, ...]:
    """The vGPUs that the request gets on the rooms that were chosen for it."""
    return tuple(slice_on(request, room.gpu, room.vgpu_count) for room in rooms)


def _together(wish: Wish) -> list[Room] | None:
    """GPUs of one node, some of them more than once: as many cards as there are, evenly used."""
    for node in wish.emptiest_first():
        floor = wish.floor(node.family)
        if (
            floor is None
            or node.total_mib < wish.count * floor.memory_mib
            or node.total_percent < wish.count * floor.compute_percent
        ):
            continue
        times = [(room, wish.fitting_times(room)) for room in wish.fitting(node)]
        if sum(count for _, count in times) < wish.count:
            continue
        times.sort(key=lambda each: (-each[1], -each[0].free_mib, each[0].gpu.uuid))
        rounds = [room for turn in range(wish.count) for room, count in times if count > turn]
        return rounds[: wish.count]
    return None


def _across(wish: Wish) -> list[Room] | None:
    """Whole cards of several nodes, of as few as can be; the last is one with few to spare."""
    found: list[tuple[NodeRooms, list[Room]]] = []
    cards = 0
    for node in wish.by_untouched(1, most_first=True):
        if fitting := wish.fitting(node):
            found.append((node, fitting))
            cards += len(fitting)
            if cards >= wish.count and len(found) >= LOOKED_AT:
                break
    found.sort(key=lambda each: (-len(each[1]), each[0].name))
    chosen: list[Room] = []
    for index, (_, fitting) in enumerate(found):
        left = wish.count - len(chosen)
        if len(fitting) >= left:
            # of the rest, the last that is enough has the fewest to spare
            enough = [rest for _, rest in found[index:] if len(rest) >= left]
            return chosen + enough[-1][:left]
        chosen += fitting
    return None
