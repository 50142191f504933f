# SPDX-License-Identifier: Apache-2.0
"""Measurements as data: one JSON object a line, in docs/measurements/SUBJECT.jsonl.

    python tests/bench/placement.py                    # what measures writes build/measurements/
    python dev/measurements.py keep bench              # what was measured there goes into docs/
    python dev/measurements.py keep bench placement_p99_ms --setting "a busy machine"

Figures in the pages change only on purpose: a run writes into build/, `keep` takes its records into
docs/measurements/, and dev/measurement_tables.py makes the tables of the pages from those. `keep`
replaces a record of the same name, channel, machine and setting, and refuses one that nobody could
repeat: without the commit that was measured, or of a tree that no commit has. Called by what
measures (tests/bench, tests/gpu) through `Run`; needs nothing but Python, as machines with a GPU
have little else.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
KEPT = CHECKOUT / "docs" / "measurements"
MEASURED = CHECKOUT / "build" / "measurements"

#: The units that there are, and which way each is better where the figure does not say.
BETTER = {
    "us": "lower",
    "ms": "lower",
    "s": "lower",
    "MiB": "lower",
    "kB": "lower",
    "%": "lower",
    "1/s": "higher",
    "GiB/s": "higher",
    "GB/s": "higher",
    "img/s": "higher",
    "tokens/s": "higher",
    "steps/s": "higher",
    "TFLOP/s": "higher",
    "1": "",  # a count: each says which way
    "ratio": "",  # of figures that are not known themselves, or of pairs
}
COMMIT = re.compile("[0-9a-f]{7,40}")
UNKNOWN = "unknown"  # the commit of a run in a copy without git, until somebody says it
DIGITS = 4  # significant ones of what is written
TOLERANCE = 0.002  # of a ratio, made of numbers that were rounded to DIGITS or printed with fewer

#: A figure; or the least and the most of several runs, where no more is known of them.
Amount = float | tuple[float, float]
Pair = tuple[float, float]


class MeasurementError(ValueError):
    """A record that is not one; the message says where it is and what is wrong."""


@dataclass(frozen=True)
class Measurement:
    """One record. Every field is in every line; those that may be None say so."""

    name: str
    channel: str | None  #: shm, tcp, relay …; None where there are none to tell apart
    value: Amount
    unit: str
    better: str  #: "lower" or "higher"
    floor: Amount | None  #: what it is compared with, of the same run
    floor_of: str | None  #: what that is: "native", "bare ping-pong" …
    ratio: Amount | None  #: value / floor, or the median of the pairs' ratios (`ratio_spread`)
    spread: Pair | None  #: the least and the most value of the rounds
    ratio_spread: Pair | None  #: the least and the most ratio of the pairs
    limit: Amount | None  #: what is wanted: at most this, or at least where higher is better
    rounds: int | None
    machine: str  #: its kind: "2 cores", "1 NVIDIA H200, 16 cores"
    setting: str | None  #: what else tells this record from others of its name on such a machine
    software: dict[str, str]  #: versions that matter: driver, CUDA, PyTorch
    load: Amount | None  #: of the machine, as uptime says it
    date: str | None  #: of the measurement: a day, or a month where no more is known
    commit: str | None  #: what was measured
    recorded: str | None  #: only where `commit` is not known: the commit whose pages first said it
    command: str

    @property
    def key(self) -> tuple[str, str | None, str, str | None]:
        """What a newer record of replaces it."""
        return self.name, self.channel, self.machine, self.setting

    def problems(self) -> list[str]:
        """What is wrong with it; nothing, if it is good."""
        checks = (
            (bool(re.fullmatch(r"[a-z][a-z0-9_-]*", self.name)), "name has small letters"),
            (self.unit in BETTER, f"unit is one of {', '.join(BETTER)}"),
            (self.better in ("lower", "higher"), "better is lower or higher"),
            (BETTER.get(self.unit, "") in ("", self.better), f"{self.unit}: the other is better"),
            (
                (self.floor is None and self.ratio is None) == (self.floor_of is None),
                "floor_of says what floor and ratio are of",
            ),
            (self.ratio_spread is None or self.ratio is not None, "ratio_spread needs a ratio"),
            (bool(self.machine) and bool(self.command), "machine and command are not empty"),
            ((self.commit is None) != (self.recorded is None), "either commit or recorded"),
            (_is_date(self.date, whole=self.commit is not None), "date is a day (YYYY-MM-DD)"),
        )
        return [said for good, said in checks if not good] + self._ratio_problems()

    def _ratio_problems(self) -> list[str]:
        if isinstance(self.value, tuple) or isinstance(self.ratio, tuple):
            both = isinstance(self.value, tuple) and isinstance(self.ratio, tuple)
            return (
                [] if both or self.ratio is None else ["ratio and value: of several runs, or not"]
            )
        if not isinstance(self.floor, float) or not self.floor:
            return ["ratio needs a single floor"] if self.ratio is not None else []
        if self.ratio is None:
            return ["ratio is missing: there are value and floor"]
        quotient = self.value / self.floor
        if self.ratio_spread is None:
            good = abs(self.ratio - quotient) <= abs(quotient) * TOLERANCE
            return [] if good else [f"ratio is {self.ratio}, value / floor is {quotient:.4g}"]
        least, most = self.ratio_spread
        # The medians' quotient lies between the least and the most quotient of the pairs, too.
        return [
            f"{what} {ratio:.4g} is not within the ratios of the pairs, {least} to {most}"
            for what, ratio in (("ratio", self.ratio), ("value / floor", quotient))
            if not least * (1 - TOLERANCE) - 0.005 <= ratio <= most * (1 + TOLERANCE) + 0.005
        ]


def _is_date(text: str | None, whole: bool) -> bool:
    """Whether it is a day; where only the pages tell of a figure, a month or None does, too."""
    if whole or (text is not None and len(text) != len("2026-11")):
        return bool(text and re.fullmatch(r"\d{4}-\d\d-\d\d", text))
    return text is None or bool(re.fullmatch(r"\d{4}-\d\d", text))


def _number(said: Any, where: str) -> float:
    if isinstance(said, bool) or not isinstance(said, int | float):
        raise MeasurementError(f"{where}: {said!r} is no number")
    return float(said)


def _pair(said: Any, where: str) -> Pair:
    if not isinstance(said, list) or len(said) != 2:
        raise MeasurementError(f"{where}: {said!r} is not [least, most]")
    least, most = (_number(one, where) for one in said)
    if least > most:
        raise MeasurementError(f"{where}: {said!r}: the least is more than the most")
    return least, most


def from_line(line: str, where: str) -> Measurement:
    """The record of a line; MeasurementError names `where` it stands and what is wrong."""
    try:
        said = json.loads(line)
    except json.JSONDecodeError as error:
        raise MeasurementError(f"{where}: no JSON: {error}") from error
    if not isinstance(said, dict):
        raise MeasurementError(f"{where}: no JSON object")
    names = [each.name for each in fields(Measurement)]
    missing, unknown = [n for n in names if n not in said], [n for n in said if n not in names]
    if missing or unknown:
        raise MeasurementError(
            f"{where}: fields missing: {', '.join(missing) or 'none'}; unknown: "
            f"{', '.join(unknown) or 'none'}"
        )
    where = f"{where}: {said['name']}"
    for name in ("name", "unit", "better", "machine", "command"):
        if not isinstance(said[name], str):
            raise MeasurementError(f"{where}: {name} is no text")
    for name in ("channel", "floor_of", "setting", "date", "commit", "recorded"):
        if said[name] is not None and not isinstance(said[name], str):
            raise MeasurementError(f"{where}: {name} is neither text nor null")
    if not isinstance(said["software"], dict):
        raise MeasurementError(f"{where}: software is no object")
    for name in ("value", "floor", "ratio", "limit", "load"):
        if said[name] is not None or name == "value":
            read = _pair if isinstance(said[name], list) else _number
            said[name] = read(said[name], f"{where}: {name}")
    for name in ("spread", "ratio_spread"):
        said[name] = None if said[name] is None else _pair(said[name], f"{where}: {name}")
    found = Measurement(**said)
    if wrong := found.problems():
        raise MeasurementError(f"{where}: {'; '.join(wrong)}")
    return found


def read(path: Path) -> list[Measurement]:
    """All records of a file; MeasurementError for the first that is not good, or a second key."""
    found: dict[Any, Measurement] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        record = from_line(line, f"{path.name}:{number}")
        if record.key in found:
            raise MeasurementError(f"{path.name}:{number}: {record.key} is there already")
        found[record.key] = record
    return list(found.values())


def read_kept(folder: Path = KEPT) -> dict[str, list[Measurement]]:
    """The records of each subject in the documents; none whose commit is not one."""
    kept = {path.stem: read(path) for path in sorted(folder.glob("*.jsonl"))}
    for subject, records in kept.items():
        for record in records:
            commit = record.commit or record.recorded or ""
            if not COMMIT.fullmatch(commit):
                raise MeasurementError(f"{subject}.jsonl: {record.name}: {commit!r} is no commit")
    return kept


def write(path: Path, records: Iterable[Measurement]) -> None:
    """Replaces what has the same key, in its place, and adds what is new."""
    kept = {record.key: record for record in (read(path) if path.exists() else [])}
    for record in records:
        if wrong := record.problems():
            raise MeasurementError(f"{record.name}: {'; '.join(wrong)}")
        kept[record.key] = record
    lines = (json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in kept.values())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def rounded(value: float) -> float:
    """With as many digits as are written."""
    return float(f"{value:.{DIGITS}g}")


def _shown_by_nvidia_smi() -> list[tuple[str, str]]:
    """Model and driver of each GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False)
    except OSError:
        return []
    rows = (line.partition(",") for line in done.stdout.splitlines() if "," in line)
    return (
        [(name.strip(), driver.strip()) for name, _, driver in rows] if not done.returncode else []
    )


