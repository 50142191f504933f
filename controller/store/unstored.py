# SPDX-License-Identifier: Apache-2.0
"""What the pool decided while the store did not work, kept until it does.

Owned by controller.grant_service. It keeps one entry per record, so that a long outage costs no
more memory than the pool itself, and hands records over as they are by then: they may have changed
since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from sluice.controller.pool.model import (
    Change,
    Event,
    Gpu,
    GpuKey,
    GpuRemoved,
    Grant,
    GrantState,
    Node,
    Session,
    SessionState,
)
from sluice.controller.pool.pool import Pool
from sluice.controller.store.records import Key, Kind, kind_and_key

EVENTS_KEPT = 10_000


class Unstored:
    """Changes whose commit failed."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._records: dict[tuple[Kind, Key], Change] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)

    def keep(self, changes: Iterable[Change]) -> None:
        """Takes in a commit that failed."""
        for change in changes:
            if isinstance(change, Event):
                self._events.append(change)
            else:
                self._records[kind_and_key(change)] = change

    def take(self) -> list[Change]:
        """Hands everything over, to be tried again with the next commit."""
        if not self._records and not self._events:
            return []
        changes = [*map(self._as_of_now, self._records.values()), *self._events]
        self._records, self._events = {}, deque(maxlen=EVENTS_KEPT)
        return changes

    def _as_of_now(self, change: Change) -> Change:
        if isinstance(change, Grant):
            # forgotten means ended, long ago
            grant = self._pool.grants.get(change.id)
            return replace(grant) if grant else replace(change, state=GrantState.ENDED)
        if isinstance(change, Session):
            session = self._pool.sessions.get(change.id)
            return replace(session) if session else replace(change, state=SessionState.ENDED)
        if isinstance(change, Node):
            node = self._pool.nodes.get(change.name)
            return replace(node) if node else change
        if isinstance(change, Gpu | GpuRemoved):
            gpu = self._pool.gpus.get(GpuKey(change.node, change.uuid))
            return gpu or GpuRemoved(change.node, change.uuid)
        return change
