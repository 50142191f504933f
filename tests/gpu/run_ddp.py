# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel (ddp.py) natively and through Sluice in turn: losses, rates, ratios.

    python tests/gpu/run_ddp.py --preload LIB:LIB [--share] [--rounds 3]

Called by conformance.py. With `--share` all ranks are sessions of one job, else each is a session
of its own. Exit status 1 if the losses or the ranks' weights differ; the rates decide nothing and
are in build/measurements/ddp.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "dev"))

from measurements import Measurement, Run, write_measured  # noqa: E402
from run_workloads import torch_version  # noqa: E402

LIMIT_SECONDS = 300
#: What tells these records from those of ranks that share a job.
EACH_ITS_OWN = "each rank a session of its own"
#: What ddp.py calls a figure: its name in the records, and its unit.
FIGURES = {
    "steps_per_s": ("ddp_small_steps", "steps/s"),
    "all_reduce_gib_s": ("ddp_all_reduce_256_mib", "GiB/s"),
}

Said = dict[str, Any]


def once(environment: dict[str, str], *arguments: str, program: str = "ddp.py") -> Said:
    """One run of ddp.py, or of another: what its first rank said."""
    done = subprocess.run(
        [sys.executable, str(HERE / program), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) != 1:
        raise SystemExit(f"{program}: exit status {done.returncode}\n{done.stderr[-3000:]}")
    said: Said = json.loads(lines[0])
    return said


def differences(native: list[Said], ours: list[Said]) -> list[str]:
    """What is not the same in all rounds, in words; nothing where all is well."""
    wanted = native[0]["losses"]
    wrong = [
        f"{name}: losses {said['losses']}, natively at first {wanted}"
        for name, runs in (("native", native), ("Sluice", ours))
        for said in runs
        if said["losses"] != wanted
    ]
    return wrong + [
        f"{name}: ranks end with weights that differ"
        for name, runs in (("native", native), ("Sluice", ours))
        for said in runs
        if not said["ranks_agree"]
    ]


def records(native: list[Said], ours: list[Said], run: Run) -> list[Measurement]:
    """The rates with their paired ratios."""
    run.rounds = len(native)
    found = []
    for key, (name, unit) in FIGURES.items():
        floors, rates = [said[key] for said in native], [said[key] for said in ours]
        found.append(
            run.record(
                name,
                median(rates),
                unit,
                floor=median(floors),
                floor_of="native",
                values=rates,
                pairs=[b / a for a, b in zip(floors, rates, strict=True)],
            )
        )
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="DistributedDataParallel, natively and not.")
    parser.add_argument("--preload", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--share", action="store_true", help="all ranks are one job")
    options = parser.parse_args()
    native = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    sluice = {**os.environ, "LD_PRELOAD": options.preload}
    share = ["--share"] if options.share else []
    run = Run(
        " ".join(["python tests/gpu/run_ddp.py", *share]),
        gpu=True,
        setting=None if options.share else EACH_ITS_OWN,
        software=torch_version(),
    )
    ranks = ["--ranks", str(options.ranks)]
    floors: list[Said] = []
    ours: list[Said] = []
    for _ in range(options.rounds):
        floors.append(once(native, *ranks))
        ours.append(once(sluice, *ranks, *share))
    for name, runs in (("native", floors), ("Sluice", ours)):
        figures = {key: round(median(said[key] for said in runs), 1) for key in FIGURES}
        print(f"{name:6} losses {' '.join(runs[0]['losses'])}  {json.dumps(figures)}", flush=True)
    wrong = differences(floors, ours)
    print("\n".join(wrong) or "the losses are the same, and the ranks agree")
    if options.ranks == 2:  # what the records' names stand for
        print(f"figures: {write_measured('ddp', records(floors, ours, run))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
