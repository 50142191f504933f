# SPDX-License-Identifier: Apache-2.0
"""How long a preempting request waits on a card for its first kernel, beside one that finds room.

    python3 tests/gpu/preemption.py [--gib 16] [--rounds 5]    # as root

Starts a controller and a server whose victims are suspended. A session with so many GiB of slabs
and 80 % of the card runs one kernel of 5 ms after the other; then a process of a higher priority,
which may preempt, asks for as much: `preempt_s` are the seconds from its first CUDA call until its
first kernel is done. When it ends the victim comes back, and all words of its memory have to be
right: `preempted_back_s` is until the victim's next kernel is done. The floor is the same process
on the empty card. Figures go to build/measurements/preemption.jsonl. Exit status 1 where something
is wrong; the figures decide nothing. Without a GPU it says that it was skipped.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "dev"), str(ROOT / "tests" / "harness")]

from checkpoint_bench import SUBJECT, Bench, Failed, Told  # noqa: E402
from checkpoint_rates import available_gib, huge_pages  # noqa: E402
from control_plane import ControlPlane, running  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402
from run import find_driver  # noqa: E402
from suspended_node import GIB, wait_until_ready, wrong  # noqa: E402
from two_servers import gpus, on_cards  # noqa: E402

from sluice.config.native_files import find_native  # noqa: E402

LIMIT_S = 2.0
PATIENCE_SECONDS = 60
WORK_SECONDS = 6  # of the victim, from before it is suspended until it is back
URGENT = {"SLUICE_PREEMPT": "1", "SLUICE_PRIORITY": "5", "SLUICE_WAIT": str(PATIENCE_SECONDS)}


def first_kernel(told: Told) -> float:
    """Seconds from a process's first CUDA call until a kernel of it is done; raises Failed."""
    began = time.perf_counter()
    told.ask("begin", PATIENCE_SECONDS)
    told.ask("slab", mib=64)
    right(told, "an urgent session")
    return time.perf_counter() - began


def right(told: Told, whose: str) -> None:
    """Raises Failed where its memory is not what it was."""
    wrong(told.ask("check", PATIENCE_SECONDS)["wrong"], f"{whose}'s memory")


def measure(bench: Bench, plane: ControlPlane, gib: int, rounds: int) -> list[Measurement]:
    """Raises Failed where memory is wrong, or nobody was suspended."""
    plane.rest.put("/quotas/default", json={"may_preempt": True}).raise_for_status()
    environment = {
        **bench.natively,
        "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
        "SLUICE_CHANNEL": "shm",
        "SLUICE_SERVER_SOCKET": str(plane.socket_path),
        "SLUICE_GMEM": str((gib + 2) * GIB),
        "SLUICE_RATIO": "80",
    }

    def started(**more: str) -> Told:
        return bench.told([sys.executable, str(SUBJECT)], {**environment, **more})

    alone, waits, backs = [], [], []
    for _ in range(rounds):
        one = started(**URGENT)
        alone.append(first_kernel(one))
        one.kill()
        time.sleep(2)  # the next worker waits
    victim = started()
    victim.ask("begin", PATIENCE_SECONDS)
    victim.ask("slab", mib=gib * GIB)
    for _ in range(rounds):
        wait_until_ready()
        victim.tell("work", seconds=WORK_SECONDS)
        urgent = started(**URGENT)
        waits.append(first_kernel(urgent))
        grants = plane.rest.get("/grants").json()["grants"]
        states = [(grant["suspension"] or {}).get("state") for grant in grants]
        if "suspended" not in states:
            raise Failed(f"nobody was suspended: {states}")
        began = time.perf_counter()
        urgent.kill()
        worked = victim.answer(PATIENCE_SECONDS)
        wrong(worked["wrong"], "the victim's memory")
        behind = [done for done in worked["done"] if done > began]
        if len(behind) in (0, len(worked["done"])):
            raise Failed("the victim did not work before it was suspended and after it")
        backs.append(behind[0] - began)
    victim.kill()
    run_of = Run("python3 tests/gpu/preemption.py", gpu=True, rounds=rounds)
    median = statistics.median
    return [
        run_of.record(
            "preempt_s", median(waits), "s", channel="shm", values=waits, floor=median(alone),
            floor_of="the same request on an empty card", limit=LIMIT_S,
        ),
        run_of.record("preempted_back_s", median(backs), "s", channel="shm", values=backs),
    ]  # fmt: skip


def main() -> int:
    """Everything; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gib", type=int, default=16, help="of the victim")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not find_driver() or not gpus():
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    gib = max(1, min(options.gib, available_gib() // 3 - 8))
    ready = (gib + 4) * GIB
    kept: list[Measurement] = []
    with (
        tempfile.TemporaryDirectory(prefix="sluice-preempt-") as name,
        huge_pages(2 * gib + 9) as said,
        Bench("preemption", Path(name)) as bench,
        running(
            Path(name),
            suspend={"swap_mib": 2 * ready, "ready_mib": ready},
            **on_cards(gpus()[:1]),
        ) as plane,
    ):
        Path(name).chmod(0o755)
        print(f"host memory: {said}")
        try:
            kept = measure(bench, plane, gib, options.rounds)
        except Failed as failed:
            print(f"failed: {failed}")
            return 1
        for one in kept:
            print(f"{one.name:20} {one.value} s, alone {one.floor}: {one.spread}")
        print(f"figures: {write_measured('preemption', kept)}")
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
