# SPDX-License-Identifier: Apache-2.0
"""Whether a worker uses more of a GPU than its turns and its own word explain, by NVML's word.

Used by sessions.use_watch. A worker says itself what it used, and whether it has given a turn back;
one that was taken over may lie about both. NVML's utilisation by process is the driver's word. No
I/O, and the clock is injected. It promises to compare whole minutes only, and nothing of a GPU
whose driver did not answer throughout. Seconds, shares of a GPU from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COMPARE_SECONDS = 60.0
#: NVML samples a few times a second, and turns are some ten milliseconds long: what it makes of
#: them is not exact.
MARGIN = 0.2


@dataclass(frozen=True, slots=True)
class Claim:
    """What explains a worker's use of a GPU so far: sums that never fall."""

    session_id: str
    gpu: str
    pid: int
    said: float  # that it used, by its own word
    held: float | None  # that its grant had turns, by the arbiter's; None: it has none now


@dataclass(frozen=True, slots=True)
class Excess:
    """A minute in which a worker used more than that."""

    session_id: str
    gpu: str
    pid: int
    seen: float  # share of the GPU, by NVML
    said: float  # by the worker
    held: float | None  # by the arbiter


@dataclass(slots=True)
class _Minute:
    began: float
    last: float
    first: Claim
    seen: float = 0.0  # seconds


class UseComparison:
    """Every worker's minute."""

    def __init__(self) -> None:
        self._minutes: dict[tuple[str, str], _Minute] = {}  # by session and GPU

    def take(
        self, now: float, seen: Mapping[str, Mapping[int, float]], claims: Sequence[Claim]
    ) -> list[Excess]:
        """A reading: by GPU and process, what it used since the last; returns what is too much.

        A GPU that is not in it did not answer; a process that is not in it used nothing.
        """
        found = []
        before, self._minutes = self._minutes, {}
        for claim in claims:
            if claim.gpu not in seen:
                continue
            key = claim.session_id, claim.gpu
            minute = before.get(key)
            # one who had turns for a part of it only could run freely for the rest
            if minute is None or (minute.first.held is None) != (claim.held is None):
                self._minutes[key] = _Minute(now, now, claim)
                continue
            share = min(1.0, max(0.0, seen[claim.gpu].get(claim.pid, 0.0)))
            minute.seen += share * (now - minute.last)
            minute.last = now
            if now - minute.began < COMPARE_SECONDS:
                self._minutes[key] = minute
                continue
            if excess := _excess(minute, claim, now - minute.began):
                found.append(excess)
            self._minutes[key] = _Minute(now, now, claim)
        return found


def _excess(minute: _Minute, now: Claim, seconds: float) -> Excess | None:
    first = minute.first
    seen, said = minute.seen / seconds, (now.said - first.said) / seconds
    held = None
    if now.held is not None and first.held is not None:
        held = (now.held - first.held) / seconds
    explained = said if held is None else min(said, held)
    if seen <= explained + MARGIN:
        return None
    return Excess(now.session_id, now.gpu, now.pid, seen, said, held)
