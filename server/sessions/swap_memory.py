# SPDX-License-Identifier: Apache-2.0
"""The host's memory for suspended sessions: how much there is, who has it, and what is ready.

Used by sessions.suspending. Sizes are MiB. Each session's copy is memory of its own, which its
worker alone keeps: when the worker gives it up or ends, the kernel has the pages back, and nobody
gets them before they are empty. So nothing is used by two. It promises that no more is taken
than [suspend] swap_mib says, workers of an earlier server included, and that what is handed out is
there: pages are taken before anything is moved. As that takes time, `ready_mib` of them are taken
ahead of it, in pieces, and made up for when they were handed out: by the GPUs' driver where it can,
as workers are faster with that, else as shared memory. What is not ready is shared memory, by
several threads at once (host_memory). Where moves come so fast that some find nothing ready, shared
memory is made ready at once, beside them, and the driver's takes its place when it is calm again.

A session that came back may keep its memory, mapped, for the next time (sessions.kept_memory). That
counts, too, beside what is ready, and is given up where somebody else needs the room.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sluice.server.host_memory.driver_memory import DriverMemory, Failed, Unavailable
from sluice.server.host_memory.pieces import HostPiece, NoSwapMemory, check_free, make_shared

log = logging.getLogger("sluice.server")

PIECE_MIB = 256
MOST_MAKERS = 8
#: The driver is asked for one piece at a time, and not while memory or contexts move or just after,
#: as its calls wait for one another.
CALM_SECONDS = 2.0
#: So long after a move that found too little ready they are taken for many.
HASTE_SECONDS = 10.0
LOOK_SECONDS = 0.5
#: In a row, of the process that asks the driver: then it is left alone until the server's restart.
MOST_DRIVER_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Booking:
    """What sessions are to have, by their ids."""

    wanted: Mapping[str, int]
    #: What some of them keep beyond that, where it is not what they kept.
    kept: Mapping[str, int] = field(default_factory=dict)
    #: What of it is to be made for them.
    new: Mapping[str, int] = field(default_factory=dict)


class SwapMemory:
    """What there is for suspended sessions, by session."""

    def __init__(
        self, limit_mib: int, ready_mib: int = 0, driver_memory: DriverMemory | None = None
    ) -> None:
        self.limit_mib = limit_mib
        self._ready_pieces = min(ready_mib, limit_mib) // PIECE_MIB
        self._driver_memory = driver_memory
        #: Whether a process may have the GPUs open: not while one of them is to be let go.
        self.may_open_gpus: Callable[[], bool] = lambda: True
        #: Has sessions give up what they keep until nothing is short for that; why some do not.
        self.make_room: Callable[[Callable[[], Booking]], Awaitable[str]] = _nobody_keeps
        #: Told when a move is over.
        self.on_moved: Callable[[], None] = lambda: None
        self._taken: dict[str, int] = {}
        self._kept: dict[str, int] = {}  # beyond that; who has kept the longest is the first
        self._ready: deque[HostPiece] = deque()
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._moving = 0  # moves that are under way
        self._calm_at = 0.0  # when the last one is long over
        self._waiting = 0  # of them, for memory that was not ready
        self._haste_until = 0.0
        self._driver_is_short = False  # it gave none since the last move
        self._driver_failures = 0  # in a row
        self._makers = max(1, min(MOST_MAKERS, (os.cpu_count() or 1) // 2))

    @property
    def used_mib(self) -> int:
        """What sessions have that are out, or on their way."""
        return sum(self._taken.values())

    @property
    def kept_mib(self) -> int:
        """What sessions keep for the next time."""
        return sum(self._kept.values())

    @property
    def _booked_mib(self) -> int:
        return self.used_mib + self.kept_mib

    def keepers(self) -> list[str]:
        """The sessions that keep something; who has kept it the longest is the first."""
        return [*self._kept]

    def kept_by(self, session_id: str) -> int:
        """What one keeps."""
        return self._kept.get(session_id, 0)

    def has(self, session_id: str) -> int:
        """What one has in all."""
        return self._taken.get(session_id, 0) + self._kept.get(session_id, 0)

    def may_keep(self, session_id: str) -> bool:
        """Whether all that a session has fits beside what others use and what is to be ready.

        What others have kept for longer makes room for it.
        """
        used = self.used_mib + self.kept_by(session_id) + self._ready_pieces * PIECE_MIB
        return 0 < self.limit_mib >= used

    @property
    def crowded_mib(self) -> int:
        """What has to be given up of that which is kept, for what is to be ready has no room."""
        wanted = self._booked_mib + self._ready_pieces * PIECE_MIB
        return min(self.kept_mib, max(0, wanted - self.limit_mib))

    def keeps(self, booking: Booking) -> int:
        """What those of a booking keep with it."""
        kept = booking.kept
        return sum(kept.get(each, self.kept_by(each)) for each in booking.wanted)

    def short_mib(self, booking: Booking) -> int:
        """How much more there would have to be for it."""
        others = self._booked_mib - sum(map(self.has, booking.wanted))
        needed = sum(booking.wanted.values()) + self.keeps(booking)
        return max(0, others + needed - self.limit_mib)

    async def book(self, booking: Callable[[], Booking]) -> None:
        """All or none; where what sessions keep is in the way, they give it up, within seconds.

        `booking`: how it is by then, as those that it is for may give something up, too. Raises
        NoSwapMemory.
        """
        why = await self.make_room(booking) if self.short_mib(booking()) else ""
        try:
            self.take(booking())
        except NoSwapMemory as none:
            raise NoSwapMemory(f"{none}; {why}" if why else str(none)) from None

    def take(self, booking: Booking) -> None:
        """The same where nobody is asked to give anything up."""
        wanted = booking.wanted
        if short := self.short_mib(booking):
            needed = sum(wanted.values())
            raise NoSwapMemory(
                f"{needed} MiB would move to the host, and of [suspend] swap_mib "
                f"({self.limit_mib}) {max(0, needed - short)} MiB are left: raise it, or resume or "
                "end what is suspended there"
            )
        self._taken |= wanted
        for session_id, mib in booking.kept.items():
            self.keep(session_id, mib)
        # of what is ready it has whole pieces, and what is left of them makes room
        made = sum(mib // PIECE_MIB for mib in booking.new.values())
        self._make_room(min(len(self._ready), made))

    def keep(self, session_id: str, mib: int) -> None:
        """A session keeps so much from now on, for as long as before where it kept something."""
        if mib:
            self._kept[session_id] = mib
        else:
            self._kept.pop(session_id, None)

    def _make_room(self, own: int = 0) -> None:
        """Beside what is ready; `own`: pieces of that which are booked, too."""
        room = self.limit_mib - self._booked_mib
        while len(self._ready) > own and (len(self._ready) - own) * PIECE_MIB > room:
            self._ready.pop().close()

    def adopt(self, session_id: str, mib: int) -> None:
        """What a worker of an earlier server has, whatever the limit says by now."""
        self._taken[session_id] = mib

    def settle(self, session_id: str, mib: int, kept_mib: int) -> None:
        """A move is over: a session says that it uses so much, and keeps so much beyond that.

        It cannot have more than is booked for it. What it keeps it has kept since now.
        """
        mib = min(mib, self.has(session_id))
        kept_mib = max(0, min(kept_mib, self.has(session_id) - mib))
        self.give(session_id)
        if mib:
            self._taken[session_id] = mib
        self.keep(session_id, kept_mib)

    def lower(self, session_id: str, mib: int) -> None:
        """A session has so much less."""
        if session_id in self._taken:
            self._taken[session_id] = max(0, self._taken[session_id] - mib)
            self._wanted.set()

    def lower_kept(self, session_id: str, mib: int) -> None:
        """It keeps no more than so much."""
        self.keep(session_id, min(mib, self.kept_by(session_id)))
        self._wanted.set()

    def give(self, session_id: str) -> None:
        """A session has none any more."""
        taken, kept = self._taken.pop(session_id, None), self._kept.pop(session_id, None)
        if (taken, kept) != (None, None):
            self._wanted.set()

    @property
    def ready_mib(self) -> int:
        """What is there ahead of time."""
        return len(self._ready) * PIECE_MIB

    async def let_go(self) -> None:
        """What the driver made ahead of time is given up: a GPU is to be nobody's.

        What workers have or keep of it is in nobody's way: its descriptors are of no GPU, and a
        worker has none open for it but those that it sees anyway.
        """
        of_driver = [piece for piece in self._ready if piece.of_driver]
        self._ready = deque(piece for piece in self._ready if not piece.of_driver)
        for piece in of_driver:
            piece.close()
        if self._driver_memory:
            await asyncio.to_thread(self._driver_memory.let_go)
        self._wanted.set()

    async def pieces(self, mib: int, of_driver: bool = False) -> list[HostPiece]:
        """So much in all, for one session. Raises NoSwapMemory.

        `of_driver`: its worker can use what the driver made. The caller closes them.
        """
        usable = deque(piece for piece in self._ready if of_driver or not piece.of_driver)
        found: list[HostPiece] = []
        while usable and mib >= PIECE_MIB:
            found.append(usable.popleft())
            self._ready.remove(found[-1])
            mib -= PIECE_MIB
        self._make_room()  # what is ready may be nothing for this worker
        whole, rest = divmod(mib, PIECE_MIB)
        self._waiting += 1
        try:
            found += await self._make([PIECE_MIB] * whole + [rest] * bool(rest))
        except BaseException:
            for piece in found:
                piece.close()
            raise
        finally:
            self._waiting -= 1
            if whole:
                self._haste_until = time.monotonic() + HASTE_SECONDS
                self._wanted.set()
        return found

    async def _make(self, sizes: list[int]) -> list[HostPiece]:
        """Shared memory of so many MiB each, by several threads. Raises NoSwapMemory."""
        found: list[HostPiece] = []
        problems: list[BaseException] = []
        for begin in range(0, len(sizes), self._makers):
            some = sizes[begin : begin + self._makers]
            threads = (asyncio.to_thread(make_shared, mib) for mib in some)
            try:
                check_free(sum(some))
                all_made = await asyncio.gather(*threads, return_exceptions=True)
            except (NoSwapMemory, OSError) as none:
                all_made = [none]
            for made in all_made:
                if isinstance(made, BaseException):
                    problems.append(made)
                else:
                    found.append(made)
            if problems:
                for piece in found:
                    piece.close()
                if isinstance(problems[0], NoSwapMemory):
                    raise problems[0]
                # as where the server may have no more threads, or descriptors
                text = f"the server cannot make host memory: {problems[0]}"
                raise NoSwapMemory(text) from problems[0]
        return found

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """While a session's memory or context moves: what it used is made up for afterwards.

        Taking pages keeps the machine's memory and the driver busy, and who moves waits for it.
        """
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1
            self._calm_at = time.monotonic() + CALM_SECONDS
            self._driver_is_short = False
            self._wanted.set()
            self.on_moved()

    async def keep_ready(self) -> None:
        """Takes pieces ahead of time, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._fill()
            except NoSwapMemory as none:
                log.warning("[suspend] ready_mib: %s", none)
            except Exception:
                log.exception("[suspend] ready_mib: nothing more is made until the next move")
            if self._driver_memory:
                with contextlib.suppress(RuntimeError):  # no thread for it: the next time
                    await asyncio.to_thread(self._driver_memory.let_go)

    async def _fill(self) -> None:
        """Until all are there, or it is no time for it. Raises NoSwapMemory."""
        while self._is_time() and ((count := self._may_make()) or self._may_exchange()):
            began = time.monotonic()
            made = await self._make_ready(count)
            for piece in made:
                if self._may_make() and self._may_have(piece):
                    self._ready.append(piece)
                else:  # it was taken meanwhile
                    piece.close()
            if any(piece.of_driver for piece in made):
                # sessions' calls of the driver have as much of the time
                await asyncio.sleep(time.monotonic() - began)

    def _is_hasty(self) -> bool:
        return time.monotonic() < self._haste_until

    def _is_time(self) -> bool:
        """For making some ready: who moves is not to wait for that, but waits longer for none."""
        return not self._moving or (self._is_hasty() and not self._waiting)

    def _may_exchange(self) -> bool:
        """Whether a piece that is ready is to be the driver's instead."""
        if self._moving or self._driver_is_short or not self._driver_memory:
            return False
        return self.may_open_gpus() and not all(piece.of_driver for piece in self._ready)

    async def _make_ready(self, count: int) -> list[HostPiece]:
        """So many more at most; 0: one for another. None: it is no time. Raises NoSwapMemory."""
        if self._driver_memory and self.may_open_gpus() and not self._driver_is_short:
            wait = self._calm_at - time.monotonic()
            if self._moving or wait > 0:
                if count and self._is_hasty():
                    return await self._make([PIECE_MIB] * min(self._makers, count))
                await asyncio.sleep(min(max(0.0, wait), LOOK_SECONDS))
                return []
            if not count:
                shared = next(piece for piece in self._ready if not piece.of_driver)
                self._ready.remove(shared)
                shared.close()
            try:
                made = await asyncio.to_thread(self._driver_memory.make, 1, PIECE_MIB)
                self._driver_failures = 0
                return made
            except Unavailable as none:
                log.info("[suspend] ready_mib are shared memory: %s", none)
                self._driver_memory = None
            except Failed as failed:  # tried again after the next move
                log.warning("[suspend] ready_mib are shared memory until the next move: %s", failed)
                self._driver_is_short = True
                self._driver_failures += 1
                if self._driver_failures >= MOST_DRIVER_FAILURES:
                    self._driver_memory = None
            except NoSwapMemory:
                self._driver_is_short = True  # there may be huge pages, which nobody else uses
        return await self._make([PIECE_MIB] * min(self._makers, max(1, count)))

    def _may_have(self, piece: HostPiece) -> bool:
        """What the driver made while a GPU was let go is not kept."""
        return not piece.of_driver or self.may_open_gpus()

    def _may_make(self) -> int:
        """How many pieces more."""
        room = (self.limit_mib - self._booked_mib) // PIECE_MIB
        return max(0, min(self._ready_pieces, room) - len(self._ready))


async def _nobody_keeps(booking: Callable[[], Booking]) -> str:
    del booking
    return ""
