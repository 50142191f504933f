# SPDX-License-Identifier: Apache-2.0
"""The audit trail: who changed what, and who was refused; stored, and in the log.

Used by both APIs. Every change is a line. What was refused or came to nothing is one, too, as long
as its caller does not make many of them: then they are counted, and the sum is a line a minute
later, so that nobody pushes older lines out of the store by being refused.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from sluice.config.peer_lines import WINDOW_SECONDS, Windows
from sluice.controller.pool.model import Event
from sluice.controller.store.store import Store, StoreError

log = logging.getLogger("sluice.controller")

DENIED = "audit.denied"
#: Refusals of one caller a minute are five times this, those of all twenty times this.
OFTEN = 2


class AuditTrail:
    """Writes it."""

    def __init__(
        self,
        store: Store,
        wall: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._wall = wall
        self._windows = Windows(monotonic)
        self._summing: asyncio.Task[None] | None = None

    async def changed(self, kind: str, subject: str, text: str) -> None:
        """A line about a change."""
        log.info("%s %s: %s", kind, subject, text)
        await self._store_line(kind, subject, text)

    async def refused(self, kind: str, subject: str, text: str) -> None:
        """A line about what was not done, unless there are many of this subject's."""
        await self.sum_up()
        if self._windows.admits("refused", subject, often=OFTEN):
            log.warning("%s %s: %s", kind, subject, text)
            await self._store_line(kind, subject, text)
        elif self._summing is None:
            self._summing = asyncio.create_task(self._sum_up_later())

    async def sum_up(self) -> None:
        """Writes what was left out in a minute that is over."""
        for left_out in self._windows.over():
            for subject, count in left_out.peers:
                text = f"… {count:,} more that were refused or failed in {WINDOW_SECONDS:.0f} s"
                log.warning("%s %s: %s", DENIED, subject, text)
                await self._store_line(DENIED, subject, text)

    async def _sum_up_later(self) -> None:
        while self._windows.next_end is not None:
            await asyncio.sleep(WINDOW_SECONDS)
            await self.sum_up()
        self._summing = None

    async def _store_line(self, kind: str, subject: str, text: str) -> None:
        try:
            await self._store.commit([Event(self._wall(), kind, subject, text)])
        except StoreError as error:
            log.error("the audit trail lacks a line (%s): %s %s", error, kind, text)
