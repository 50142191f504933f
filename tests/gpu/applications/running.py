# SPDX-License-Identifier: Apache-2.0
"""Runs an entry's parts in processes, natively and through Sluice, and says how cases ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .entry import HERE, Entry, Place, Programs, Suite

ROOT = HERE.parents[2]
#: Tests that stay in a file when the process died in one of them.
MOST_DEATHS = 20


@dataclass(frozen=True)
class Case:
    """How a test or a program ended."""

    outcome: str  #: passed, failed or skipped
    reason: str = ""
    printed: str = ""  #: of a program


@dataclass
class Way:
    """How programs come to the GPU: natively, or through Sluice over one channel."""

    name: str  #: native, shm, tcp, relay
    environment: dict[str, str]
    ours: bool
    seconds: float = 0.0  #: that its processes took

    def command(self, entry: Entry, words: Sequence[str]) -> list[str]:
        """The words as this way runs them."""
        if not self.ours:
            return list(words)
        run = [sys.executable, "-m", "sluice.guest_runtime", "run"]
        return [*run, *(["--static-runtime", "divert"] if entry.divert else []), *words]

    def variables(self, entry: Entry, more: dict[str, str]) -> dict[str, str]:
        """The environment of a process."""
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "PYTHON", "CUDA_"))
        }
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
    words: Sequence[str], environment: dict[str, str], folder: Path, seconds: int
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
            return 124, output, f"{errors}\ntook more than {seconds} s"
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)


def ended(status: int, errors: str) -> str:
    """How a process ended that should not have."""
    how = f"died of signal {-status}" if status < 0 else f"ended with status {status}"
    return f"{how}: {last_words(errors)}"


def read_outcomes(path: Path) -> tuple[dict[str, Case], str]:
    """What the plugin wrote; and the test that was running when it ended."""
    cases: dict[str, Case] = {}
    running = ""
    for line in path.read_text().splitlines() if path.exists() else ():
        said = json.loads(line)
        if said["outcome"] == "begun":
            running = said["case"]
            continue
        running = ""
        cases[said["case"]] = Case(said["outcome"], said.get("reason", ""))
    return cases, running


def run_file(
    entry: Entry, suite: Suite, place: Place, way: Way, file: Path, only: str
) -> dict[str, Case]:
    """One file of tests, again without those during which its process died."""
    cases: dict[str, Case] = {}
    dead: list[str] = []
    base = file.parent
    while (base / "__init__.py").exists() or (base.parent / "conftest.py").exists():
        base = base.parent
    while len(dead) <= MOST_DEATHS:
        with tempfile.TemporaryDirectory(prefix="outcomes-") as temporary:
            outcomes = Path(temporary) / "outcomes.jsonl"
            path = [str(HERE)]
            words = [str(place.python), "-m", "pytest", "-q", "-p", "pytest_outcomes"]
            words += ["-p", "no:cacheprovider", "--tb=line", "-W", "ignore", *suite.options]
            words += [f"--deselect={one}" for one in dead]
            if suite.conftest:
                words += ["-p", "conftest"]
                path.append(str((place.sources / suite.conftest).parent))
            words += [
                f"--rootdir={base}",
                "--import-mode=importlib",
                str(file),
                *(["-k", only] if only else []),
            ]
            status, output, errors = process(
                way.command(entry, words),
                way.variables(
                    entry,
                    {"SLUICE_OUTCOMES": str(outcomes), "PYTHONPATH": os.pathsep.join(path)},
                ),
                Path(temporary),  # the folder is first in what Python imports from
                entry.seconds,
            )
            found, running = read_outcomes(outcomes)
        cases |= found
        if running:
            cases[running] = Case("failed", ended(status, errors))
            dead.append(running)
            continue
        if status not in (0, 1, 5) and not found:
            cases[str(file.relative_to(base))] = Case("failed", ended(status, errors + output))
        break
    counted = {name: case for name, case in cases.items() if not left_out(suite, name)}
    ends = Counter(case.outcome for case in counted.values())
    said = ", ".join(f"{n} {outcome}" for outcome, n in sorted(ends.items()))
    print(f"  {way.name}: {file.name}: {said}", file=sys.stderr, flush=True)
    return counted


def left_out(suite: Suite, case: str) -> str:
    """The reason for which a test is not counted; "" where it is."""
    return next((why for part, why in suite.left_out.items() if part in case), "")


def run_program(entry: Entry, place: Place, way: Way, words: Sequence[str]) -> Case:
    """One program."""
    with tempfile.TemporaryDirectory(prefix="application-") as folder:
        status, output, errors = process(
            way.command(entry, words), way.variables(entry, {}), Path(folder), entry.seconds
        )
    if status:
        return Case("failed", ended(status, errors))
    lines = [line for line in output.splitlines() if not line.startswith(("# ", "sluice:"))]
    return Case("passed", printed="\n".join(lines))


def run_part(
    entry: Entry, part: Suite | Programs, place: Place, way: Way, jobs: int, only: str
) -> dict[str, Case]:
    """All cases of a part, and into `way` how long they took."""
    begun = time.monotonic()
    cases: dict[str, Case] = {}
    with ThreadPoolExecutor(jobs) as pool:
        if isinstance(part, Suite):
            files = part.files(place)
            runs: Iterator[dict[str, Case]] = pool.map(
                lambda file: run_file(entry, part, place, way, file, only), files
            )
            for found in runs:
                cases |= found
        else:
            commands = {n: w for n, w in part.commands(place).items() if only in n}
            ran = pool.map(lambda words: run_program(entry, place, way, words), commands.values())
            cases = dict(zip(commands, ran, strict=True))
    way.seconds += time.monotonic() - begun
    return cases
