# SPDX-License-Identifier: Apache-2.0
"""Framework workloads natively and through Sluice in alternation; medians of the paired ratios.

    python tests/gpu/run_workloads.py --pairs 10 --preload LIB:LIB [--channel shm|tcp] [NAME ...]

Each run is a process of its own (workloads.py). Sluice's environment is this process's with
SLUICE_* set by the caller; --preload lists its libraries. Prints a table and, with --out, a line of
JSON for every run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent


def once(name: str, environment: dict[str, str], arguments: list[str]) -> dict[str, Any]:
    """One process; its line, or what went wrong."""
    done = subprocess.run(
        [sys.executable, str(HERE / "workloads.py"), name, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    for line in reversed(done.stdout.splitlines()):
        if line.startswith("{"):
            result: dict[str, Any] = json.loads(line)
            return result
    raise SystemExit(f"{name}: exit status {done.returncode}\n{done.stderr[-3000:]}")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Workloads, natively and through Sluice.")
    parser.add_argument("names", nargs="*", default=["resnet50_train", "resnet50_infer"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--preload", required=True)
    parser.add_argument("--channels", nargs="*", default=["shm"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    native = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    ours = {**os.environ, "LD_PRELOAD": options.preload}
    arguments = ["--steps", str(options.steps)] if options.steps else []
    print(
        f"{'workload':18} {'channel':7} {'native':>9} {'ours':>9} {'unit':9} {'ratio':>6} "
        f"{'spread':>14} {'trips/step':>10} {'cmds/step':>9} {'first kernel s':>16} {'result':>9}"
    )
    for name in options.names:
        for channel in options.channels:
            pairs = []
            for _ in range(options.pairs):
                a = once(name, native, arguments)
                b = once(name, {**ours, "SLUICE_CHANNEL": channel}, arguments)
                time.sleep(0.5)  # the next worker warms up meanwhile
                pairs.append((a, b))
                if options.out:
                    with options.out.open("a") as file:
                        file.write(json.dumps({"channel": channel, "native": a, "ours": b}) + "\n")
            ratios = sorted(b["rate"] / a["rate"] for a, b in pairs)
            same = sum(a["checksum"] == b["checksum"] for a, b in pairs)
            last = pairs[-1][1]
            print(
                f"{name:18} {channel:7} {median(a['rate'] for a, _ in pairs):9.1f} "
                f"{median(b['rate'] for _, b in pairs):9.1f} {last['unit']:9} "
                f"{median(ratios):6.3f} {ratios[0]:6.3f}-{ratios[-1]:<6.3f} "
                f"{last['round_trips'] or 0:10.3f} {last['commands'] or 0:9.0f} "
                f"{median(a['first_kernel_s'] for a, _ in pairs):7.3f} -> "
                f"{median(b['first_kernel_s'] for _, b in pairs):5.3f} {same:4}/{len(pairs)} same",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
