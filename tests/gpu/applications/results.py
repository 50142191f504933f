# SPDX-License-Identifier: Apache-2.0
"""Results as data: a JSON object a line, one for each part of an entry, channel and machine.

`run` writes build/applications/results.jsonl, `keep` takes it into docs/applications.jsonl, where a
record replaces the one of the same entry, part, channel and machine; of the same software it is
joined to that one, file by file, as a suite may need several runs to come to its end. As with
figures (dev/measurements.py) one that nobody could repeat is refused: without the commit that ran,
or of a tree that no commit has. dev/application_table.py reads what is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
KEPT = ROOT / "docs" / "applications.jsonl"
RAN = ROOT / "build" / "applications" / "results.jsonl"
COMMIT = re.compile("[0-9a-f]{7,40}")


class ResultError(ValueError):
    """A record that is not one; the message says where it is and what is wrong."""


#: Cases that differ and are kept by name; the rest are counted.
MOST_NAMED = 40


@dataclass(frozen=True)
class FileCounts:
    """The cases of a suite's file, or a program."""

    same: int
    different: int
    skipped: int
    failed: int
    whole: bool  #: it came to its end both ways
    commit: str  #: what ran

    @property
    def known(self) -> int:
        """Of how many cases something is known."""
        return self.same + self.different + self.skipped + self.failed


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
    by_file: dict[str, FileCounts] = field(default_factory=dict)  #: of what ran; a case is FILE::…

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What a newer record of replaces it."""
        return self.entry, self.part, self.channel, self.machine

    @property
    def compared(self) -> int:
        """Cases that pass natively."""
        return self.same + len(self.different) + self.more_different

    def adds_up(self) -> bool:
        """Whether the counts are those of the files."""
        all_of = self.by_file.values()
        return (self.same, self.skipped, self.failed, self.files) == (
            sum(each.same for each in all_of),
            sum(each.skipped for each in all_of),
            sum(each.failed for each in all_of),
            sum(each.whole for each in all_of),
        )

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
            (not self.by_file or self.adds_up(), "its files do not add up to its counts"),
        )
        return [said for good, said in checks if not good]


def check_fields(said: Any, kind: type[Result | FileCounts], where: str) -> None:
    """ResultError unless it has the fields of that class, each of its type."""
    named = {each.name: each for each in fields(kind)}
    lacking = [
        each.name
        for each in named.values()
        if each.default is MISSING and each.default_factory is MISSING
    ]
    if not isinstance(said, dict) or not set(lacking) <= set(said) <= set(named):
        raise ResultError(f"{where}: its fields are not {', '.join(named)}")
    types: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "float": (int, float),
        "bool": (bool,),
    }
    for name, value in said.items():
        type_name = str(named[name].type)
        if not isinstance(value, types.get(type_name, (dict,))) or (
            isinstance(value, bool) and type_name != "bool"
        ):
            raise ResultError(f"{where}: {name} is not of type {type_name}")


def from_line(line: str, where: str) -> Result:
    """The record of a line; ResultError names `where` it stands."""
    try:
        said: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ResultError(f"{where}: no JSON: {error}") from error
    check_fields(said, Result, where)
    files = said.pop("by_file", {})
    for name, counts in files.items():
        check_fields(counts, FileCounts, f"{where}: {name}")
    result = Result(**said, by_file={name: FileCounts(**each) for name, each in files.items()})
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


def file_of(case: str) -> str:
    """The file that a case is of."""
    return case.partition("::")[0]


def joined(old: Result, new: Result) -> Result:
    """A result with what only an earlier one knows of files; where software differs, the new one.

    A file's newest run counts, unless it was stopped and an earlier one knows more of it.
    """
    if not old.by_file or not new.by_file or old.of_files != new.of_files:
        return new
    if (old.software, old.native_of) != (new.software, new.native_of):
        return new
    taken = {
        name: each
        for name, each in old.by_file.items()
        if name not in new.by_file
        or (
            not new.by_file[name].whole
            and (each.whole, each.known) > (False, new.by_file[name].known)
        )
    }
    by_file = dict(sorted((new.by_file | taken).items()))
    named = {case: why for case, why in new.different.items() if file_of(case) not in taken}
    named |= {case: why for case, why in old.different.items() if file_of(case) in taken}
    named = dict(sorted(named.items())[:MOST_NAMED])
    return replace(
        new,
        same=sum(each.same for each in by_file.values()),
        different=named,
        more_different=sum(each.different for each in by_file.values()) - len(named),
        skipped=sum(each.skipped for each in by_file.values()),
        failed=sum(each.failed for each in by_file.values()),
        files=sum(each.whole for each in by_file.values()),
        by_file=by_file,
    )


def write(path: Path, results: Iterable[Result]) -> None:
    """Joins what has the same key, and adds what is new; ordered, so that changes are few."""
    kept = {result.key: result for result in read(path)}
    for result in results:
        old = kept.get(result.key)
        kept[result.key] = joined(old, result) if old else result
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(asdict(kept[key]), ensure_ascii=False) + "\n" for key in sorted(kept))
    path.write_text("".join(lines))


def known(
    key: tuple[str, str, str, str], paths: Iterable[Path] = (KEPT, RAN)
) -> dict[str, FileCounts]:
    """What results say of the files of a part; of later paths first."""
    found: dict[str, FileCounts] = {}
    for path in paths:
        for result in read(path):
            found |= result.by_file if result.key == key else {}
    return found


def keep(ran: Path = RAN, kept: Path = KEPT, commit: str | None = None) -> list[Result]:
    """What was run goes into the documents; ResultError for what nobody could repeat.

    `commit`: what ran, where it was a copy without Git.
    """
    results = []
    for result in read(ran):

        def named(found: str, entry: str = result.entry) -> str:
            """The commit that ran."""
            if commit and not COMMIT.fullmatch(found):
                if found.endswith("-dirty"):
                    raise ResultError(f"{entry}: it ran with changes that no commit has")
                return commit
            if not COMMIT.fullmatch(found):
                raise ResultError(
                    f"{entry}: {found!r} is no commit: give --commit for a copy "
                    "without Git; what ran with changes that no commit has is not kept"
                )
            return found

        files = {f: replace(each, commit=named(each.commit)) for f, each in result.by_file.items()}
        results.append(replace(result, commit=named(result.commit), by_file=files))
    write(kept, results)
    return results
