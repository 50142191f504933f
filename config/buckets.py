# SPDX-License-Identifier: Apache-2.0
"""How often one caller may ask: a token bucket for each address and each token.

Used by REST, and for the TLS handshakes of all HTTP servers. A bucket holds two seconds'
worth of requests, so that a burst passes and a loop does not. It remembers a bounded number of
callers; who is forgotten begins with a full bucket.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

MOST_CALLERS = 20_000
BURST_SECONDS = 2.0


class Buckets:
    """One bucket for each name."""

    def __init__(self, per_second: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # level, when

    def take(self, name: str) -> float:
        """Takes one; returns 0, or after how many seconds there is one again."""
        if self._per_second <= 0:
            return 0.0
        now, full = self._monotonic(), max(1.0, self._per_second * BURST_SECONDS)
        level, then = self._buckets.get(name, (full, now))
        level = min(full, level + (now - then) * self._per_second)
        wait = 0.0
        if level >= 1.0:
            level -= 1.0
        else:
            wait = (1.0 - level) / self._per_second
        self._buckets[name] = (level, now)
        self._buckets.move_to_end(name)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return wait
