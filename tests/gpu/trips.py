# SPDX-License-Identifier: Apache-2.0
"""How often framework workloads wait for an answer: at their start, setting up, and in a step.

    python3 tests/gpu/trips.py [NAME ...]

Each workload (workloads.py) is a process of its own over TCP: its `start` is import and the first
kernel, `set_up` the model's way to the device and the first steps. Prints a line for each, and
under it the calls that waited most often in the whole of it. Counts do not depend on the machine's
speed. Figures are in build/measurements/trips.jsonl, and decide nothing. Without a GPU it says that
it was skipped.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "dev")]

from measurements import Measurement, Run, write_measured  # noqa: E402
from run import Server, find_driver  # noqa: E402
from run_workloads import once_and_errors, torch_version  # noqa: E402

NAMES = ("resnet50_train", "resnet50_infer_sent", "gpt2_train", "gpt2_generate")
WANTED = {"resnet50_train_trips_set_up": 400}
MOST_CALLS = 12
LIMIT_SECONDS = 120
WAITED = re.compile(r"sluice:\s+(\d+) round trips of (\w+)")


def measure(server: Server, name: str, run: Run) -> list[Measurement]:
    """One workload's; prints them."""
    environment = {**server.preloading("tcp"), "SLUICE_STATS": "1"}
    lines, errors = once_and_errors([sys.executable], [name], environment, 0.05, LIMIT_SECONDS)
    line = lines[name]
    trips = {
        "start": line["start_trips"],
        "set_up": line["set_up_trips"],
        "step": line["round_trips"],
    }
    print(f"{name:24}" + "".join(f"{phase:>8} {count:7.1f}" for phase, count in trips.items()))
    calls = sorted(WAITED.findall(errors), key=lambda each: -int(each[0]))
    print(f"    {', '.join(f'{count} {call}' for count, call in calls[:MOST_CALLS])}", flush=True)
    return [
        run.record(f"{name}_trips_{phase}", count, "1", channel="tcp", limit=limit, better="lower")
        for phase, count in trips.items()
        for limit in [WANTED.get(f"{name}_trips_{phase}")]
    ]


def main() -> int:
    """Everything; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", default=list(NAMES))
    options = parser.parse_args()
    driver = find_driver()
    if not driver:
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    run = Run("python3 tests/gpu/trips.py", rounds=1, gpu=True, software=torch_version())
    found: list[Measurement] = []
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="sluice-trips-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = Server(driver, folder, memory_mib=20000)
        try:
            for workload in options.names:
                try:
                    found += measure(server, workload, run)
                except (SystemExit, subprocess.TimeoutExpired) as error:
                    print(f"failed: {workload}: {error}")
                    wrong = 1
        finally:
            server.close()
            print(f"figures: {write_measured('trips', found)}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
