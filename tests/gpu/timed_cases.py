# SPDX-License-Identifier: Apache-2.0
"""The cases of a probe: each a process of its own with a limit, what is wanted most first.

Used by checkpoint_probe.py and moving_probe.py. Rows are printed when their case ends; a case that
fails, hangs or crashes is a row that says so, and what is still to do when the time is over is one,
too. A probe decides nothing: its exit status is 0 where it came to its end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from checkpoint_bench import Bench, Failed, Row

LEAST_SECONDS = 5.0  # that a case is begun with
#: What it does, and the seconds that it may take.
Cases = Mapping[str, tuple[Callable[[Bench], None], float]]


def main_of(
    program: Path,
    description: str,
    cases: Cases,
    seconds: float,
    *,
    why_not: Callable[[], str],
    keep: Callable[[str, list[Row]], None] = lambda name, rows: None,
) -> int:
    """All cases of a program, or those named on its command line; the exit status.

    `why_not`: what this machine lacks for them, "" where it lacks nothing. `keep` is given the rows
    of each case.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("cases", nargs="*", help=", ".join(cases))
    parser.add_argument("--seconds", type=float, default=seconds, help="for all of them")
    parser.add_argument("--be", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        _be(options.be, cases)
        return 0
    if unknown := [name for name in options.cases if name not in cases]:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(cases)}")
    if lacks := why_not():
        print(f"skipped: {lacks}")
        return 0
    end = time.monotonic() + options.seconds
    for name in options.cases or cases:
        left = end - time.monotonic()
        if left < LEAST_SECONDS:
            show({"name": name, "result": "not tried: the time is over (--seconds)"})
            continue
        began = time.monotonic()
        rows = _run(name, min(cases[name][1], left), program)
        for row in rows:
            show(row)
        print(f"-- {name}: {time.monotonic() - began:.1f} s", flush=True)
        keep(name, rows)
    return 0


def _be(name: str, cases: Cases) -> None:
    """One case, in this process."""
    with tempfile.TemporaryDirectory(prefix="sluice-probe-") as folder:
        Path(folder).chmod(0o755)
        with Bench(name, Path(folder)) as bench:
            try:
                cases[name][0](bench)
            except (Failed, OSError, SystemExit) as error:
                bench.row(f"{name} went no further", str(error)[-400:])


def _run(name: str, seconds: float, program: Path) -> list[Row]:
    """One case of a program, in a process of its own; what it found out."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, str(program), "--be", name],
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        ended = ""
        try:
            if status := process.wait(seconds):
                ended = f"status {status}"
        except subprocess.TimeoutExpired:
            ended = f"hangs: killed after {seconds:.0f} s"
        _end(process)
        out.seek(0)
        errors.seek(0)
        rows = [json.loads(line) for line in out.read().splitlines() if line.startswith(b"{")]
        if ended:
            said = errors.read()[-600:].decode(errors="replace").strip()
            rows.append({"name": f"{name}: the case itself", "result": f"{ended}; {said}"})
    return rows


def _end(process: subprocess.Popen[bytes]) -> None:
    """Everything that the case has started; a server ends its workers itself, if it is asked."""
    for number, seconds in ((signal.SIGTERM, 4.0), (signal.SIGKILL, 1.0)):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                return
            process.poll()
            time.sleep(0.1)


def show(row: Row) -> None:
    """One line."""
    rest = [f"{k} {v}" for k, v in row.items() if k not in ("name", "result")]
    print(f"{row['name']:52s} | {row['result']} | {', '.join(rest)}", flush=True)
