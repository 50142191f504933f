# SPDX-License-Identifier: Apache-2.0
"""The host's memory for suspended sessions: how much there is, who has it, and how it is made.

Used by sessions.suspending. Sizes are MiB. Each session's copy is shared memory of its own, which
its worker alone keeps: when the worker is done with it or ends, the kernel has the pages back, and
gives them to nobody before it has emptied them. So nothing is used twice. It promises that no more
is taken than [suspend] swap_mib says, workers of an earlier server included, and that what is
handed out is there: pages are taken before anything is moved. As that takes one thread a second for
8 GiB, `ready_mib` of them are taken ahead of time, in pieces, and made up for when they were handed
out, and several threads take them at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("sluice.server")

MIB = 1 << 20
PIECE_MIB = 256
FREE_HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
HUGE_PAGE_MIB = 2
MOST_MAKERS = 8


class NoSwapMemory(Exception):
    """It is not to be had; the text says what to do."""


class SwapMemory:
    """What there is for suspended sessions, by session."""

    def __init__(self, limit_mib: int, ready_mib: int = 0) -> None:
        self.limit_mib = limit_mib
        self._ready_pieces = min(ready_mib, limit_mib) // PIECE_MIB
        self._taken: dict[str, int] = {}
        self._ready: deque[int] = deque()  # descriptors of pieces
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._moving = 0  # moves that are under way
        self._makers = max(1, min(MOST_MAKERS, (os.cpu_count() or 1) // 2))

    @property
    def used_mib(self) -> int:
        """What sessions have."""
        return sum(self._taken.values())

    def take(self, wanted: dict[str, int]) -> None:
        """Books for sessions, by id, all or none. Raises NoSwapMemory."""
        before = sum(self._taken.get(session_id, 0) for session_id in wanted)
        needed, left = sum(wanted.values()), self.limit_mib - self.used_mib + before
        if needed > left:
            raise NoSwapMemory(
                f"{needed} MiB would move to the host, and of [suspend] swap_mib "
                f"({self.limit_mib}) {max(0, left)} MiB are left: raise it, or resume or end what "
                "is suspended there"
            )
        self._taken |= wanted
        # of what is ready it has whole pieces, and what is left of them makes room
        own = min(len(self._ready), sum(mib // PIECE_MIB for mib in wanted.values()))
        while (
            len(self._ready) > own
            and self.used_mib + (len(self._ready) - own) * PIECE_MIB > self.limit_mib
        ):
            os.close(self._ready.pop())

    def adopt(self, session_id: str, mib: int) -> None:
        """What a worker of an earlier server has, whatever the limit says by now."""
        self._taken[session_id] = mib

    def lower(self, session_id: str, mib: int) -> None:
        """A session has so much less."""
        if session_id in self._taken:
            self._taken[session_id] = max(0, self._taken[session_id] - mib)
            self._wanted.set()

    def give(self, session_id: str) -> None:
        """A session has none any more."""
        if self._taken.pop(session_id, None) is not None:
            self._wanted.set()

    @property
    def ready_mib(self) -> int:
        """What is there ahead of time."""
        return len(self._ready) * PIECE_MIB

    async def pieces(self, mib: int) -> list[tuple[int, int]]:
        """Descriptors of so much in all, each with its MiB. Raises NoSwapMemory.

        The caller closes them.
        """
        found: list[tuple[int, int]] = []
        while self._ready and mib >= PIECE_MIB:
            found.append((self._ready.popleft(), PIECE_MIB))
            mib -= PIECE_MIB
        whole, rest = divmod(mib, PIECE_MIB)
        try:
            found += await self._make([PIECE_MIB] * whole + [rest] * bool(rest))
        except BaseException:
            for descriptor, _ in found:
                os.close(descriptor)
            raise
        return found

    async def _make(self, sizes: list[int]) -> list[tuple[int, int]]:
        """Of so many MiB each, by several threads at once. Raises NoSwapMemory, and has none."""
        found: list[tuple[int, int]] = []
        problems: list[BaseException] = []
        for begin in range(0, len(sizes), self._makers):
            some = sizes[begin : begin + self._makers]
            threads = (asyncio.to_thread(make_memory, mib) for mib in some)
            for mib, made in zip(
                some, await asyncio.gather(*threads, return_exceptions=True), strict=True
            ):
                if isinstance(made, BaseException):
                    problems.append(made)
                else:
                    found.append((made, mib))
            if problems:
                for descriptor, _ in found:
                    os.close(descriptor)
                raise problems[0]
        return found

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """While a session's memory goes to the host: what it used is made up for afterwards.

        Taking pages keeps the machine's memory busy, and who moves waits for it.
        """
        self._moving += 1
        try:
            yield
        finally:
            self._moving -= 1
            self._wanted.set()

    async def keep_ready(self) -> None:
        """Takes pieces ahead of time, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while not self._moving and (count := min(self._makers, self._may_keep())):
                try:
                    made = await self._make([PIECE_MIB] * count)
                except NoSwapMemory as none:
                    log.warning("[suspend] ready_mib: %s", none)
                    break
                for piece, _ in made:
                    if self._may_keep():
                        self._ready.append(piece)
                    else:  # it was taken meanwhile
                        os.close(piece)

    def _may_keep(self) -> int:
        """How many pieces more."""
        room = (self.limit_mib - self.used_mib) // PIECE_MIB
        return max(0, min(self._ready_pieces, room) - len(self._ready))


def make_memory(mib: int) -> int:
    """A descriptor of shared memory that is there already; blocks. Raises NoSwapMemory.

    On huge pages where enough of them are free. The caller closes it.
    """
    if mib and _huge_pages_mib() >= mib:
        # Another thread, or process, may have them first.
        with contextlib.suppress(NoSwapMemory):
            return _made(mib, os.MFD_CLOEXEC | os.MFD_HUGETLB)
    return _made(mib, os.MFD_CLOEXEC)


def _made(mib: int, flags: int) -> int:
    try:
        descriptor = os.memfd_create("sluice-suspended", flags)
    except OSError as error:
        raise NoSwapMemory(f"the host gives no shared memory ({error.strerror})") from None
    try:
        os.ftruncate(descriptor, mib * MIB)
        if mib:
            os.posix_fallocate(descriptor, 0, mib * MIB)
    except OSError as error:
        os.close(descriptor)
        raise NoSwapMemory(
            f"the host has no {mib} MiB of memory left ({error.strerror}): lower [suspend] "
            "swap_mib, or free some"
        ) from None
    return descriptor


def _huge_pages_mib() -> int:
    try:
        return int(FREE_HUGE_PAGES.read_text()) * HUGE_PAGE_MIB
    except (OSError, ValueError):
        return 0
