# SPDX-License-Identifier: Apache-2.0
"""Host memory that sessions keep, mapped, when they have come back: who gives it up, and when.

Owned by sessions.suspending. What a session keeps is its own, and spares the next suspension, or
the next turn of an oversubscribed GPU, the making and mapping of it. It is in nobody's way for
long: a move that needs room has as much given up as is missing, first by those that have kept
theirs the longest, or of what its own session has no use for just then, and what is to be ready
(`ready_mib`) has its room made in the background. Who is asked is asked under his grant's lock,
which nobody here ever waits for: grants of which steps are under way keep what they have, so that
two that are suspended at once do not wait for each other. A worker that does not answer within
seconds, or gives nothing up, stays booked, as one that was taken over can hold what its session
had; it is not asked again before something has become of that, and is not ended: it has no more
than it was given, and may only be slow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from sluice.server.controller.orders import OrderRefused
from sluice.server.host_memory.pieces import NoSwapMemory
from sluice.server.sessions.records import Session
from sluice.server.sessions.standing import MIB_PER_GIB, UNDER_WAY, Standing
from sluice.server.sessions.suspension_steps import SuspensionSteps
from sluice.server.sessions.swap_memory import Booking, SwapMemory
from sluice.server.workers.packets import Message

#: For one worker: it takes 2.5 ms a GiB of the driver's memory, and up to a tenth of a second for
#: shared memory on small pages.
ANSWER_SECONDS, ANSWER_SECONDS_PER_GIB = 2.0, 0.25
#: After which no other one is asked.
MOST_SECONDS = 5.0
#: What is to be ready has its room made when nothing has just moved.
PAUSE_SECONDS = 2.0


class KeptMemory:
    """Of the sessions of this server."""

    def __init__(
        self,
        swap: SwapMemory,
        steps: SuspensionSteps,
        of: Callable[[Session], Standing],
        lock: Callable[[str], asyncio.Lock],
    ) -> None:
        """`of`: how a session stands; raises OrderRefused where it has ended. `lock`: a grant's."""
        self._swap = swap
        self._steps = steps
        self._of = of
        self._lock = lock
        self._sessions: dict[str, Session] = {}
        self._asking = asyncio.Lock()  # one asks at a time, and waits for no other lock meanwhile
        self._unwilling: dict[str, int] = {}  # MiB that one kept although it was asked
        #: Told of grants whose sessions have given something up.
        self.on_given_up: Callable[[str], None] = lambda grant_id: None
        self._looking: asyncio.Task[None] | None = None
        self._is_due = False  # somebody has to look
        swap.make_room = self._make_room
        swap.on_moved = self.look

    def follow(self, session: Session) -> None:
        """What its worker keeps is booked; one of an earlier server may say so."""
        self._sessions[session.id] = session
        most = sum(session.vgpus[place].memory_mib for place in session.places)
        if kept_mib := min(self._of(session).kept_mib, most):
            self._swap.keep(session.id, kept_mib)
            self.look()

    def leave(self, session: Session) -> None:
        """It has ended."""
        self._sessions.pop(session.id, None)
        self._unwilling.pop(session.id, None)

    def of_grant(self, grant_id: str) -> int:
        """MiB that the sessions of a grant keep."""
        sessions = [each for each in self._sessions.values() if each.grant_id == grant_id]
        return sum(self._swap.kept_by(session.id) for session in sessions)

    async def book(self, sessions: Sequence[Session]) -> None:
        """For what is planned of these, under their grant's lock. Raises OrderRefused."""
        try:
            await self._swap.book(lambda: self._planned(sessions))
        except NoSwapMemory as none:
            raise OrderRefused(str(none)) from None

    def _planned(self, sessions: Sequence[Session]) -> Booking:
        wanted, kept, new = dict[str, int](), dict[str, int](), dict[str, int]()
        for session in sessions:
            standing = self._of(session)
            wanted[session.id], new[session.id] = standing.host_mib, standing.new_mib
            # it has what it had and what it is given, whatever it says
            most = self._swap.has(session.id) + standing.new_mib - standing.host_mib
            kept[session.id] = max(0, min(standing.left_over_mib, most))
        return Booking(wanted, kept, new)

    def look(self) -> None:
        """Has room made for what is to be ready, in a moment, if it has none."""
        self._is_due = True
        if self._swap.crowded_mib and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while self._is_due and self._swap.crowded_mib:
            self._is_due = False
            await asyncio.sleep(PAUSE_SECONDS)
            async with self._asking:
                await self._ask(lambda: self._swap.crowded_mib)

    async def _make_room(self, booking: Callable[[], Booking]) -> str:
        """Until nothing is short for it, whose grant's lock is held; why some give nothing up."""
        try:
            async with asyncio.timeout(MOST_SECONDS):
                await self._asking.acquire()
        except TimeoutError:
            return "others wait for what sessions keep there; try again"
        try:
            why_not = await self._ask_for(booking)
        finally:
            self._asking.release()
        return ", ".join(
            f"session {each} keeps {self._swap.kept_by(each)} MiB ({why})"
            for each, why in why_not.items()
            if why and self._swap.kept_by(each)
        )

    async def _ask_for(self, booking: Callable[[], Booking]) -> dict[str, str]:
        """Others, or those that it is for where that is not enough; why some give nothing up."""
        planned = booking()
        others = [each for each in self._swap.keepers() if each not in planned.wanted]
        why_not = {each: self._why_not(each) for each in others}
        theirs = sum(self._swap.kept_by(each) for each, why in why_not.items() if not why)
        own, short = self._swap.keeps(planned), self._swap.short_mib(planned)
        if theirs + own < short:
            return why_not  # and nobody gives anything up for nothing
        if theirs < short:
            for session_id in planned.wanted:
                if self._swap.kept_by(session_id) and session_id in self._sessions:
                    why_not[session_id] = await self._ask_one(self._sessions[session_id])
        return why_not | await self._ask(lambda: self._swap.short_mib(booking()))

    def _why_not(self, session_id: str) -> str:
        """Why a session is not asked; "": it is."""
        session = self._sessions.get(session_id)
        try:
            standing = self._of(session) if session else None
        except OrderRefused:
            standing = None
        if session is None or standing is None:
            return "it has ended"
        if self._unwilling.get(session_id) == self._swap.kept_by(session_id):
            return "its worker gave less up than it was asked for"
        if standing.owed:
            return "its worker does not answer"
        if self._lock(session.grant_id).locked() or standing.state in UNDER_WAY:
            return "its memory moves"
        if session.context_away:
            return "its context is off its GPU"
        return ""

    async def _ask(self, short_mib: Callable[[], int]) -> dict[str, str]:
        """Who has kept the longest first, one after the other; why some gave nothing."""
        found, end = dict[str, str](), time.monotonic() + MOST_SECONDS
        for session_id in self._swap.keepers():
            if not short_mib() or time.monotonic() > end:
                break
            if not self._why_not(session_id):
                session = self._sessions[session_id]
                lock = self._lock(session.grant_id)
                if not await _taken_at_once(lock):
                    continue
                try:
                    found[session_id] = await self._ask_one(session, short_mib())
                finally:
                    lock.release()
        return found

    async def _ask_one(self, session: Session, mib: int | None = None) -> str:
        """Has it give up so much of what it keeps, or all, under its lock; why it did not."""
        before = self._swap.kept_by(session.id)
        wanted = before if mib is None else min(mib, before)
        order = Message("give_up", {} if mib is None else {"mib": str(wanted)})
        try:
            seconds = ANSWER_SECONDS + ANSWER_SECONDS_PER_GIB * before / MIB_PER_GIB
            await self._steps.step(session, order, seconds)
            self._swap.lower_kept(session.id, self._of(session).kept_mib)
            self.on_given_up(session.grant_id)
        except OrderRefused as refused:
            return str(refused)
        kept = self._swap.kept_by(session.id)
        if kept > before - wanted:
            self._unwilling[session.id] = kept
            return "its worker gave less up than it was asked for"
        session.log.write(f"gave {before - kept} of {before} MiB of host memory up that it kept")
        return ""


async def _taken_at_once(lock: asyncio.Lock) -> bool:
    """False: somebody has it, or is about to."""
    try:
        async with asyncio.timeout(0):
            await lock.acquire()
    except TimeoutError:
        return False
    return True
