# SPDX-License-Identifier: Apache-2.0
"""Run in the guest by test_sessions.py: RDMA beside its floors, of one run, medians of five.

`sync_call_rdma_us` is a round trip of an RdmaConnection (64 bytes each way, both sides looking)
over a bare ping-pong of RC writes; `copy_rdma_gib_s` is what a connection carries of pinned memory
over bare pipelined writes; what it carries of other memory stands beside it. Below stand whole CUDA
calls over RDMA and over TCP: on a guest without KVM these are the emulated processors', not the
network's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROUNDS, TRIPS, MEBIBYTES, CALLS = 5, "500", "16", "200"
HERE = Path(__file__).resolve().parent
BIN = Path(os.environ["SLUICE_NATIVE_DIR"]) / "bin"


def main() -> None:
    """Prints a table, and behind it two lines of JSON.

    Of each figure ours and the floor, by round; and over each channel the medians of a CUDA call
    that waits, after a pause and right after that.
    """
    floors, paces = [], []
    for _ in range(ROUNDS):
        floors.append(said([str(BIN / "rdma_floor"), TRIPS, MEBIBYTES]))
        paces.append(said([str(BIN / "rdma_pace"), TRIPS, MEBIBYTES]))
    trip, speed = medians(floors)
    our_trip, our_speed, our_other = medians(paces)
    print(f"sync_call_rdma_us  {our_trip:.1f} over {trip:.1f} bare: {our_trip / trip:.2f} (1.5)")
    print(
        f"copy_rdma_gib_s    {our_speed:.3f} over {speed:.3f} bare: {our_speed / speed:.2f} (0.85)"
    )
    print(f"  of other memory  {our_other:.3f}: {our_other / speed:.2f}")
    waits: dict[str, tuple[float, float]] = {}
    for channel in ("rdma", "tcp"):
        calls = [sys.executable, str(HERE / "calls.py"), CALLS, MEBIBYTES]
        call, to, back, pinned_to, pinned_back, rested, after = said(calls, channel)
        waits[channel] = rested, after
        print(
            f"CUDA over {channel:4}  call {call:.0f} us, after a pause {rested:.0f} us,"
            f" copies {to:.3f} and {back:.3f} GiB/s, pinned {pinned_to:.3f} and {pinned_back:.3f}"
        )
    names = ("sync_call_rdma_us", "copy_rdma_gib_s", "copy_rdma_other_gib_s")
    ours = zip(*paces, strict=True)
    bare = zip(*((trip, speed, speed) for trip, speed in floors), strict=True)
    print(json.dumps(dict(zip(names, zip(ours, bare, strict=True), strict=True))))
    print(json.dumps(waits))


def said(command: list[str], channel: str = "rdma") -> list[float]:
    """The numbers that it prints."""
    environment = {**os.environ, "SLUICE_CHANNEL": channel}
    shown = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(word) for word in shown.stdout.split()]


def medians(rows: list[list[float]]) -> list[float]:
    """Of each column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


if __name__ == "__main__":
    main()
