# SPDX-License-Identifier: Apache-2.0
"""Keeps history while a controller leads, and reads it for the console.

Started by controller.service. The event loop samples (sampling), one thread writes and reads
(history_file): so there is one writer, and a request waits for others' instead of doing as much at
once. Without a file that can be written the controller goes on as ever, and says so once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sluice.controller.history.history_file import HistoryError, HistoryFile
from sluice.controller.history.sampling import sample
from sluice.controller.history.series import STEP_SECONDS, Point, Span, Values
from sluice.controller.pool.pool import Pool

log = logging.getLogger("sluice.controller")

MOST_READERS = 32


class HistoryKeeper:
    """Of one pool, in one file."""

    def __init__(
        self,
        pool: Pool,
        path: Path,
        wall: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._pool = pool
        self._pause = pause
        self._path = path
        self._wall = wall
        self._thread = ThreadPoolExecutor(1, "history")
        self._file: HistoryFile | None = None
        self._said = ""
        self._readers = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        tally = self._pool.tally_used()
        loop = asyncio.get_running_loop()
        first = True
        try:
            while True:
                began = time.monotonic()
                await self._pause(STEP_SECONDS - self._wall() % STEP_SECONDS)
                used, seconds = tally.take(), time.monotonic() - began
                # nodes tell a new leader at first what they used before
                values = await sample(self._pool, None if first else used, max(seconds, 0.1))
                first = False
                step = int(self._wall() // STEP_SECONDS - 1) * STEP_SECONDS
                await loop.run_in_executor(self._thread, self._write, step, values)
        finally:
            self._thread.submit(self._close)
            self._thread.shutdown(wait=False)

    async def read(self, name: str, span: Span) -> list[Point]:
        """A series; raises HistoryError."""
        if self._readers >= MOST_READERS:
            raise HistoryError("too many look at history; try again in a moment")
        self._readers += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._read, name, span)
        except RuntimeError:  # the thread has ended
            raise HistoryError("this controller does not lead any more") from None
        finally:
            self._readers -= 1

    # in the thread

    def _opened(self) -> HistoryFile:
        if self._file is None:
            self._file = HistoryFile(self._path)
        return self._file

    def _write(self, step: int, values: dict[str, Values]) -> None:
        try:
            self._opened().write(step, values)
        except HistoryError as error:
            self._say(str(error))
        except Exception:
            log.exception("history: a step is not kept")
        else:
            self._said = ""

    def _read(self, name: str, span: Span) -> list[Point]:
        return self._opened().read(name, span, self._wall())

    def _say(self, text: str) -> None:
        if text != self._said:
            log.warning("history is not kept: %s", text)
            self._said = text

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
