# SPDX-License-Identifier: Apache-2.0
"""Two jobs of two ranks over the same two GPUs, with shares: what each gets, and whether any stops.

    python tests/gpu/gangs.py [--seconds 60] [--percent 30]     # 600 for the whole run

Each job is DistributedDataParallel over NCCL, a rank on either card, the ranks sessions of one job.
The first has so many percent of both cards, the second the rest. Both do the same steps, counted in
the same time: one alone, both together, and both together natively, where the driver slices. Needs
two GPUs and a Python that has PyTorch for CUDA 13, as conformance.py does. Exit status 1 where a
job had no step done for five seconds, or a rank failed; the figures decide nothing and are in
build/measurements/gangs.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "dev")]

VISIBLE = "CUDA_VISIBLE_DEVICES"
RANKS = 2
STANDSTILL_SECONDS = 5.0
#: How long beginning may take: PyTorch, NCCL, the first steps.
PATIENCE = 240.0

Said = dict[str, Any]
Environment = Mapping[str, str]


def rank_main(rank: int, port: int, folder: str) -> None:
    """One rank: steps from the time that the folder's `go` says to its end."""
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=RANKS)
    layers = [torch.nn.Linear(4096, 4096) for _ in range(4)]
    model: Any = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers).cuda(), device_ids=[rank]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(2048, 4096, device="cuda")

    def step() -> Any:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        done = torch.cuda.Event()
        done.record()
        return done

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    go = Path(folder) / "go"
    if rank == 0:
        print(json.dumps({"ready": True}), flush=True)
    while not go.exists():
        time.sleep(0.01)
    begin, end = json.loads(go.read_text())
    while time.monotonic() < begin:
        time.sleep(0.001)
    under_way: list[Any] = []
    steps, longest, last = 0, 0.0, begin
    over = torch.zeros(1, device="cuda")
    for number in range(1, 1 << 60):
        under_way.append(step())
        if len(under_way) > 3:
            under_way.pop(0).synchronize()
            now = time.monotonic()
            steps += now <= end
            longest, last = max(longest, now - last), now
        if number % 10:
            continue
        over.fill_(float(rank == 0 and last > end))
        dist.all_reduce(over)
        if over.item() > 0:  # all stop at the same step
            break
    torch.cuda.synchronize()
    if rank == 0:
        print(json.dumps({"steps": steps, "longest_s": longest}), flush=True)
    dist.destroy_process_group()


def job_main(folder: str) -> int:
    """All ranks of one job."""
    import torch.multiprocessing as mp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank_main, (port, folder), nprocs=RANKS)
    return 0


class Job:
    """One of them, as this script sees it."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        self._log = (folder / f"job-{secrets.token_hex(4)}.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--job", str(folder)],
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._text = ""

    def hear(self, word: str, until: float) -> Said:
        """Its line that has this word."""
        assert self.process.stdout
        out = self.process.stdout.fileno()
        while time.monotonic() < until:
            if select.select([out], [], [], 0.05)[0]:
                self._text += os.read(out, 65536).decode()
            for line in self._text.splitlines():
                if line.startswith("{") and line.endswith("}") and word in line:
                    said: Said = json.loads(line)
                    return said
            if self.process.poll() is not None:
                self._log.seek(0)
                raise SystemExit(f"a job ended: {self._log.read()[-3000:]}")
        raise SystemExit(f"standstill: a job has not said {word!r}")

    def end(self) -> None:
        """Nothing of it stays."""
        if self.process.poll() is None:
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, 9)
                self.process.wait()
        self._log.close()


def together(seconds: float, environments: Sequence[Environment]) -> list[Said]:
    """What jobs say that work in the same time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = [Job(environment, folder) for environment in environments]
        try:
            ready = time.monotonic() + PATIENCE
            for job in jobs:
                job.hear("ready", ready)
            begin = time.monotonic() + 1
            (folder / "going").write_text(json.dumps([begin, begin + seconds]))
            (folder / "going").rename(folder / "go")
            late = begin + seconds + 60
            return [job.hear("steps", late) for job in jobs]
        finally:
            for job in jobs:
                job.end()


def measure(seconds: float, percent: int, ours: Environment, native: Environment) -> bool:
    """Prints and records; False: a job stood still."""
    from measurements import Run, write_measured
    from run_workloads import torch_version

    def share(of: int) -> Environment:
        asked = {"SLUICE_RATIO": str(of), "SLUICE_VGPU": str(RANKS)}
        return {**ours, **asked, "SLUICE_JOB": secrets.token_hex(16)}

    short = min(30.0, max(5.0, seconds / 6))
    [alone] = together(short, [share(percent)])
    had = together(seconds, [share(percent), share(100 - percent)])
    sliced = together(short, [native, native])
    [native_alone] = together(short, [native])
    rate = alone["steps"] / short
    steps = [said["steps"] for said in had]
    got = 100 * steps[0] / max(1, sum(steps))
    total = sum(steps) / seconds / max(rate, 1e-9)
    driver = sum(said["steps"] for said in sliced) / max(1, native_alone["steps"])
    longest = max(said["longest_s"] for said in had)
    print(f"alone: {rate:.1f} steps/s, natively {native_alone['steps'] / short:.1f}")
    for name, of, said in zip("ab", (percent, 100 - percent), had, strict=True):
        print(f"job {name}, {of} %: {said['steps']} steps, longest pause {said['longest_s']:.2f} s")
    print(f"share of a: {got:.2f} %; both {total:.3f} of one alone, by the driver {driver:.3f}")
    run = Run("python tests/gpu/gangs.py", gpu=True, software=torch_version())
    said_of = {"channel": "shm"}
    records = [
        run.record("share_gang_error", abs(got - percent), "%", **said_of),
        run.record(
            "share_gang_total",
            total,
            "ratio",
            floor=driver,
            floor_of="the driver's slicing, two jobs",
            better="higher",
            **said_of,
        ),
        run.record(
            "share_gang_alone",
            rate,
            "steps/s",
            floor=native_alone["steps"] / short,
            floor_of="native",
            **said_of,
        ),
        run.record("share_gang_longest_pause", longest, "s", **said_of),
    ]
    print(f"figures: {write_measured('gangs', records)}")
    if longest <= STANDSTILL_SECONDS:
        print(f"no standstill in {seconds:g} s")
        return True
    print(f"standstill: no step for {longest:.1f} s")
    return False


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Two jobs with shares of the same two GPUs.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--percent", type=int, default=30, help="of the first job")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    # workers, ranks and all else that is started here
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    if options.job:
        return job_main(options.job)
    import conformance
    import run as gpu

    driver, native = gpu.find_driver(), gpu.native_environment()
    why = "this machine shows no NVIDIA GPU"
    if driver:
        why = conformance.lacking(sys.executable, native)
    devices = [] if why else conformance.gpus()[:RANKS]
    if not why and len(devices) < RANKS:
        why = "it needs two GPUs"
    if why:
        print(f"skipped: {why}")
        return 0
    native[VISIBLE] = ",".join(devices)
    with tempfile.TemporaryDirectory(prefix="sluice-gangs-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = gpu.Server(driver, folder, devices, memory_mib=14000)
        try:
            ours = {
                **{k: v for k, v in server.preloading("shm").items() if k != VISIBLE},
                "LD_LIBRARY_PATH": native.get("LD_LIBRARY_PATH", ""),
            }
            good = measure(options.seconds, options.percent, ours, native)
        finally:
            server.close()
            for text in server.log.read_text().splitlines():
                if " ERROR " in text:
                    print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
