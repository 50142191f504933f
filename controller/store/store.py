# SPDX-License-Identifier: Apache-2.0
"""The store's interface: what the controller needs of whatever keeps the pool's state.

Called by controller.grant_service. A store promises that a commit that returned survives the
process, that changes of one commit are stored together or not at all, and that commits are stored
in the order in which commit() was called. sqlite.py is the store of one controller, etcd.py that of
several.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice.controller.pool.model import Change, Event
from sluice.controller.pool.pool import Snapshot
from sluice.controller.pool.usage_records import UsageRecord, UsageShare

USAGE_DAYS = 400  # that are kept
USAGE_HOURS = USAGE_DAYS * 24


class StoreError(Exception):
    """The store cannot be opened, read or written; the message names it and the way out."""


class RecordError(StoreError):
    """This store cannot hold one of the records; other commits are not concerned."""


class DeposedError(StoreError):
    """Another controller may lead by now: nothing more can be stored by this one."""


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Which events are wanted; newest first unless told otherwise."""

    limit: int
    subjects: tuple[str, ...] = ()  # one of them; empty: any
    kind: str = ""  # what their kind begins with
    without_kind: str = ""  # and what it does not begin with
    after: int = 0  # only with numbers beyond this one
    before: int | None = None  # and below this one
    oldest_first: bool = False

    def matches(self, number: int, event: Event) -> bool:
        """Whether an event is one of these."""
        return (
            number > self.after
            and (self.before is None or number < self.before)
            and (not self.subjects or event.subject in self.subjects)
            and event.kind.startswith(self.kind)
            and not (self.without_kind and event.kind.startswith(self.without_kind))
        )


@dataclass(frozen=True, slots=True)
class NumberedEvent:
    """An event and its number: these grow, and no number is used twice."""

    number: int
    event: Event


class Store(Protocol):
    """Keeps the pool's records."""

    async def load(self) -> Snapshot:
        """Returns everything that was committed."""
        ...

    def commit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Stores the changes; the future is done then, or has a StoreError if that failed."""
        ...

    async def events(self, limit: int, subject: str | None = None) -> list[Event]:
        """Returns the newest events, newest first."""
        ...

    async def find_events(self, query: EventQuery) -> list[NumberedEvent]:
        """Returns the events that are asked for, with their numbers."""
        ...

    async def usage(self, first: int, last: int, project: str | None = None) -> list[UsageRecord]:
        """Returns what was used in these hours of the epoch, by hour, then by project."""
        ...

    async def shares(self, first: int, last: int, project: str | None = None) -> list[UsageShare]:
        """Returns the same by person and label, of these days, by day, project, person, label."""
        ...

    async def close(self) -> None:
        """Finishes what was begun and lets go of the store."""
        ...
