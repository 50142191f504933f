# SPDX-License-Identifier: Apache-2.0
"""Runs `sluice doctor`'s checks by area and shows what they found, a line each, or as JSON.

Used by doctor.py here and by support/doctor.py on hosts. An area is a function that returns
findings; one that fails itself is a finding too, so that the others are seen. Texts may quote what
files and peers say, so control characters are taken out of every line.
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TextIO

from . import VERSION
from .check import SIGNS
from .findings import Finding, Verdict, bad

#: Of the JSON document; it grows when a field changes its meaning.
FORMAT = 1
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_LONGEST = 2000


class Area(NamedTuple):
    """Checks that belong together."""

    name: str
    check: Callable[[], Sequence[Finding]]


class Result(NamedTuple):
    """A finding and where it belongs."""

    area: str
    finding: Finding


def plain(text: str) -> str:
    """The text on one line, without what would move a terminal's cursor or turn its text round."""
    return _CONTROL.sub(" ", text)[:_LONGEST].strip()


def examine(areas: Iterable[Area]) -> list[Result]:
    """Everything that the areas find, in their order."""
    results: list[Result] = []
    for area in areas:
        try:
            found = list(area.check())
        except Exception as error:
            found = [
                bad(
                    area.name,
                    f"the check itself failed: {type(error).__name__}: {error}",
                    "report it, with what `sluice support-bundle` collects",
                )
            ]
        results += [Result(area.name, finding) for finding in found]
    return results


def count(results: Iterable[Result], verdict: Verdict) -> int:
    """How many findings have this verdict."""
    return sum(result.finding.verdict is verdict for result in results)


def exit_status(results: Iterable[Result]) -> int:
    """1 where something is wrong, else 0: notes are no failure."""
    return 1 if count(results, Verdict.BAD) else 0


def as_document(results: Sequence[Result]) -> dict[str, Any]:
    """What `--json` prints: `findings` in order, each with area, subject, verdict, text, remedy."""
    return {
        "format": FORMAT,
        "host": platform.node(),
        "release": VERSION,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "problems": count(results, Verdict.BAD),
        "notes": count(results, Verdict.NOTE),
        "findings": [
            {
                "area": area,
                "subject": plain(finding.subject),
                "verdict": finding.verdict.value,
                "text": plain(finding.text),
                "remedy": plain(finding.remedy),
            }
            for area, finding in results
        ],
    }


def show(results: Sequence[Result], out: TextIO, *, only_problems: bool = False) -> None:
    """A line for each finding under its area's name, and a last line that sums them up."""
    last = ""
    for area, finding in results:
        if only_problems and finding.verdict is Verdict.OK:
            continue
        if area != last:
            print(area, file=out)
            last = area
        print(f"  {one_line(finding)}", file=out)
    problems, notes = count(results, Verdict.BAD), count(results, Verdict.NOTE)
    said = f"{problems} problem{'s' * (problems != 1)}" if problems else "nothing is wrong"
    print(f"{said}, {notes} note{'s' * (notes != 1)}, {len(results)} looked at", file=out)


def show_json(results: Sequence[Result], out: TextIO) -> None:
    """The document, indented."""
    json.dump(as_document(results), out, indent=2)
    print(file=out)


def one_line(finding: Finding) -> str:
    """Verdict, subject, what was found, and behind an arrow what to do."""
    remedy = f" -> {finding.remedy}" if finding.remedy else ""
    text = plain(f"{finding.subject}: {finding.text}{remedy}")
    return f"{SIGNS[finding.verdict]}  {text}"
