# SPDX-License-Identifier: Apache-2.0
"""Group commit: commits that arrive while one is being written share the next write.

Used by every store, which gives the function that writes. It promises that commits are written in
the order in which they were made, that none is acknowledged before its write returned, one of
nothing not before those that came before it, and that a commit that the store cannot hold fails
alone: what shared its write is written without it. While many commit, a group waits a moment for
more: a write costs the processor the most by being one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from sluice.controller.pool.model import Change
from sluice.controller.store.store import RecordError, StoreError

log = logging.getLogger("sluice.controller")

GATHER_SECONDS = 0.003

Write = Callable[[list[Change]], Awaitable[None]]
Member = tuple[Sequence[Change], asyncio.Future[None]]


class GroupCommit:
    """Collects commits and writes them, one group at a time."""

    def __init__(self, write: Write, most_changes: int) -> None:
        self._write = write
        self._most_changes = most_changes
        self._waiting: list[Member] = []
        self._flush: asyncio.Task[None] | None = None
        self._in_company = False  # whether the last group had several members
        self.groups = 0

    def commit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Returns a future that is done when the changes are stored, or has a StoreError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not changes and self._flush is None:
            done.set_result(None)
            return done
        self._waiting.append((changes, done))
        if self._flush is None:
            self._flush = asyncio.create_task(self._flush_waiting())
        return done

    async def drain(self) -> None:
        """Returns when everything that was committed so far is settled."""
        while self._flush:
            await asyncio.wait([self._flush])

    async def _flush_waiting(self) -> None:
        try:
            while self._waiting:
                if self._in_company:
                    await asyncio.sleep(GATHER_SECONDS)
                await self._write_group(self._next_group())
        finally:
            self._flush = None

    def _next_group(self) -> list[Member]:
        size = 0
        for count, (changes, _) in enumerate(self._waiting):
            size += len(changes)
            if count and size > self._most_changes:
                break
        else:
            count = len(self._waiting)
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        self._in_company = sum(bool(changes) for changes, _ in group) > 1
        return group

    async def _write_group(self, group: list[Member]) -> None:
        changes = [change for changes, _ in group for change in changes]
        self.groups += bool(changes)
        try:
            if changes:
                await self._write(changes)
        except RecordError as error:
            if len(group) > 1:
                for member in group:
                    await self._write_group([member])
                return
            _settle(group, error)
        except StoreError as error:
            _settle(group, error)
        except Exception as error:
            log.exception("a commit failed in a way that it should not")
            _settle(group, StoreError(f"the store failed: {error!r}"))
        else:
            _settle(group, None)


def _settle(group: list[Member], error: StoreError | None) -> None:
    for _, done in group:
        if done.done():
            continue  # whoever waited has been cancelled
        if error:
            done.set_exception(error)
        else:
            done.set_result(None)
