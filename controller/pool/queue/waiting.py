# SPDX-License-Identifier: Apache-2.0
"""The queue of requests that do not fit now: by priority, then by age.

Called by scheduling.Scheduler and pool.Pool only. It owns the waiting requests and their deadlines
and promises that order never changes except by removal, and by an operator who moves one, so that
positions are exact and nobody starves: with ageing, a request passes those that have waited less
than `ageing_seconds` longer for each step of priority that it is above them, and no others.
Requests that fit or do not fit alike form a class, of which a walk visits no more once one did not
fit.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from sluice.controller.pool.decisions import GrantRequest
from sluice.resources.container import NO_CONTAINER

#: The last is an arrival, or of what was moved any place between two.
Order = tuple[float, float, Fraction | int]
#: Between two requests others can be moved so often.
MOST_DENOMINATOR = 1 << 64


class NoPlaceLeft(Exception):
    """Between two requests others were moved too often; another position is to be had."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A waiting request; deadline is monotonic, None waits for ever."""

    order: Order
    request: GrantRequest
    deadline: float | None
    alike: GrantRequest  # equal for requests that fit alike
    since: float  # monotonic
    arrival: int


class WaitingQueue:
    """Requests in the order in which they will be served."""

    def __init__(self, ageing_seconds: float = 0.0) -> None:
        self._ageing = ageing_seconds
        self._arrivals = 0
        self._entries: dict[str, Entry] = {}
        # plain lists: bisect finds a place in O(log n), and moving some thousand pointers takes
        # less time than one step of any tree in Python
        self._orders: list[Order] = []
        self._by_order: dict[Order, Entry] = {}
        self._classes: dict[GrantRequest, list[Order]] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._preempting: dict[str, Entry] = {}
        self._since: list[tuple[float, int]] = []  # of each, and its arrival
        self.by_priority: Counter[int] = Counter()  # how many wait
        self.generation = 0  # grows when an operator moves one

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter([self._by_order[order] for order in self._orders])

    def add(self, request: GrantRequest, deadline: float | None, now: float = 0.0) -> None:
        """Puts a request where its priority and its age belong; `now` is monotonic."""
        if request.request_id in self._entries:
            self.remove(request.request_id)
        self._arrivals += 1
        since = now - request.waited_seconds
        # a step of priority is worth so many seconds of waiting: that never has to be sorted anew
        order: Order = (
            (since - request.priority * self._ageing, 0.0, self._arrivals)
            if self._ageing
            else (-request.priority, since, self._arrivals)
        )
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, request.request_id))
        self._put(Entry(order, request, deadline, alike(request), since, self._arrivals))

    def _put(self, entry: Entry) -> None:
        request, order = entry.request, entry.order
        self._entries[request.request_id] = entry
        self.by_priority[request.priority] += 1
        bisect.insort(self._since, (entry.since, entry.arrival))
        self._by_order[order] = entry
        bisect.insort(self._orders, order)
        bisect.insort(self._classes.setdefault(entry.alike, []), order)
        if request.preempt:
            self._preempting[request.request_id] = entry

    def move(self, request_id: str, position: int) -> bool:
        """Puts a request at a position, 1 for the next; False if it does not wait.

        It keeps the place towards those that it now stands between; who comes later goes by
        priority and age as ever. Raises NoPlaceLeft.
        """
        entry = self._entries.get(request_id)
        if entry is None:
            return False
        others = len(self._orders) - 1
        at, now = max(0, min(position - 1, others)), self.position(request_id) - 1
        if at == now:
            return True
        # who stands before and behind it then, it being taken out
        before = self._orders[at - 1 + (now < at)] if at else None
        behind = self._orders[at + (now <= at)] if at < others else None
        moved = replace(entry, order=between(before, behind))
        self.remove(request_id)
        self._put(moved)
        self.generation += 1
        return True

    def get(self, request_id: str) -> Entry | None:
        """The entry of a request that waits."""
        return self._entries.get(request_id)

    def remove(self, request_id: str) -> bool:
        """Takes a request out; False if it was not there."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return False
        del self._by_order[entry.order]
        del self._orders[bisect.bisect_left(self._orders, entry.order)]
        same = self._classes[entry.alike]
        del same[bisect.bisect_left(same, entry.order)]
        if not same:
            del self._classes[entry.alike]
        del self._since[bisect.bisect_left(self._since, (entry.since, entry.arrival))]
        self.by_priority[entry.request.priority] -= 1
        if not self.by_priority[entry.request.priority]:
            del self.by_priority[entry.request.priority]
        self._preempting.pop(request_id, None)
        return True

    def position(self, request_id: str) -> int:
        """1 for the next request, 0 if it does not wait."""
        entry = self._entries.get(request_id)
        return bisect.bisect_left(self._orders, entry.order) + 1 if entry else 0

    @property
    def oldest(self) -> float | None:
        """Since when the request waits that has waited longest, monotonic; None: nobody waits."""
        return self._since[0][0] if self._since else None

    def overdue(self, now: float) -> list[GrantRequest]:
        """Takes out and returns the requests whose deadline has passed."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, request_id = heapq.heappop(self._deadlines)
            # what was taken out before its time is still in the heap
            entry = self._entries.get(request_id)
            if entry and entry.deadline == deadline:
                self.remove(request_id)
                late.append(entry.request)
        return late

    def preempting(self) -> list[Entry]:
        """Those that may have others ended for them, in order."""
        return sorted(self._preempting.values(), key=lambda entry: entry.order)

    def walk(self) -> Walk:
        """A way through the queue, in order."""
        return Walk(self._by_order, self._classes)


class Walk:
    """Visits the first of each class, and the next of it only when the one before was removed."""

    def __init__(
        self, by_order: dict[Order, Entry], classes: dict[GrantRequest, list[Order]]
    ) -> None:
        self._by_order = by_order
        self._classes = classes
        self._heads = [orders[0] for orders in classes.values()]
        heapq.heapify(self._heads)
        self._last: Entry | None = None

    def __iter__(self) -> Iterator[Entry]:
        while entry := self._next():
            yield entry

    def _next(self) -> Entry | None:
        last, self._last = self._last, None
        if last and last.order not in self._by_order and (same := self._classes.get(last.alike)):
            heapq.heappush(self._heads, same[0])
        if not self._heads:
            return None
        self._last = self._by_order[heapq.heappop(self._heads)]
        return self._last


def between(before: Order | None, behind: Order | None) -> Order:
    """A place between two neighbours, of which one may be none; raises NoPlaceLeft."""
    if before is None:
        assert behind is not None
        return behind[0], behind[1], behind[2] - 1
    if behind is not None and before[:2] != behind[:2]:
        return behind[0], behind[1], behind[2] - 1
    # at the end: before whoever may arrive
    end = behind[2] if behind is not None else math.floor(before[2]) + 1
    middle = Fraction(before[2] + end) / 2
    if middle.denominator > MOST_DENOMINATOR:
        raise NoPlaceLeft
    return before[0], before[1], middle


def alike(request: GrantRequest) -> GrantRequest:
    """The request without what makes no difference to whether it fits."""
    return replace(
        request,
        request_id=request.reservation,
        priority=0,
        wait_seconds=0,
        node=request.node if request.local_only else "",
        channel="",
        host="",
        program="",
        client_pid=0,
        client_uid=0,
        domain_name="",
        container=NO_CONTAINER,
        preempt=False,
        max_priority=None,
        may_preempt=None,
        waited_seconds=0.0,
    )
