# SPDX-License-Identifier: Apache-2.0
"""Runs an entry's parts in processes, natively and through Sluice, and says how cases ended."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from .entry import HERE, Entry, Place, Programs, Suite
from .results import FileCounts

ROOT = HERE.parents[2]
#: How often a file is run again without the test in which its process died.
MOST_DEATHS = 20
#: A test that runs for so long (seconds) when time is up has failed; a shorter one is not counted.
STUCK_SECONDS = 60
#: Variables with these beginnings are the programs' own, not of whoever runs this; but a toolkit.
OWN = ("SLUICE_", "PYTHON", "CUDA_")
TOOLKIT = ("CUDA_HOME", "CUDA_PATH")


@dataclass(frozen=True)
class Case:
    """How a test or a program ended."""

    outcome: str  #: passed, failed or skipped
    reason: str = ""
    printed: str = ""  #: of a program


@dataclass(frozen=True)
class FileRun:
    """A file of a suite, or a program, that was begun."""

    cases: dict[str, Case]
    whole: bool = True  #: it ran to its end; else the time was up


@dataclass
class Way:
    """How programs come to the GPU: natively, or through Sluice over one channel."""

    name: str  #: native, shm, tcp, relay
    environment: dict[str, str]
    ours: bool
    seconds: float = 0.0  #: that its processes took
    budget: float = 0.0  #: seconds after which a part is stopped; 0: never

    def command(self, entry: Entry, words: Sequence[str]) -> list[str]:
        """The words as this way runs them."""
        if not self.ours:
            return list(words)
        run = [sys.executable, "-m", "sluice.guest_runtime", "run"]
        return [*run, *(["--static-runtime", "divert"] if entry.divert else []), *words]

    def variables(self, entry: Entry, more: dict[str, str]) -> dict[str, str]:
        """The environment of a process."""
        kept = {k: v for k, v in os.environ.items() if k in TOOLKIT or not k.startswith(OWN)}
        if self.ours:
            kept["PYTHONPATH"] = str(ROOT / "python")
        kept |= {**entry.environment, **self.environment}
        kept["PYTHONPATH"] = os.pathsep.join(
            filter(None, [more.pop("PYTHONPATH", ""), kept.get("PYTHONPATH", "")])
        )
        return {**kept, **more}


def last_words(errors: str) -> str:
    """The line of a process's errors that says most."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = [line for line in lines if re.search(r"[Ee]rror|^sluice:", line)]
    return " | ".join((said or lines)[-2:])[-400:]


def process(
    words: Sequence[str], environment: dict[str, str], folder: Path, seconds: float
) -> tuple[int, str, str]:
    """One process with all that it starts: status (124: it took too long), output, errors."""
    with subprocess.Popen(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as child:
        try:
            output, errors = child.communicate(timeout=seconds)
            return child.returncode, output, errors
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, errors = child.communicate()
            return 124, output, f"{errors}\ntook more than {seconds:.0f} s"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)


def ended(status: int, errors: str) -> str:
    """How a process ended that should not have."""
    how = f"died of signal {-status}" if status < 0 else f"ended with status {status}"
    return f"{how}: {last_words(errors)}"


def read_outcomes(path: Path) -> tuple[dict[str, Case], str, float]:
    """What the plugin wrote; and the test that was running when it ended, and since when."""
    cases: dict[str, Case] = {}
    running, since = "", 0.0
    for line in path.read_text().splitlines() if path.exists() else ():
        said = json.loads(line)
        if said["outcome"] == "begun":
            running, since = said["case"], said["at"]
            continue
        running = ""
        cases[said["case"]] = Case(said["outcome"], said.get("reason", ""))
    return cases, running, since


def words_of(
    suite: Suite, place: Place, file: Path, only: str, dead: Sequence[str]
) -> tuple[list[str], list[str]]:
    """pytest's command for a file without some tests, and where it imports plugins from."""
    path = [str(HERE), *(str(place.sources / each) for each in suite.imports)]
    words = [str(place.python), "-m", "pytest", "-q", "-p", "pytest_outcomes"]
    words += ["-p", "no:cacheprovider", "--tb=line", "-W", "ignore", *suite.options]
    words += [f"--deselect={one}" for one in dead]
    if suite.conftest:
        words += ["-p", "conftest"]
        path.append(str((place.sources / suite.conftest).parent))
    words += [f"--rootdir={base_of(file)}", "--import-mode=importlib", str(file)]
    return [*words, *(["-k", only] if only else [])], path


def base_of(file: Path) -> Path:
    """The folder from which the tests of a file are named."""
    base = file.parent
    while (base / "__init__.py").exists() or (base.parent / "conftest.py").exists():
        base = base.parent
    return base


