# SPDX-License-Identifier: Apache-2.0
"""What an idle session holds and what launches cost in CPU, natively and through Sluice.

    python tests/gpu/footprint.py --preload LIB:LIB

Prints GPU memory (as nvidia-smi counts it) and resident host memory of a process that has one small
tensor, and the CPU seconds of 100,000 launches from PyTorch: in the program and in its worker. Also
in build/measurements/footprint.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev"))

from measurements import Measurement, Run, write_measured
from run_workloads import torch_version

#: What measure() calls a figure: its name in the records, and its unit.
FIGURES = {
    "gpu_mib": ("idle_gpu_mib", "MiB"),
    "host_mib": ("idle_host_mib", "MiB"),
    "worker_mib": ("idle_worker_mib", "MiB"),
    "cpu": ("launches_100000_cpu_s", "s"),
    "worker_cpu": ("launches_100000_worker_cpu_s", "s"),
}
CHILD = """
import json, sys, time, torch
x = torch.zeros(1000, device="cuda")
for _ in range(1000):
    x.add_(1)
torch.cuda.synchronize()
print("idle", flush=True)
sys.stdin.readline()
begun, cpu = time.perf_counter(), time.process_time()
for _ in range(100_000):
    x.add_(1)
torch.cuda.synchronize()
cpu, took = time.process_time() - cpu, time.perf_counter() - begun
print(json.dumps({"cpu": cpu, "took": took}), flush=True)
sys.stdin.readline()
"""


def used_mib() -> int:
    """MiB of the first GPU that are in use."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def resident_mib(pid: int) -> int:
    """Resident memory of a process, without what it shares (as far as the kernel says)."""
    values = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in ("VmRSS", "RssAnon"):
            values[key] = int(rest.split()[0]) >> 10
    return values.get("RssAnon", values.get("VmRSS", 0))


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def workers() -> set[int]:
    """Every sluice-worker of this machine."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == "sluice-worker":
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def busiest(candidates: set[int], before: dict[int, float]) -> tuple[int, float]:
    """The worker that has used most CPU since."""
    spent = {p: cpu_seconds(p) - before.get(p, 0) for p in candidates & workers()}
    pid = max(spent, key=lambda p: spent[p])
    return pid, spent[pid]


def measure(environment: dict[str, str], ours: bool) -> dict[str, float]:
    """One process, natively or through Sluice."""
    time.sleep(2)  # the pre-started worker is there
    empty = used_mib()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin
    assert child.stdout
    child.stdout.readline()
    time.sleep(2)
    figures = {"gpu_mib": float(used_mib() - empty), "host_mib": float(resident_mib(child.pid))}
    before = {p: cpu_seconds(p) for p in workers()}
    child.stdin.write("\n")
    child.stdin.flush()
    figures |= json.loads(child.stdout.readline())
    if ours:
        pid, spent = busiest(set(before), before)
        figures |= {"worker_cpu": spent, "worker_mib": float(resident_mib(pid))}
    child.stdin.close()
    child.wait()
    return figures


def records(found: dict[str, dict[str, float]], run: Run) -> list[Measurement]:
    """What is kept; a worker has no native counterpart."""
    return [
        run.record(
            name,
            found[channel][key],
            unit,
            channel=channel,
            floor=found["native"].get(key),
            floor_of="native",
        )
        for channel in ("shm", "tcp")
        for key, (name, unit) in FIGURES.items()
    ]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Memory of an idle session, CPU of launches.")
    parser.add_argument("--preload", required=True)
    options = parser.parse_args()
    native = {k: v for k, v in os.environ.items() if not k.startswith("SLUICE_")}
    run = Run("python tests/gpu/footprint.py", gpu=True, software=torch_version())
    found: dict[str, dict[str, float]] = {}
    for channel in ("native", "shm", "tcp"):
        ours = channel != "native"
        sluice = {**os.environ, "LD_PRELOAD": options.preload, "SLUICE_CHANNEL": channel}
        figures = found[channel] = measure(sluice if ours else native, ours)
        print(channel, json.dumps({k: round(v, 3) for k, v in figures.items()}), flush=True)
    print(f"figures: {write_measured('footprint', records(found, run))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
