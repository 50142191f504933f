# SPDX-License-Identifier: Apache-2.0
"""Copies between the nodes of one process's vGPUs, beside a bare socket: two servers on this host.

    python3 tests/gpu/node_copies.py [--rounds 5] [--mib 512]

On GPUs of NVIDIA's where there are two, one for each server, else on the software GPU, whose copies
are this machine's processor's. `cross_node_copy_gib_s` is cudaMemcpyPeerAsync from the one node to
the other, `…_both_ways` one in each direction at once, both beside one bare socket that sends and
receives as much memory; `cross_node_event_us` is what an event of one node, a wait of the other's
stream for it and the way back take, behind one another. Needs what the services need (make
native, the Python packages). Figures are in build/measurements/node_copies.jsonl, and decide
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "dev")]

from bare_sockets import socket_gib_s  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402
from two_servers import GPUS, ControlPlane, across, gpus, two_servers  # noqa: E402

PROGRAM = HERE / "node_copies_program.py"
OF_A_SOCKET = {"cross_node_copy_gib_s": 0.9}  #: what is wanted


def ours(plane: ControlPlane, mib: int) -> dict[str, float]:
    """What one process says, which has a vGPU of each node."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(mib)],
        env={**os.environ, **across(plane, 2 * mib + 64)},
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(plane: ControlPlane, rounds: int, mib: int, *, gpu: bool) -> list[Measurement]:
    """In turn with the socket; prints a line for each."""
    found: list[dict[str, float]] = []
    floors: list[float] = []
    for _ in range(rounds):
        found.append(ours(plane, mib))
        floors.append(socket_gib_s(mib, from_mib=mib, to_mib=mib))
    run = Run("python3 tests/gpu/node_copies.py", rounds=rounds, gpu=gpu)
    records = []
    for name in found[0]:
        values = [each[name] for each in found]
        line = f"{name:32} {median(values):9.2f}"
        if name.endswith("_us"):
            records.append(run.record(name, median(values), "us", channel="tcp", values=values))
        else:
            pairs = [a / b for a, b in zip(values, floors, strict=True)]
            wanted = OF_A_SOCKET.get(name)
            records.append(
                run.record(
                    name,
                    median(values),
                    "GiB/s",
                    channel="tcp",
                    floor=median(floors),
                    floor_of="a bare socket",
                    limit=wanted and wanted * median(floors),
                    values=values,
                    pairs=pairs,
                )
            )
            line += f" GiB/s, a bare socket {median(floors):6.2f}, of it {median(pairs):5.2f}"
        print(line, flush=True)
    return records


def main() -> int:
    """Prints the figures, and keeps them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=512)
    options = parser.parse_args()
    gpu = len(gpus()) >= GPUS
    print(f"on {'two GPUs' if gpu else 'the software GPU'}", flush=True)
    with two_servers(gpu=gpu) as plane:
        found = measure(plane, options.rounds, options.mib, gpu=gpu)
    print(f"figures: {write_measured('node_copies', found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