def _cuda_version() -> str | None:
    try:
        version = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
            return None
    except OSError:
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _git(*words: str) -> str | None:
    command = ["git", "-C", str(CHECKOUT), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if not done.returncode else None


def this_commit() -> str | None:
    """What is measured: SLUICE_COMMIT or the checkout's; `-dirty` where files differ from it."""
    return os.environ.get("SLUICE_COMMIT") or _git(
        "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"
    )


@dataclass
class Run:
    """What is the same for all figures of one run: where, when, of what, and how it was made."""

    command: str
    setting: str | None = None
    rounds: int | None = None
    gpu: bool = False  #: whether the machine's GPUs have part in it
    software: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.load = rounded(os.getloadavg()[0])
        gpus = _shown_by_nvidia_smi() if self.gpu else []
        cores = f"{len(os.sched_getaffinity(0))} cores"
        self.machine = f"{len(gpus)} {gpus[0][0]}, {cores}" if gpus else cores
        versions = {
            "driver": gpus[0][1] if gpus else None,
            "CUDA": _cuda_version() if gpus else None,
        }
        self.software = {k: v for k, v in versions.items() if v} | self.software
        self.commit = this_commit()

    def record(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        floor: float | None = None,
        floor_of: str | None = None,
        pairs: Sequence[float] = (),
        values: Sequence[float] = (),
        limit: float | None = None,
        channel: str | None = None,
        better: str = "",
        rounds: int | None = None,
    ) -> Measurement:
        """A record; `pairs` are the ratios of the rounds, whose median is then the ratio."""
        value, floor = rounded(value), None if floor is None else rounded(floor)
        ratio = rounded(value / floor) if floor else None
        if pairs:
            middle = sorted(pairs)
            ratio = rounded((middle[(len(middle) - 1) // 2] + middle[len(middle) // 2]) / 2)
        now = os.getloadavg()[0]
        return Measurement(
            name=name,
            channel=channel,
            value=value,
            unit=unit,
            better=better or BETTER[unit],
            floor=floor,
            floor_of=None if floor is None else floor_of,
            ratio=ratio,
            spread=(rounded(min(values)), rounded(max(values))) if values else None,
            ratio_spread=(rounded(min(pairs)), rounded(max(pairs))) if pairs else None,
            limit=None if limit is None else rounded(limit),
            rounds=rounds or self.rounds,
            machine=self.machine,
            setting=self.setting,
            software=self.software,
            load=(min(self.load, rounded(now)), max(self.load, rounded(now))),
            date=time.strftime("%Y-%m-%d", time.gmtime()),
            # a run may not know its commit: it can be told when the record is kept
            commit=self.commit or UNKNOWN,
            recorded=None,
            command=self.command,
        )


def write_measured(subject: str, records: Iterable[Measurement]) -> Path:
    """What a run measured, into build/measurements/SUBJECT.jsonl; `keep` takes it from there."""
    path = MEASURED / f"{subject}.jsonl"
    write(path, records)
    return path


def keep(
    subject: str,
    names: Sequence[str] = (),
    setting: str | None = None,
    commit: str | None = None,
    measured: Path = MEASURED,
    kept: Path = KEPT,
) -> list[Measurement]:
    """Takes records of build/measurements/ into docs/measurements/; returns them."""
    path = measured / f"{subject}.jsonl"
    if not path.exists():
        there = ", ".join(sorted(p.stem for p in measured.glob("*.jsonl"))) or "nothing"
        raise MeasurementError(f"{path} is not there; measured is: {there}")
    found = read(path)
    chosen = [record for record in found if not names or record.name in names]
    if unknown := [name for name in names if name not in {record.name for record in found}]:
        raise MeasurementError(f"{path} has no {', '.join(unknown)}")
    for place, record in enumerate(chosen):
        of = commit if commit and record.commit == UNKNOWN else record.commit
        if of is None or not COMMIT.fullmatch(of):
            raise MeasurementError(
                f"{record.name} was measured on commit {of!r}, and nobody could repeat that: "
                + ("say --commit" if of == UNKNOWN else "commit, and measure again")
            )
        chosen[place] = replace(record, commit=of, setting=setting or record.setting)
    write(kept / f"{subject}.jsonl", chosen)
    return chosen


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Takes what was measured into the documents.")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("keep", help="from build/measurements/ into docs/measurements/")
    command.add_argument("subject", help="bench, calls, workloads …: a file of build/measurements/")
    command.add_argument("names", nargs="*", help="only these figures")
    command.add_argument("--setting", help="what tells this from others on such a machine")
    command.add_argument("--commit", help="what was measured, where the run did not know it")
    options = parser.parse_args()
    try:
        chosen = keep(options.subject, options.names, options.setting, options.commit)
    except MeasurementError as error:
        print(f"not kept: {error}", file=sys.stderr)
        return 1
    print(f"{len(chosen)} records in {KEPT / options.subject}.jsonl; `make docs` makes the tables")
    return 0


if __name__ == "__main__":
    sys.exit(main())
