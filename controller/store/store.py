# SPDX-License-Identifier: Apache-2.0
"""The store's interface: what the controller needs of whatever keeps the pool's state.

Called by controller.desk. A store promises that a commit that returned survives the process, that
changes of one commit are stored together or not at all, and that commits are stored in the order in
which commit() was called. sqlite.py is the store of one controller, etcd.py that of several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.controller.pool.model import Change, Event
from sluice.controller.pool.pool import Snapshot


class StoreError(Exception):
    """The store cannot be opened, read or written; the message names it and the way out."""


class RecordError(StoreError):
    """This store cannot hold one of the records; other commits are not concerned."""


class DeposedError(StoreError):
    """Another controller may lead by now: nothing more can be stored by this one."""


class Store(Protocol):
    """Keeps the pool's records."""

    async def load(self) -> Snapshot:
        """Returns everything that was committed."""
        ...

    async def commit(self, changes: Sequence[Change]) -> None:
        """Stores the changes; raises StoreError if that failed."""
        ...

    async def events(self, limit: int, subject: str | None = None) -> list[Event]:
        """Returns the newest events, newest first."""
        ...

    async def close(self) -> None:
        """Finishes what was begun and lets go of the store."""
        ...
