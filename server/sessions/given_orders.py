# SPDX-License-Identifier: Apache-2.0
"""What the controller has ordered of grants' suspension, and what of it has been carried out.

Used by sessions.suspending. Orders about one grant come with serials that rise. It promises that
one which comes while another is carried out is carried out behind it, that the newest of those is,
that one which was carried out is not once more, and that reports can say both: so the controller
knows which of them crossed its orders. An older controller gives none, and gives an order again
that does not fit what is reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.rpc import pool_pb2 as rpc


@dataclass(frozen=True, slots=True)
class GivenOrder:
    """To suspend what runs for a grant, or to resume it."""

    suspend: bool
    promised: bool = False  # its GPUs' memory is promised more than once: its contexts stay there
    to: str = ""  # of a resumption: on this GPU, in the place of its own
    serial: int = 0  # 0: an older controller's
    moving_to: str = ""  # of a suspension: where it is to go on then

    @classmethod
    def read(cls, order: rpc.SuspendGrant) -> GivenOrder:
        """As the controller gives it."""
        moving_to = "" if order.resume else order.moving_to
        return cls(not order.resume, order.promised, order.gpu_uuid, order.serial, moving_to)


class GivenOrders:
    """By grant."""

    def __init__(self) -> None:
        self._waiting: dict[str, GivenOrder] = {}
        self._current: dict[str, GivenOrder] = {}
        self._under_way: set[str] = set()
        self._done: dict[str, int] = {}
        self._moving_to: dict[str, str] = {}

    def is_done(self, grant_id: str, order: GivenOrder) -> bool:
        """Whether it, or one behind it, was carried out."""
        return 0 < order.serial <= self.done_of(grant_id)

    def put(self, grant_id: str, order: GivenOrder) -> bool:
        """Takes one; False: another is under way, behind which it comes."""
        fresh = grant_id not in self._under_way
        if order.serial or not self.is_busy(grant_id):
            self._waiting[grant_id] = order
        self._under_way.add(grant_id)
        return fresh

    def take(self, grant_id: str) -> GivenOrder | None:
        """The next one to be carried out; None: there is none, and none is under way any more."""
        order = self._waiting.pop(grant_id, None)
        if order is None:
            self._under_way.discard(grant_id)
        else:
            self._current[grant_id] = order
            self._moving_to[grant_id] = order.moving_to if order.suspend else order.to
        return order

    def finish(self, grant_id: str, order: GivenOrder, *, refused: bool) -> None:
        """It was carried out, or refused; what it had move is there now, or is not to go there."""
        del self._current[grant_id]
        self._done[grant_id] = order.serial
        if refused or not order.suspend:
            self._moving_to.pop(grant_id, None)

    def is_busy(self, grant_id: str) -> bool:
        """Whether one is being carried out, or is to be."""
        return grant_id in self._current or grant_id in self._waiting

    def done_of(self, grant_id: str) -> int:
        """The serial of the one that was carried out last, or refused; 0: none was."""
        return self._done.get(grant_id, 0)

    def moving_to(self, grant_id: str) -> str:
        """The GPU to which it is to go; "": to none."""
        waiting = self._waiting.get(grant_id)
        if waiting and waiting.moving_to:
            return waiting.moving_to
        return self._moving_to.get(grant_id, "")

    def keep(self, grant_ids: Iterable[str]) -> None:
        """Forgets all but these: of the others nothing runs here any more."""
        left = {*grant_ids, *self._under_way}
        for known in (self._done, self._moving_to):
            for gone in known.keys() - left:
                del known[gone]
