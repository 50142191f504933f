# SPDX-License-Identifier: Apache-2.0
"""What is computed of tenants' work: steps in a window, parts of a GPU, times of requests.

Used by torch_tenant.py and torch_shares.py; needs neither a GPU nor PyTorch.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass


def work_between(times: Sequence[float], begin: float, end: float) -> float:
    """Steps done between two moments; `times`: when work began, then when each step was done.

    A step that lies across a moment counts by its part in time. Raises ValueError where the work
    does not reach from before `begin` until behind `end`.
    """

    def done(moment: float) -> float:
        place = bisect.bisect_right(times, moment)
        if not place or place == len(times):
            raise ValueError(f"work from {times[0]} to {times[-1]} does not reach {moment}")
        before, after = times[place - 1], times[place]
        return place - 1 + (moment - before) / (after - before)

    return done(end) - done(begin)


def arrivals(a_second: float, seconds: float, seed: int) -> list[float]:
    """When requests of a Poisson process come, seconds from its begin: the same for a seed."""
    chance, found, at = random.Random(seed), [], 0.0
    while (at := at + chance.expovariate(a_second)) < seconds:
        found.append(at)
    return found


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest that so large a part of them does not exceed."""
    return sorted(values)[math.ceil(part * len(values)) - 1]


@dataclass(frozen=True)
class Split:
    """What programs had of a GPU beside each other."""

    of_alone: tuple[float, ...]  #: what each did of what it does alone

    @classmethod
    def of(cls, rates: Sequence[float], alone: Sequence[float]) -> Split:
        """Of their rates beside each other and alone."""
        return cls(tuple(rate / one for rate, one in zip(rates, alone, strict=True)))

    @property
    def total(self) -> float:
        """All their work, of one's alone."""
        return sum(self.of_alone)

    @property
    def percents(self) -> tuple[float, ...]:
        """The part of each in what all had."""
        return tuple(100 * part / self.total for part in self.of_alone)

    def errors(self, wanted: Sequence[int]) -> list[float]:
        """How far each is from its share, in points."""
        return [abs(had - share) for had, share in zip(self.percents, wanted, strict=True)]

    def __str__(self) -> str:
        of_alone = " ".join(f"{part:.3f}" for part in self.of_alone)
        return f"{' '.join(f'{had:.2f}' for had in self.percents)} | of alone {of_alone}"
