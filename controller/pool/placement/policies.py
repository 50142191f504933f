# SPDX-License-Identifier: Apache-2.0
"""Which of the GPUs that a request fits on it gets: bin-pack, spread and locality.

Chosen by [pool] policy, called by placement. A policy has one verb for GPUs of their own on one
node, and says in which neighbourhoods to look first. Every policy finds a place if there is one.
Whole cards are chosen alike by all: in one NVLink group where that is possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.gpus.capacity import NodeRooms, Room, Rooms
from sluice.controller.pool.placement.search import Wish

LOOKED_AT = 32  # nodes that a request of several vGPUs fits on and that are compared
NEAR_LABELS = ("rack", "rdma")  # a node's labels that say who is near, the nearest first


class PlacementPolicy(Protocol):
    """How GPUs are picked; small, so that another one is quickly written."""

    def choose(self, wish: Wish, rooms: Rooms) -> list[Room] | None:
        """Returns wish.count GPUs of one node that it fits on, or None if there are none."""
        ...

    def neighbourhoods(
        self, request: GrantRequest, rooms: Rooms
    ) -> Iterator[Collection[str] | None]:
        """Yields sets of nodes, where to look first; the last one is None, everywhere."""
        ...


class BinPack:
    """Fills the fullest GPUs first, so that whole cards stay free for large requests."""

    def choose(self, wish: Wish, rooms: Rooms) -> list[Room] | None:
        """Takes the GPUs with the least free memory that still fits.

        One vGPU goes to the fullest GPU of all. For several on one node, the LOOKED_AT nodes with
        the least room to spare are compared.
        """
        if wish.is_whole:
            return whole_cards(wish)
        if wish.count == 1:
            room = _fullest(wish, rooms)
            return [room] if room else None
        best: tuple[tuple[int, int, str], list[Room]] | None = None
        looked_at = 0
        for node in wish.tightest_first():
            fitting = wish.fitting(node)
            if len(fitting) < wish.count:
                continue
            fitting.sort(key=lambda room: (room.free_mib, room.free_percent, room.gpu.uuid))
            chosen = fitting[: wish.count]
            score = (
                sum(room.free_mib for room in chosen),
                sum(room.free_percent for room in chosen),
                node.name,
            )
            if best is None or score < best[0]:
                best = (score, chosen)
            looked_at += 1
            if looked_at == LOOKED_AT:
                break
        return best[1] if best else None

    def neighbourhoods(
        self, request: GrantRequest, rooms: Rooms
    ) -> Iterator[Collection[str] | None]:
        """Looks everywhere at once."""
        yield None


class Spread:
    """Takes the emptiest node and its emptiest GPUs: neighbours disturb each other least."""

    def choose(self, wish: Wish, rooms: Rooms) -> list[Room] | None:
        """Takes the node with the most free memory in all that it fits on."""
        if wish.is_whole:
            return whole_cards(wish, most_first=True)
        for node in wish.emptiest_first():
            if not wish.may_fit(node):
                continue
            fitting = wish.fitting(node)
            if len(fitting) >= wish.count:
                fitting.sort(key=lambda room: (-room.free_mib, -room.free_percent, room.gpu.uuid))
                return fitting[: wish.count]
        return None

    def neighbourhoods(
        self, request: GrantRequest, rooms: Rooms
    ) -> Iterator[Collection[str] | None]:
        """Looks everywhere at once."""
        yield None


class Locality(BinPack):
    """Goes near the node that asks, and packs there."""

    def neighbourhoods(
        self, request: GrantRequest, rooms: Rooms
    ) -> Iterator[Collection[str] | None]:
        """Its own node, then its rack, then what its RDMA reaches, then everywhere."""
        node = rooms.nodes.get(request.node)
        if node is not None:
            yield (node.name,)
            for name in NEAR_LABELS:
                for label in node.labels:
                    if label[0] == name:
                        yield rooms.by_label[label]
        yield None


POLICIES: dict[str, type[PlacementPolicy]] = {
    "bin-pack": BinPack,
    "spread": Spread,
    "locality": Locality,
}


def whole_cards(wish: Wish, *, most_first: bool = False) -> list[Room] | None:
    """Untouched cards of one node, in one NVLink group if any node has one that is large enough.

    Nodes with small cards come first, and of these the ones with the fewest untouched, or the most.
    """
    for grouped in (True, False):
        for node in wish.by_untouched(wish.count, most_first=most_first):
            if (grouped and node.in_group < wish.count) or not wish.may_fit(node):
                continue
            if chosen := _whole_on(wish, node, grouped=grouped):
                return chosen
    return None


def _whole_on(wish: Wish, node: NodeRooms, *, grouped: bool) -> list[Room] | None:
    """The smallest group that is large enough; without one, the fewest groups."""
    groups: dict[str, list[Room]] = {}
    for room in wish.fitting(node):
        # a card without NVLink is a group of its own
        groups.setdefault(room.gpu.nvlink_group or f" {room.gpu.uuid}", []).append(room)
    by_size = sorted(groups.items(), key=lambda group: (len(group[1]), group[0]))
    for _, group in by_size:
        if len(group) >= wish.count:
            return group[: wish.count]
    every = [room for _, group in reversed(by_size) for room in group]
    return every[: wish.count] if not grouped and len(every) >= wish.count else None


def _fullest(wish: Wish, rooms: Rooms) -> Room | None:
    """The GPU with the least free memory, then compute, that one vGPU fits on."""
    few = wish.few_nodes
    if few is not None:
        fitting = [room for node in few for room in wish.fitting(node)]
        return min(fitting, key=lambda r: (r.free_mib, r.free_percent, *r.entry[1:3]), default=None)
    best: tuple[tuple[int, int, str, str], Room] | None = None
    free = wish.is_unbound
    for kind in rooms.kinds():
        need = wish.need(kind)
        if need is None:
            continue
        for percent, order in kind.by_percent.items():
            if percent < need.compute_percent:
                continue
            start = order.bisect_left((need.memory_mib,))
            for mib, node, uuid, room in order.islice(start):
                score = (mib, percent, node, uuid)
                if best is not None and score >= best[0]:
                    break
                if free or wish.may_use(room):
                    best = (score, room)
                    break
    return best[1] if best else None
