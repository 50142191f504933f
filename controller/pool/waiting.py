# SPDX-License-Identifier: Apache-2.0
"""The queue of requests that do not fit now: by priority, then by age.

Called by pool.Pool only. It owns the waiting requests and their deadlines and promises that order
never changes except by removal.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.controller.pool.model import GrantRequest


@dataclass(frozen=True, slots=True)
class Entry:
    """A waiting request; deadline is monotonic, None waits for ever."""

    order: tuple[int, int]
    request: GrantRequest
    deadline: float | None


class WaitingQueue:
    """Requests in the order in which they will be served."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    def add(self, request: GrantRequest, deadline: float | None) -> None:
        """Puts a request behind all of its priority and before all of lower priority."""
        self._arrivals += 1
        entry = Entry((-request.priority, self._arrivals), request, deadline)
        bisect.insort(self._entries, entry, key=lambda e: e.order)

    def remove(self, request_id: str) -> bool:
        """Takes a request out; False if it was not there."""
        for index, entry in enumerate(self._entries):
            if entry.request.request_id == request_id:
                del self._entries[index]
                return True
        return False

    def position(self, request_id: str) -> int:
        """1 for the next request, 0 if it does not wait."""
        for index, entry in enumerate(self._entries):
            if entry.request.request_id == request_id:
                return index + 1
        return 0

    def overdue(self, now: float) -> list[GrantRequest]:
        """Takes out and returns the requests whose deadline has passed."""
        late = [e for e in self._entries if e.deadline is not None and e.deadline <= now]
        for entry in late:
            self._entries.remove(entry)
        return [entry.request for entry in late]
