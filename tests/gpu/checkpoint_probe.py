# SPDX-License-Identifier: Apache-2.0
"""What the driver's checkpoint of a CUDA process does on a card, and how fast memory moves.

    python3 tests/gpu/checkpoint_probe.py [CASE ...] [--seconds 230]     # as root

The cases are timed_cases.py's; a row is what came out, seconds of the steps, MiB of the card before
and behind. Figures go to build/measurements/checkpoint.jsonl. Needs an NVIDIA driver from 570 on;
the sessions' cases what tests/gpu/run.py needs, and one PyTorch. What came out of it is in
docs/decisions/ ("suspension").
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "dev")]

import checkpoint_cases as cases  # noqa: E402
import checkpoint_rates  # noqa: E402
import checkpoint_sessions  # noqa: E402
from checkpoint_bench import Row  # noqa: E402
from checkpoint_calls import Card  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402
from timed_cases import main_of  # noqa: E402

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


@functools.cache
def this_run() -> Run:
    """One for all cases."""
    return Run("python3 tests/gpu/checkpoint_probe.py", gpu=True)


def why_not() -> str:
    """What this machine lacks."""
    if not Card.count():
        return "this machine shows no NVIDIA GPU (NVML is missing or shows none)"
    print(f"{this_run().machine}, {this_run().software}")
    return ""


def main() -> int:
    """All cases, or those named."""
    kept: list[Measurement] = []

    def keep(name: str, rows: list[Row]) -> None:
        kept.extend(records(this_run(), name, rows))

    [summary, *_] = (__doc__ or "").splitlines()
    status = main_of(Path(__file__), summary, CASES, 230, why_not=why_not, keep=keep)
    if kept:
        print(f"figures: {write_measured('checkpoint', kept)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
