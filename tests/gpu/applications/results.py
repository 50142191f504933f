# SPDX-License-Identifier: Apache-2.0
"""Results as data: a JSON object a line, one for each part of an entry, channel and machine.

`run` writes build/applications/results.jsonl, `keep` takes it into docs/applications.jsonl, where a
record replaces the one of the same entry, part, channel and machine. As with figures
(dev/measurements.py) one that nobody could repeat is refused: without the commit that ran, or of a
tree that no commit has. dev/application_table.py reads what is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
KEPT = ROOT / "docs" / "applications.jsonl"
RAN = ROOT / "build" / "applications" / "results.jsonl"
COMMIT = re.compile("[0-9a-f]{7,40}")


class ResultError(ValueError):
    """A record that is not one; the message says where it is and what is wrong."""


@dataclass(frozen=True)
class Result:
    """One part of an entry over one channel, on one machine."""

    entry: str
    part: str
    channel: str  #: shm, tcp, relay
    native_of: str  #: what "natively" was: "NVIDIA's driver" or "the software GPU's driver"
    same: int  #: cases that pass natively and do the same here
    different: dict[str, str]  #: cases that pass natively and do not, and what they did (the first)
    more_different: int  #: how many more there are
    skipped: int  #: cases that natively are skipped: not compared
    failed: int  #: cases that natively fail: not compared
    files: int  #: files of the suite, or programs, that ran to their end both ways
    of_files: int  #: how many there are
    native_seconds: float  #: of all processes, one after another or `jobs` at a time
    seconds: float
    machine: str  #: "1 NVIDIA H200, 16 cores"
    software: dict[str, str]  #: driver, CUDA, and the entry's packages
    date: str  #: YYYY-MM-DD
    commit: str
    command: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a newer record of replaces it."""
        return self.entry, self.part, self.channel, self.machine

    @property
    def compared(self) -> int:
        """Cases that pass natively."""
        return self.same + len(self.different) + self.more_different

    def problems(self) -> list[str]:
        """What is wrong with it; nothing, if it is good."""
        counts = (self.same, self.more_different, self.skipped, self.failed, self.files)
        checks = (
            (bool(self.entry and self.part and self.machine and self.command), "an empty text"),
            (self.channel in ("shm", "tcp", "relay"), f"channel {self.channel!r} is none"),
            (min(counts) >= 0, "a count below 0"),
            (bool(self.different) or not self.more_different, "more different than none"),
            (self.files <= self.of_files, "more files than there are"),
            (bool(re.fullmatch(r"\d{4}-\d\d-\d\d", self.date)), "date is a day (YYYY-MM-DD)"),
        )
        return [said for good, said in checks if not good]


def from_line(line: str, where: str) -> Result:
    """The record of a line; ResultError names `where` it stands."""
    try:
        said: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ResultError(f"{where}: no JSON: {error}") from error
    names = {each.name: each.type for each in fields(Result)}
    if not isinstance(said, dict) or set(said) != set(names):
        raise ResultError(f"{where}: its fields are not {', '.join(names)}")
    for name, kind in names.items():
        wanted: tuple[type, ...] = {
            "str": (str,),
            "int": (int,),
            "float": (int, float),
        }.get(str(kind), (dict,))
        if not isinstance(said[name], wanted) or isinstance(said[name], bool):
            raise ResultError(f"{where}: {name} is not of type {kind}")
    result = Result(**said)
    if wrong := result.problems():
        raise ResultError(f"{where}: {'; '.join(wrong)}")
    return result


def read(path: Path) -> list[Result]:
    """All records of a file; none where there is no file. No two have one key."""
    found: dict[Any, Result] = {}
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        result = from_line(line, f"{path.name}:{number}")
        if result.key in found:
            raise ResultError(f"{path.name}:{number}: {result.key} is there already")
        found[result.key] = result
    return list(found.values())


def write(path: Path, results: Iterable[Result]) -> None:
    """Replaces what has the same key, and adds what is new; ordered, so that changes are few."""
    kept = {result.key: result for result in (*read(path), *results)}
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(asdict(kept[key]), ensure_ascii=False) + "\n" for key in sorted(kept))
    path.write_text("".join(lines))


def keep(ran: Path = RAN, kept: Path = KEPT, commit: str | None = None) -> list[Result]:
    """What was run goes into the documents; ResultError for what nobody could repeat.

    `commit`: what ran, where it was a copy without Git.
    """
    results = []
    for result in read(ran):
        said = asdict(result)
        if commit and not COMMIT.fullmatch(result.commit):
            if result.commit.endswith("-dirty"):
                raise ResultError(f"{result.entry}: it ran with changes that no commit has")
            said["commit"] = commit
        if not COMMIT.fullmatch(said["commit"]):
            raise ResultError(
                f"{result.entry}: {said['commit']!r} is no commit: give --commit for a copy "
                "without Git; what ran with changes that no commit has is not kept"
            )
        results.append(Result(**said))
    write(kept, results)
    return results
