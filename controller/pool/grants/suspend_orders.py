# SPDX-License-Identifier: Apache-2.0
"""Orders to suspend and to resume, numbered, and which reports were made before they came.

Used by suspending.Suspending. Each order about a grant has a serial above those before it, and its
node says with each report which one it has carried out. So a report that crosses an order on its
way is known, and changes nothing: the order's own report follows. Nobody stores serials: what a
node has carried out it says when it comes, and an order that was lost with its stream is given
again, by the same controller or the next. An older server names none, and is believed as it comes.
"""

from __future__ import annotations

from sluice.controller.pool.gpus.fleet import Fleet
from sluice.controller.pool.grants.moving import MovePlaces, own_gpu
from sluice.controller.pool.grants.suspension import (
    ReportedSuspension,
    SuspendOrder,
    SuspensionState,
)
from sluice.controller.pool.model import Grant

UNDER_WAY = (SuspensionState.SUSPENDING, SuspensionState.RESUMING)


class SuspendOrders:
    """Of the pool's grants."""

    def __init__(self, fleet: Fleet, places: MovePlaces) -> None:
        self._fleet = fleet
        self._places = places
        self._serials: dict[str, int] = {}  # the newest of each grant
        self._given: dict[str, int] = {}  # the same, of the stream that its node has now

    def suspend(self, grant: Grant, moving_to: str = "") -> SuspendOrder:
        """`moving_to`: where it is to go then, which its server remembers."""
        rooms = [self._fleet.capacity.of(key) for key, _ in grant.placed()]
        promised = any(room is not None and room.kind.promise.is_over for room in rooms)
        return SuspendOrder(
            *(grant.node, grant.id),
            resume=False,
            promised=promised,
            serial=self._next(grant),
            moving_to=moving_to,
        )

    def resume(self, grant: Grant) -> SuspendOrder:
        """On the GPU that it is booked on, where its node knows how to move it."""
        node = self._fleet.nodes.get(grant.node)
        moves = node is not None and node.moves_sessions and not self._places.why_never(grant)
        there = own_gpu(grant).uuid if moves else ""
        return SuspendOrder(
            grant.node, grant.id, resume=True, gpu_uuid=there, serial=self._next(grant)
        )

    def is_late(self, grant: Grant, report: ReportedSuspension, *, first: bool) -> bool:
        """Whether a report was made before the order came that is under way.

        `first`: of a stream, behind which no order from before it can come any more.
        """
        if report.serial is None:
            return False
        self._serials[grant.id] = max(self._serials.get(grant.id, 0), report.serial)
        if first:  # its server may be another one, which never heard of it and is at work itself
            self._given.pop(grant.id, None)
        return grant.suspension in UNDER_WAY and report.serial < self._given.get(grant.id, 0)

    def forget(self, grant_id: str) -> None:
        """It has ended."""
        self._serials.pop(grant_id, None)
        self._given.pop(grant_id, None)

    def _next(self, grant: Grant) -> int:
        self._serials[grant.id] = self._given[grant.id] = self._serials.get(grant.id, 0) + 1
        return self._serials[grant.id]
