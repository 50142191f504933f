# SPDX-License-Identifier: Apache-2.0
"""What counts: of the cases that pass natively, how many do the same through Sluice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .results import FileCounts
from .running import Case, FileRun, worth_it


@dataclass
class Compared:
    """One part over one channel."""

    same: int = 0
    different: dict[str, str] = field(default_factory=dict)  #: case → what happened here
    skipped: int = 0  #: natively, and so not compared
    failed: int = 0  #: natively, and so not compared

    @property
    def compared(self) -> int:
        """Cases that pass natively."""
        return self.same + len(self.different)


def verdict(native: Case, ours: Case | None) -> str:
    """ "" for a case that is the same here; else what is different."""
    if ours is None:
        return "it was not run"
    if ours.outcome != "passed":
        return f"{ours.outcome}: {ours.reason}"
    if ours.printed != native.printed:
        return f"printed {ours.printed[-200:]!r}, natively {native.printed[-200:]!r}"
    return ""


def compare(native: Mapping[str, Case], ours: Mapping[str, Case]) -> Compared:
    """The cases of a part."""
    found = Compared()
    for name, case in native.items():
        if case.outcome == "skipped":
            found.skipped += 1
        elif case.outcome != "passed":
            found.failed += 1
        elif said := verdict(case, ours.get(name)):
            found.different[name] = said
        else:
            found.same += 1
    return found


def both(
    native: Mapping[str, FileRun], ours: Mapping[str, FileRun]
) -> tuple[dict[str, Case], dict[str, Case]]:
    """The cases of two runs of a part, less what the time did not suffice for.

    A file that was begun only natively is left out, unless nothing passed there, and of one that
    was stopped through Sluice the tests that it had not come to.
    """
    here: dict[str, Case] = {}
    there: dict[str, Case] = {}
    for name, run in native.items():
        other = ours.get(name)
        if other is not None:
            there |= other.cases
            here |= {c: case for c, case in run.cases.items() if other.whole or c in other.cases}
        elif name not in worth_it({name: run}):
            here |= run.cases
    return here, there


def by_file(
    native: Mapping[str, FileRun], ours: Mapping[str, FileRun], commit: str
) -> dict[str, FileCounts]:
    """What is known of each file, less those that were begun only natively.

    One came to its end if it did so both ways, or natively and nothing passed there.
    """
    counted = {}
    for name, run in native.items():
        other = ours.get(name)
        worth = bool(worth_it({name: run}))
        if other is None and worth:
            continue
        here, there = both({name: run}, {name: other} if other else {})
        found = compare(here, there)
        whole = run.whole and (other.whole if other else not worth)
        counted[name] = FileCounts(
            found.same, len(found.different), found.skipped, found.failed, whole, commit
        )
    return dict(sorted(counted.items()))
