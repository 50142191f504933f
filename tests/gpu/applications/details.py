# SPDX-License-Identifier: Apache-2.0
"""What a run leaves besides its result, for whoever looks why a case differs.

Beside results.jsonl, in the folder `details`: `ENTRY.PART.CHANNEL.jsonl` has each case that did not
pass both ways, with what became of it here and there, and `ENTRY.said.txt` the lines that sessions,
their workers and clients have logged, without numbers, the most frequent first.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from .running import FileRun

#: What two lines of one meaning differ by.
VARIABLE = re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b|0x[0-9a-fA-F]+|\d+")
SPOKEN = re.compile(r"(?i)error|warn|not supported|private|refus|bad command|died|\bfault")
MOST_LINES = 200


def unlike(native: Mapping[str, FileRun], ours: Mapping[str, FileRun]) -> Iterator[dict[str, str]]:
    """The cases that did not pass both ways."""
    here = {name: case for run in native.values() for name, case in run.cases.items()}
    there = {name: case for run in ours.values() for name, case in run.cases.items()}
    for name in sorted(here.keys() | there.keys()):
        a, b = here.get(name), there.get(name)
        if not (a and b and a.outcome == b.outcome == "passed" and a.printed == b.printed):
            yield {
                "case": name,
                "native": f"{a.outcome}: {a.reason or a.printed}" if a else "not run",
                "here": f"{b.outcome}: {b.reason or b.printed}" if b else "not run",
            }


def write_cases(
    folder: Path, name: str, native: Mapping[str, FileRun], ours: Mapping[str, FileRun]
) -> None:
    """Those cases into a file."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(each) + "\n" for each in unlike(native, ours))
    (folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.jsonl").write_text("".join(lines))


def line_of_an_end(line: str) -> bool:
    """Whether it is the figures of a session that ended as it should, which name many words."""
    return "the worker ends: the client " in line


def logged(folder: Path) -> Counter[str]:
    """Lines of the logs below a run's folder that tell of something that went wrong."""
    counted: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.log")):
        for line in path.read_text(errors="replace").splitlines():
            if SPOKEN.search(line) and not line_of_an_end(line):
                counted[VARIABLE.sub("#", line)[:600]] += 1
    return counted


def write_said(folder: Path, name: str, lines: Counter[str]) -> None:
    """Those lines with their numbers into a file."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{count:6} {line}\n" for line, count in lines.most_common(MOST_LINES))
    (folder / f"{name}.said.txt").write_text(text)
