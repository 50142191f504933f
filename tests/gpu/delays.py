# SPDX-License-Identifier: Apache-2.0
"""Batch-1 inference and generation over long and narrow networks, natively beside them.

    python3 tests/gpu/delays.py [--rounds 5] [NAME ...]

A network is delaying_network.cc before the data port: half of the round trip in each direction. The
native run has none, as its GPU is here. Prints rates, paired ratios, and where a program's round
trips belong: start, setting up, a step. Figures are in build/measurements/delays.jsonl, and decide
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from run import Server, built, find_driver
from run_workloads import torch_version

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "dev"), str(HERE.parent / "harness")]

from delaying_network import DelayingNetwork  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402

Line = dict[str, Any]

DATA_PORT = 19200
#: By name: round trip in microseconds, Gbit/s (0: as fast as this host), address, HTTP port.
NETWORKS = {
    "loopback": (0, 0, "127.0.0.1", 19123),
    "delay100": (100, 25, "127.0.0.5", 19125),
    "delay250": (250, 10, "127.0.0.6", 19126),
}
NAMES = ("resnet50_infer_sent", "gpt2_generate")
FIGURES = {"resnet50_infer_sent": "infer", "gpt2_generate": "generate"}


def once(names: list[str], environment: dict[str, str]) -> dict[str, Line]:
    """One process: its lines by workload."""
    done = subprocess.run(
        [sys.executable, str(HERE / "workloads.py"), *names],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) != len(names):
        raise SystemExit(f"exit status {done.returncode}\n{done.stderr[-3000:]}")
    return {line["name"]: line for line in lines}


def environments(server: Server) -> dict[str, dict[str, str]]:
    """Of a native program, and of one over each network."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    ours = {**plain, **server.environments["tcp"], "LD_PRELOAD": server.preload}
    del ours["SLUICE_STATS"]  # what it prints is not asked for
    found = {"native": plain}
    for name, (_, _, _, port) in NETWORKS.items():
        found[name] = {**ours, "SLUICE_CONTROLLER": f"127.0.0.1:{port}"}
    return found


def records(names: list[str], runs: dict[str, list[dict[str, Line]]]) -> list[Measurement]:
    """Prints the tables."""
    rounds = len(runs["native"])
    run = Run("python3 tests/gpu/delays.py", rounds=rounds, gpu=True, software=torch_version())
    found = []
    print(f"\nafter {rounds} rounds\n{'':22}{'network':10}{'native':>9}{'ours':>9}{'ratio':>7}")
    for name in names:
        native = [r[name]["rate"] for r in runs["native"]]
        for network in NETWORKS:
            ours = [r[name]["rate"] for r in runs[network]]
            pairs = [b / a for a, b in zip(native, ours, strict=True)]
            print(
                f"{name:22}{network:10}{median(native):9.1f}{median(ours):9.1f}{median(pairs):7.2f}"
                f"  {min(pairs):.2f}-{max(pairs):.2f}"
            )
            found.append(
                run.record(
                    f"{network}_{FIGURES.get(name, name)}",
                    median(ours),
                    runs["native"][0][name]["unit"],
                    channel="tcp",
                    floor=median(native),
                    floor_of="native, without a network",
                    values=ours,
                    pairs=pairs,
                )
            )
    print(f"\nround trips{'':22}{'start':>8}{'set-up':>8}{'step':>8}")
    for name in names:
        line = runs["loopback"][-1][name]
        trips = {
            "start": line["start_trips"],
            "set_up": line["set_up_trips"],
            "step": line["round_trips"],
        }
        print(f"{name:33}" + "".join(f"{count or 0:8.1f}" for count in trips.values()))
        for phase, count in trips.items():
            if count is not None:
                figure = f"{name}_trips_{phase}"
                found.append(run.record(figure, count, "1", channel="tcp", better="lower"))
    sys.stdout.flush()
    return found


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Workloads over long networks.")
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    driver = find_driver()
    if not driver:
        print("there is no GPU: nothing is measured")
        return 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-delays-")))
        folder.chmod(0o755)
        ways = [
            option
            for _, _, address, port in NETWORKS.values()
            if port != NETWORKS["loopback"][3]
            for option in ("--way", f"{port}={address}")
        ]
        server = Server(driver, folder, options=["--data-port", str(DATA_PORT), *ways])
        stack.callback(server.close)
        for trip_us, gbit_s, address, _ in NETWORKS.values():
            if trip_us:
                stack.enter_context(
                    DelayingNetwork(
                        built("delaying_network"), address, DATA_PORT, trip_us / 2, gbit_s
                    )
                )
        runs: dict[str, list[dict[str, Line]]] = {}
        for _ in range(options.rounds):
            for name, environment in environments(server).items():
                runs.setdefault(name, []).append(once(options.names, environment))
            path = write_measured("delays", records(options.names, runs))
    print(f"figures: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
