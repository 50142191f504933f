# SPDX-License-Identifier: Apache-2.0
"""What the driver's checkpoint of a CUDA process does on a card, and how fast memory moves.

    python3 tests/gpu/checkpoint_probe.py [CASE ...] [--seconds 230]     # as root

Each case is a process of its own with a time limit, in the order of CASES; what is still to do when
the time is over is named so. Rows are printed when their case ends: what came out, seconds of the
steps, MiB of the card before and behind. Figures go to build/measurements/checkpoint.jsonl. It
decides nothing: exit status 0 where it came to its end. Needs an NVIDIA driver from 570 on; the
sessions' cases what tests/gpu/run.py needs, and one PyTorch. What came out of it is in
docs/decisions/ ("suspension").
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "dev")]

import checkpoint_cases as cases  # noqa: E402
import checkpoint_rates  # noqa: E402
import checkpoint_sessions  # noqa: E402
from checkpoint_bench import Bench, Failed  # noqa: E402
from checkpoint_calls import Card  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402

#: In the order of what is wanted most; with the seconds that each may take.
CASES = {
    "context": (cases.context, 25),
    "moved_out": (cases.moved_out, 40),
    "sessions": (checkpoint_sessions.sessions, 45),
    "exported": (cases.exported, 30),
    "no_room": (cases.no_room, 30),
    "rates": (checkpoint_rates.rates, 60),
    "graphs_and_pools": (cases.graphs_and_pools, 25),
    "reserved_room": (cases.reserved_room, 60),
    "events": (cases.events, 40),
    "killed": (cases.killed, 40),
    "caller_gone": (cases.caller_gone, 40),
    "sizes": (cases.sizes, 45),
    "by_another": (checkpoint_rates.by_another, 30),
    "training": (checkpoint_sessions.training, 60),
    "nccl": (cases.nccl, 30),
    "mps": (cases.mps, 30),
    "opener": (cases.opener, 25),
    "opened": (checkpoint_sessions.opened, 30),
    "hidden": (cases.hidden, 20),
    "arena": (cases.arena, 20),
    "repeated": (cases.repeated, 40),
    "other_gpu": (cases.other_gpu, 40),
}
#: Figures of rows that are kept: name, unit, and the row's floor where there is one.
FIGURES = {
    "swap_out_gib_s": ("GiB/s", "to_host_gib_s"),
    "swap_in_gib_s": ("GiB/s", "to_device_gib_s"),
    "swap_first_gib_s": ("GiB/s", ""),
    "checkpoint_s": ("s", ""),
    "restore_s": ("s", ""),
    "left_mib": ("MiB", ""),
}

Row = dict[str, Any]


def be(name: str) -> None:
    """One case, in this process."""
    with tempfile.TemporaryDirectory(prefix="sluice-probe-") as folder:
        Path(folder).chmod(0o755)
        with Bench(name, Path(folder)) as bench:
            try:
                CASES[name][0](bench)
            except (Failed, OSError, SystemExit) as error:
                bench.row(f"{name} went no further", str(error)[-400:])


def run(name: str, seconds: float, program: Path = Path(__file__)) -> list[Row]:
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


def records(run_of: Run, case: str, rows: list[Row]) -> list[Measurement]:
    """The figures of a case's rows, with their floors; of rows with several of a name the last."""
    kept: dict[str, Measurement] = {}
    for row in rows:
        for name, (unit, floor) in FIGURES.items():
            value = row.get(name)
            if value is None or (floor and floor not in row):
                continue
            full = name if name.startswith("swap") else f"{case}_{name}"
            against = {"floor": row[floor], "floor_of": "pinned memory"} if floor in row else {}
            kept[full] = run_of.record(full, value, unit, **against)
    return list(kept.values())


def main() -> int:
    """All cases, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=", ".join(CASES))
    parser.add_argument("--seconds", type=float, default=230, help="for all of them")
    parser.add_argument("--be", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        be(options.be)
        return 0
    if unknown := [name for name in options.cases if name not in CASES]:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    if not Card.count():
        print("skipped: this machine shows no NVIDIA GPU (NVML is missing or shows none)")
        return 0
    end = time.monotonic() + options.seconds
    run_of = Run("python3 tests/gpu/checkpoint_probe.py", gpu=True)
    print(f"{run_of.machine}, {run_of.software}")
    kept: list[Measurement] = []
    for name in options.cases or CASES:
        left = end - time.monotonic()
        if left < 5:
            show({"name": name, "result": "not tried: the time is over (--seconds)"})
            continue
        began = time.monotonic()
        rows = run(name, min(CASES[name][1], left))
        for row in rows:
            show(row)
        print(f"-- {name}: {time.monotonic() - began:.1f} s", flush=True)
        kept += records(run_of, name, rows)
    print(f"figures: {write_measured('checkpoint', kept)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
