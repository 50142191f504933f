# SPDX-License-Identifier: Apache-2.0
"""What each project holds now, and the most that it may hold.

Owned by grants.bookings, which tells it of every grant and reservation that begins, changes or
ends; asked by scheduling.Scheduler before it grants. It promises that the sums are those of the
live grants that use the pool's own room and of the reservations, so that nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.model import DEFAULT_PROJECT, Quota


class Slice(Protocol):
    """A vGPU, granted or reserved."""

    @property
    def memory_mib(self) -> int:
        """Of the GPU's memory, without contexts."""
        ...

    @property
    def compute_percent(self) -> int:
        """Of the GPU's compute."""
        ...


@dataclass(frozen=True, slots=True)
class Held:
    """Sums over vGPUs; contexts' overhead is not counted."""

    vgpus: int = 0
    memory_mib: int = 0
    compute_percent: int = 0

    @classmethod
    def of(cls, slices: Iterable[Slice]) -> Held:
        """What these vGPUs are together."""
        found = list(slices)
        return cls(
            len(found), sum(s.memory_mib for s in found), sum(s.compute_percent for s in found)
        )

    @classmethod
    def at_least(cls, request: GrantRequest) -> Held:
        """What a request means for sure; default sizes are known only once it is placed."""
        return cls(
            request.count,
            request.count * request.memory_mib,
            request.count * request.compute_percent,
        )

    def plus(self, other: Held, sign: int = 1) -> Held:
        """The sum, or with sign -1 the difference."""
        return Held(
            self.vgpus + sign * other.vgpus,
            self.memory_mib + sign * other.memory_mib,
            self.compute_percent + sign * other.compute_percent,
        )


NOTHING = Held()
FIGURES = (
    ("vgpus", "vGPUs"),
    ("memory_mib", "MiB of GPU memory"),
    ("compute_percent", "% of GPU compute"),
)


@dataclass(frozen=True, slots=True)
class Excess:
    """A figure of a project's quota, and what is wanted beyond it."""

    project: str
    figure: str  # of FIGURES
    most: int
    held: int
    wanted: int

    def __str__(self) -> str:
        words = dict(FIGURES)[self.figure]
        return (
            f"project {self.project} may hold {self.most} {words} (its quota {self.figure}), holds "
            f"{self.held} and this wants {self.wanted}"
        )


class Quotas:
    """Sums and limits by project."""

    def __init__(self) -> None:
        self.limits: dict[str, Quota] = {}
        self._held: dict[str, Held] = {}

    def held(self, project: str) -> Held:
        """What the project holds now."""
        return self._held.get(project or DEFAULT_PROJECT, NOTHING)

    def projects(self) -> list[str]:
        """Every project that holds something or has a quota."""
        return sorted({*self._held, *self.limits})

    def change(self, project: str, held: Held, sign: int) -> Held:
        """The project holds so much more, or less; returns what it holds then."""
        project = project or DEFAULT_PROJECT
        total = self.held(project).plus(held, sign)
        if total == NOTHING:
            self._held.pop(project, None)
        else:
            self._held[project] = total
        return total

    def never(self, project: str, wanted: Held) -> Excess | None:
        """By what this alone is more than the project may ever hold; None if it is not."""
        return self._exceeded(project, wanted, NOTHING)

    def exceeded(self, project: str, wanted: Held, freed: Held = NOTHING) -> Excess | None:
        """By what this is too much besides what the project holds less `freed`; None: it is not."""
        return self._exceeded(project, wanted, self.held(project).plus(freed, -1))

    def may_preempt(self, request: GrantRequest) -> bool:
        """Whether the request may have others ended: what its token says, else its project."""
        if request.may_preempt is not None:
            return request.may_preempt
        limit = self.limits.get(request.project or DEFAULT_PROJECT)
        return limit is not None and limit.may_preempt

    def max_priority(self, project: str) -> int | None:
        """The highest priority of the project's requests; None: it has no limit."""
        limit = self.limits.get(project or DEFAULT_PROJECT)
        return limit.max_priority if limit else None

    def too_high(self, request: GrantRequest) -> int | None:
        """The highest priority that the request may have, if it wants a higher one."""
        most = request.max_priority
        if most is None:
            most = self.max_priority(request.project)
        return most if most is not None and request.priority > most else None

    def _exceeded(self, project: str, wanted: Held, held: Held) -> Excess | None:
        limit = self.limits.get(project or DEFAULT_PROJECT)
        if limit is None:
            return None
        for figure, _ in FIGURES:
            most, have, more = (getattr(part, figure) for part in (limit, held, wanted))
            if most and have + more > most:
                return Excess(limit.project, figure, most, have, more)
        return None
