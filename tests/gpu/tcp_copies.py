# SPDX-License-Identifier: Apache-2.0
"""Copies to and from the GPU over TCP loopback, by how many connections they have.

    python3 tests/gpu/tcp_copies.py [--rounds 5] [--mib 1024] [--connections 0 2 4 8]

With 0 there is the session's own connection alone; else so many carry bulk beside it. Each is
measured beside as many bare sockets that send or receive as much memory, in turn with the others.
Figures are in build/measurements/tcp_copies.jsonl, and decide nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from bare_sockets import socket_gib_s
from run import CALLS, Server, find_driver, find_runtime

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev"))
from measurements import Measurement, Run, write_measured

ALONE = 0
OF_SOCKETS = 0.9  #: what is wanted
COPIES = [f"{kind}_to_{end}_gib_s" for kind in ("pinned", "pageable") for end in ("device", "host")]


def copies(server: Server, connections: int, mib: int) -> dict[str, float]:
    """GiB/s of each kind of copy."""
    told = {**server.environments["tcp"], "SLUICE_BULK_CONNECTIONS": str(connections)}
    del told["SLUICE_STATS"]  # what it prints is not asked for
    done = subprocess.run(
        [str(CALLS), "gpu", str(mib)],
        env={**os.environ, **told},
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(server: Server, numbers: list[int], rounds: int, mib: int) -> list[Measurement]:
    """In turn; prints a line for each kind and number."""
    ours: dict[int, list[dict[str, float]]] = {n: [] for n in numbers}
    bare: dict[tuple[int, str], list[float]] = {}
    for _ in range(rounds):
        for n in numbers:
            ours[n].append(copies(server, n, mib))
            there = socket_gib_s(mib, from_mib=mib, connections=max(n, 1))
            back = socket_gib_s(mib, to_mib=mib, connections=max(n, 1))
            bare.setdefault((n, "device"), []).append(there)
            bare.setdefault((n, "host"), []).append(back)
    command = "python3 tests/gpu/tcp_copies.py"
    runs = {
        n: Run(command, rounds=rounds, gpu=True, setting=f"{n} connections beside the first")
        for n in numbers
    }
    records = []
    print(f"{'GiB/s':28} {'beside':>6} {'ours':>8} {'sockets':>8} {'of them':>8} {'of one':>8}")
    for key in (k for k in COPIES if k in ours[numbers[0]][0]):
        one = [found[key] for found in ours[ALONE]] if ALONE in ours else []
        for n in numbers:
            values = [found[key] for found in ours[n]]
            floors = bare[n, "device" if "to_device" in key else "host"]
            of_sockets = [a / b for a, b in zip(values, floors, strict=True)]
            of_one = median(values) / median(one) if one else float("nan")
            records.append(
                runs[n].record(
                    f"copy_tcp_{key}",
                    median(values),
                    "GiB/s",
                    channel="tcp",
                    floor=median(floors),
                    floor_of="as many bare sockets",
                    limit=OF_SOCKETS * median(floors),
                    values=values,
                    pairs=of_sockets,
                )
            )
            print(
                f"{key:28} {n:6} {median(values):8.2f} {median(floors):8.2f} "
                f"{median(of_sockets):8.2f} {of_one:8.2f}",
                flush=True,
            )
    return records


def main() -> int:
    """Prints a table, and keeps the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--connections", type=int, nargs="+", default=[ALONE, 2, 4, 8])
    options = parser.parse_args()
    driver = find_driver()
    if not driver or find_runtime() is None:
        print("skipped: this machine shows no NVIDIA GPU with its runtime")
        return 0
    with tempfile.TemporaryDirectory(prefix="sluice-copies-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = Server(driver, folder, memory_mib=4096)
        try:
            found = measure(server, options.connections, options.rounds, options.mib)
        finally:
            server.close()
    print(f"figures: {write_measured('tcp_copies', found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
