# SPDX-License-Identifier: Apache-2.0
"""What each session of this host used in the last hour, in steps of 15 seconds.

Owned by sessions.figures, which tells of what workers say; read by controller.node_side when
somebody looks at a session. It is kept in memory: a few kilobytes for a session, nothing of one
that has ended. A step is what a worker's counters grew by between two of its answers, so what a
worker that was taken over says spoils its own session's figures only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

STEP_SECONDS = 15.0
STEPS = 240


class SessionStep(NamedTuple):
    """One step: when it ended (Unix time), and what was used in it, per second."""

    time: float
    gpus: float  # of GPUs' time
    memory_mib: float  # at its end
    commands: float
    round_trips: float
    received: float  # bytes
    sent: float


class _Sums(NamedTuple):
    at: float  # monotonic
    seconds: float  # of GPUs' time
    counters: Mapping[str, int]


class SessionHistory:
    """Of all sessions that run here."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._now = monotonic
        self._wall = wall
        self._before: dict[str, _Sums] = {}
        self._steps: dict[str, deque[SessionStep]] = {}

    def hear(
        self, session_id: str, seconds: float, memory_mib: float, counters: Mapping[str, int]
    ) -> None:
        """A session's worker said how its sums stand."""
        now = self._now()
        sums = _Sums(now, seconds, dict(counters))
        before = self._before.setdefault(session_id, sums)
        passed = now - before.at
        if passed < STEP_SECONDS:
            return
        self._before[session_id] = sums

        def per_second(name: str) -> float:
            return max(0, counters.get(name, 0) - before.counters.get(name, 0)) / passed

        self._steps.setdefault(session_id, deque(maxlen=STEPS)).append(
            SessionStep(
                self._wall(),
                max(0.0, seconds - before.seconds) / passed,
                memory_mib,
                per_second("commands"),
                per_second("round_trips"),
                per_second("bytes_in"),
                per_second("bytes_out"),
            )
        )

    def of(self, session_id: str) -> list[SessionStep]:
        """A session's steps, oldest first."""
        return list(self._steps.get(session_id, ()))

    def end(self, session_id: str) -> None:
        """The session is over."""
        self._before.pop(session_id, None)
        self._steps.pop(session_id, None)
