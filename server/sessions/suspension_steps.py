# SPDX-License-Identifier: Apache-2.0
"""The steps of one session's suspension, as its worker takes them: each is an order and its answer.

Used by sessions.suspending, which says when, and holds the grant's lock. A worker that does not
answer, or says that it could not, makes OrderRefused with its reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from sluice.server.controller.orders import OrderRefused
from sluice.server.host_memory.pieces import HostPiece, NoSwapMemory
from sluice.server.sessions.records import Session
from sluice.server.sessions.standing import (
    ARBITER,
    CONTROLLER,
    OUT,
    RUNNING,
    STOPPED,
    UNDER_WAY,
    Standing,
    seconds_for,
)
from sluice.server.sessions.swap_memory import SwapMemory
from sluice.server.workers.packets import Message

#: Beyond the time that a session has to come to a stop.
ANSWER_SECONDS = 10.0


async def for_all(sessions: Sequence[Session], step: Callable[[Session], Awaitable[None]]) -> None:
    """The step for each, side by side; raises what the first has raised when all are done."""
    for outcome in await asyncio.gather(*map(step, sessions), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


class SuspensionSteps:
    """Orders to workers, one at a time to each."""

    def __init__(
        self, swap: SwapMemory, drain_seconds: float, of: Callable[[Session], Standing]
    ) -> None:
        """`of`: how a session stands; raises OrderRefused where it has ended."""
        self._swap = swap
        self._drain_seconds = drain_seconds
        self._of = of

    async def finish(self, session: Session) -> None:
        """What was ordered before is answered: by an earlier server, or not in time."""
        standing = self._of(session)
        while standing.owed:
            seconds = ANSWER_SECONDS
            if standing.state in UNDER_WAY:
                drain = self._drain_seconds if standing.state == UNDER_WAY[0] else 0.0
                seconds = seconds_for(standing.movable_mib) + drain
            await self._said(session, seconds)
            self._swap.lower_kept(session.id, standing.kept_mib)

    async def stop(self, session: Session) -> None:
        """It stands still, at a cut of its own."""
        if self._of(session).state in (STOPPED, OUT):
            return
        drain = Message("suspend", {"drain_ms": str(int(self._drain_seconds * 1000))})
        said = await self.step(session, drain, self._drain_seconds + ANSWER_SECONDS)
        if self._of(session).state != STOPPED:
            raise OrderRefused(
                f"session {session.id} does not come to a stop within [suspend] drain_seconds "
                f"({self._drain_seconds:g}): {said.get('message', 'no reason given')}"
            )

    async def plan_all(self, session: Session) -> None:
        """All that can move is to be out."""
        await self.plan(session, [])

    async def plan(self, session: Session, out: Sequence[int]) -> None:
        """What is to be out in all, MiB by vGPU; none named: everything."""
        standing = self._of(session)
        if not standing.plans:
            standing.plan_all()
            return
        fields = {f"vgpu.{n}.out_mib": str(mib) for n, mib in enumerate(out)}
        await self.step(session, Message("plan", {"vgpus": str(len(out)), **fields}))

    async def leave_to_arbiter(self, session: Session) -> None:
        """Nothing of it moves; a later server is told that it is not suspended any more."""
        await self.plan(session, [0] * len(session.places))
        await self.move_out(session, ARBITER)

    async def move_out(self, session: Session, by: str = CONTROLLER) -> None:
        """What was planned goes to the host; `by`: whose order it is."""
        standing = self._of(session)
        if standing.state == OUT and standing.moved_by == by and not standing.planned_mib:
            return
        with self._swap.moving():
            await self._move_planned(session, by)

    async def _move_planned(self, session: Session, by: str) -> None:
        standing = self._of(session)
        began = time.monotonic()
        try:
            pieces = await self._swap.pieces(standing.new_mib, standing.takes_driver_memory)
        except NoSwapMemory as none:
            self._swap.settle(session.id, sum(standing.out), standing.kept_mib)
            raise OrderRefused(f"session {session.id}: {none}") from None
        await self._give(session, pieces)
        standing.taken.append(f"host memory {time.monotonic() - began:.3f} s")
        planned, before = standing.planned_mib, sum(standing.out)
        is_new = standing.plans
        order = Message("move_out", {"by": by})
        said = await self.step(session, order, seconds_for(planned))
        if standing.state != OUT or (is_new and planned and sum(standing.out) <= before):
            self._swap.settle(session.id, sum(standing.out), standing.kept_mib)
            raise OrderRefused(f"session {session.id}: {said.get('message', 'it did not move')}")

    async def _give(self, session: Session, pieces: Sequence[HostPiece]) -> None:
        """One after the other: what waits for a worker to read is bounded, and a whole node's
        memory is more pieces than that. Raises OrderRefused: it does not read, and what it was
        given stays booked.
        """
        try:
            for piece in pieces:
                fields = {"bytes": str(piece.mib << 20), "descriptors": "memory"}
                if piece.of_driver:
                    fields["made_by"] = "driver"
                session.worker.tell(Message("memory", fields), (piece.memory,))
                if not await session.worker.wait_read(ANSWER_SECONDS):
                    raise OrderRefused(
                        f"session {session.id}: its worker does not take the host memory that it "
                        f"is given, within {ANSWER_SECONDS:g} s"
                    )
        finally:
            for piece in pieces:
                piece.close()

    async def delist(self, session: Session) -> None:
        """Its context is about to leave, and the driver need not carry its host memory along."""
        standing = self._of(session)
        said = await self.step(session, Message("delist"), seconds_for(sum(standing.out)))
        if standing.state != OUT:
            raise OrderRefused(f"session {session.id}: {said.get('message', 'it is not out')}")
        self._swap.lower_kept(session.id, standing.kept_mib)

    def wake_order(self, session: Session) -> Message:
        """With the host memory that it has, for the next time, if there is room for that."""
        return Message("wake", {"keep": "1"} if self._swap.may_keep(session.id) else {})

    async def wake(self, session: Session) -> None:
        """It goes on, with all of its memory."""
        standing = self._of(session)
        if standing.state != RUNNING:
            with self._swap.moving():
                order = self.wake_order(session)
                said = await self.step(session, order, seconds_for(standing.movable_mib))
            if standing.state != RUNNING:
                why = said.get("message", "it did not wake")
                raise OrderRefused(f"session {session.id}: {why}")
        self._swap.settle(session.id, 0, standing.kept_mib)

    async def step(
        self, session: Session, order: Message, seconds: float = ANSWER_SECONDS
    ) -> Message:
        """What its worker says about an order."""
        standing, began = self._of(session), time.monotonic()
        said = await self._said(session, seconds, order)
        standing.note(order.verb, time.monotonic() - began, said.get("steps"))
        return said

    async def _said(
        self, session: Session, seconds: float, order: Message | None = None
    ) -> Message:
        """What its worker says next: about this order, or about an earlier server's."""
        standing = self._of(session)
        standing.waiter = asyncio.get_running_loop().create_future()
        if order:
            self.tell(session, order)
        try:
            return await asyncio.wait_for(standing.waiter, seconds)
        except TimeoutError:
            what = f"`{order.verb}`" if order else f"an earlier order (it is {standing.state})"
            raise OrderRefused(
                f"session {session.id}: its worker did not answer {what} within {seconds:g} s"
            ) from None
        finally:
            standing.waiter = None

    def tell(self, session: Session, order: Message) -> None:
        """Without waiting for what its worker says."""
        self._of(session).owed += 1
        session.worker.tell(order)