def run_file(
    entry: Entry,
    suite: Suite,
    place: Place,
    way: Way,
    file: Path,
    only: str,
    until: float,
    wanted: Collection[str] | None = None,
) -> FileRun:
    """One file of tests, again without those during which its process died.

    At `until` (CLOCK_MONOTONIC) it is stopped, and what has ended by then counts. `wanted`: no
    other tests of it.
    """
    cases: dict[str, Case] = {}
    dead: list[str] = []
    whole = True
    while len(dead) <= MOST_DEATHS:
        seconds = min(float(entry.seconds), until - time.monotonic())
        if seconds <= 0:
            whole = False
            break
        with tempfile.TemporaryDirectory(prefix="outcomes-") as temporary:
            outcomes = Path(temporary) / "outcomes.jsonl"
            words, path = words_of(suite, place, file, only, dead)
            more = suite.environment(place) | {
                "SLUICE_OUTCOMES": str(outcomes),
                "PYTHONPATH": os.pathsep.join(path),
            }
            if wanted is not None:
                listed = Path(temporary) / "wanted.json"
                listed.write_text(json.dumps(sorted(wanted)))
                more["SLUICE_WANTED"] = str(listed)
            status, output, errors = process(
                way.command(entry, words),
                way.variables(entry, more),
                Path(temporary),  # the folder is first in what Python imports from
                seconds,
            )
            ended_at = time.monotonic()
            found, running, since = read_outcomes(outcomes)
        cases |= found
        whole = status != 124 or ended_at < until
        if running and (whole or ended_at - since > STUCK_SECONDS):
            cases[running] = Case("failed", ended(status, errors))
            dead.append(running)
            if whole:
                continue
        if whole and status not in (0, 1, 5) and not found:
            cases[name_of(file)] = Case("failed", ended(status, errors + output))
        break
    counted = {name: case for name, case in cases.items() if not left_out(suite, name)}
    ends = Counter(case.outcome for case in counted.values())
    said = ", ".join(f"{n} {outcome}" for outcome, n in sorted(ends.items()))
    stopped = "" if whole else ", stopped"
    print(f"  {way.name}: {file.name}: {said}{stopped}", file=sys.stderr, flush=True)
    return FileRun(counted, whole)


def name_of(file: Path) -> str:
    """What the names of a file's tests begin with."""
    return str(file.relative_to(base_of(file)))


def left_out(suite: Suite, case: str) -> str:
    """The reason for which a test is not counted; "" where it is."""
    return next((why for part, why in suite.left_out.items() if part in case), "")


def run_program(entry: Entry, place: Place, way: Way, words: Sequence[str], until: float) -> Case:
    """One program, which has a minute at least."""
    seconds = min(float(entry.seconds), max(STUCK_SECONDS, until - time.monotonic()))
    with tempfile.TemporaryDirectory(prefix="application-") as folder:
        status, output, errors = process(
            way.command(entry, words), way.variables(entry, {}), Path(folder), seconds
        )
    if status:
        return Case("failed", ended(status, errors))
    lines = [line for line in output.splitlines() if not line.startswith(("# ", "sluice:"))]
    return Case("passed", printed="\n".join(lines))


def ordered(files: Iterable[Path], earlier: Mapping[str, FileCounts]) -> list[Path]:
    """First what never ran, then what was stopped, what differed, and the rest.

    Among those it is the same order every time, in which neighbours are of no one kind.
    """

    def key(file: Path) -> tuple[int, bytes]:
        ran = earlier.get(name_of(file))
        rank = 0 if ran is None else 1 if not ran.whole else 2 if ran.different else 3
        return rank, hashlib.sha256(file.name.encode()).digest()

    return sorted(files, key=key)


def worth_it(native: Mapping[str, FileRun]) -> set[str]:
    """The files with something to compare: they were begun natively, and something passed."""
    passed = (n for n, r in native.items() if any(c.outcome == "passed" for c in r.cases.values()))
    return set(passed)


def run_part(
    entry: Entry,
    part: Suite | Programs,
    place: Place,
    way: Way,
    jobs: int,
    only: str,
    native: Mapping[str, FileRun] | None = None,
    earlier: Mapping[str, FileCounts] = MappingProxyType({}),
) -> dict[str, FileRun]:
    """What ran of a part, file by file, and into `way` how long it took.

    Once the way's budget is spent nothing more is begun, and suites are stopped. `native`: only
    what there is to compare with; `earlier`: what is known of files, for the order.
    """
    among = None if native is None else worth_it(native)
    begun = time.monotonic()
    until = begun + way.budget if way.budget else math.inf

    def one_file(file: Path) -> FileRun | None:
        if time.monotonic() >= until:
            return None
        begun_there = native.get(name_of(file)) if native else None
        wanted = begun_there.cases if begun_there and not begun_there.whole else None
        return run_file(entry, part, place, way, file, only, until, wanted)  # type: ignore[arg-type]

    def one_program(name: str) -> FileRun | None:
        if time.monotonic() >= until:
            return None
        return FileRun({name: run_program(entry, place, way, commands[name], until)})

    with ThreadPoolExecutor(jobs) as pool:
        if isinstance(part, Suite):
            files = part.files(place)
            files = ordered(files, earlier) if way.budget else files
            files = [file for file in files if among is None or name_of(file) in among]
            found = dict(zip(map(name_of, files), pool.map(one_file, files), strict=True))
        else:
            commands = {n: w for n, w in part.commands(place).items() if only in n}
            commands = {n: w for n, w in commands.items() if among is None or n in among}
            found = dict(zip(commands, pool.map(one_program, commands), strict=True))
    way.seconds += time.monotonic() - begun
    return {name: run for name, run in found.items() if run is not None}


def size_of(part: Suite | Programs, place: Place) -> int:
    """How many files, or programs, the part has."""
    return len(part.files(place) if isinstance(part, Suite) else part.commands(place))
