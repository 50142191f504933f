# SPDX-License-Identifier: Apache-2.0
"""A job of two ranks on two cards that is suspended in its collectives: seconds, losses, watchdog.

    python3 tests/gpu/suspended_job.py [--rounds 10] [--clock-seconds 15]    # as root, two cards

Starts a controller and a server. The job is DistributedDataParallel over NCCL, each step's
collectives issued before those of the step before are done; its grant is suspended and resumed so
often, over shared memory and TCP, and its losses are held against the same job left alone.
`suspended_job_s` and `resumed_job_s` are from the order until the pool says that it is done. Then
a job whose process group has a timeout of `--clock-seconds`, and whose heartbeat monitor has as
much, is suspended for twice as long: what PyTorch's clocks make of it is printed, and when the job
ends, nothing of it may stay in the pool. Figures go to build/measurements/suspended_job.jsonl. Exit
status 1 where something is wrong; the figures decide nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "dev"), str(ROOT / "tests" / "harness"), str(ROOT / "python")]

RANKS = 2
STEPS, SAID_EACH, WIDE, BATCH = 600, 5, 4096, 2048  # a step is some 15 ms
PATIENCE_SECONDS = 240.0
CALM_SECONDS = 0.5  # in which who stands still says nothing
SWAP_MIB, READY_MIB = 32768, 8192
CLOCKS = re.compile(r"^.*(?:Watchdog caught|[Hh]eartbeat|terminating the process).*$", re.MULTILINE)


def rank_main(rank: int, port: int, seconds: float, folder: str) -> None:
    """One rank: all steps, and what it has lost in each."""
    errors = os.open(f"{folder}/rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(errors, 2)
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.cuda.set_device(rank)
    limit = timedelta(seconds=seconds)
    dist.init_process_group("nccl", rank=rank, world_size=RANKS, timeout=limit)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDE, WIDE) for _ in range(4)]
    model: Any = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers).cuda(), device_ids=[rank]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    torch.manual_seed(rank + 1)
    x = torch.randn(BATCH, WIDE, device="cuda")
    losses: list[Any] = []
    for number in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if number % SAID_EACH == 0:
            before = losses[-SAID_EACH].item()  # some steps are under way behind it
            if rank == 0:
                print(json.dumps({"step": number, "loss": before}), flush=True)
    ones = torch.full((1 << 20,), float(rank + 1), device="cuda")
    dist.all_reduce(ones)
    right = bool((ones == RANKS * (RANKS + 1) / 2).all())
    if rank == 0:
        said = [loss.item() for loss in losses]
        print(json.dumps({"losses": said, "right": right}), flush=True)
    dist.destroy_process_group()


def job_main(seconds: float, folder: str) -> int:
    """Both ranks, in a group of processes of their own."""
    os.setsid()
    import torch.multiprocessing as mp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(rank_main, (port, seconds, folder), nprocs=RANKS)
    return 0


class Jobs:
    """One job after the other on the pool."""

    def __init__(self, plane: Any, folder: Path) -> None:
        from checkpoint_bench import FOREIGN

        from sluice.config.native_files import find_native

        self.plane, self.folder = plane, folder
        self._native = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        self._library = find_native("libcuda.so.1").parent

    @contextlib.contextmanager
    def begun(self, channel: str, seconds: float, **more: str) -> Iterator[Any]:
        """A job whose collectives may take so long; nothing of it stays behind this."""
        from checkpoint_bench import Told
        from run import preload_of

        for name in self.folder.glob("rank-*"):
            name.unlink()
        where = {
            "shm": {"SLUICE_SERVER_SOCKET": str(self.plane.socket_path)},
            "tcp": {"SLUICE_CONTROLLER": f"127.0.0.1:{self.plane.rest_port}"},
        }
        environment = {
            **self._native,
            **where[channel],
            "SLUICE_CHANNEL": channel,
            "LD_LIBRARY_PATH": str(self._library),
            "LD_PRELOAD": preload_of(self._library),
            "SLUICE_JOB": secrets.token_hex(16),
            "SLUICE_VGPU": str(RANKS),
            "SLUICE_RATIO": "100",
            "SLUICE_GMEM": "8192",
            **more,
        }
        job = Told([sys.executable, __file__, "--job", str(seconds), str(self.folder)], environment)
        try:
            yield job
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.kill()
            self._wait(lambda: not self._grants(), "nothing to be left in the pool")

    def _grants(self) -> list[Any]:
        grants: list[Any] = self.plane.rest.get("/grants").json()["grants"]
        return grants

    def _wait(self, what: Callable[[], Any], message: str) -> None:
        from checkpoint_bench import Failed

        end = time.monotonic() + PATIENCE_SECONDS
        while not what():
            if time.monotonic() > end:
                raise Failed(f"waited for {message}: {self._grants()}")
            time.sleep(0.01)

    def order(self, what: str) -> float:
        """Seconds; raises Failed where the pool says why not."""
        from checkpoint_bench import Failed

        [grant] = [one["id"] for one in self._grants()]
        began = time.monotonic()
        answer = self.plane.rest.post(f"/grants/{grant}/{what}")
        if answer.status_code != 202:
            raise Failed(f"{what}: {answer.text}")

        def is_done() -> bool:
            shown = self.plane.rest.get(f"/grants/{grant}").json()["suspension"]
            if what == "suspend" and not shown:
                events = self.plane.rest.get("/events", params={"subject": grant}).json()
                raise Failed(f"it was not suspended: {[e['text'] for e in events['events']]}")
            return (shown or {}).get("state") == "suspended" if what == "suspend" else not shown

        self._wait(is_done, f"its grant to {what}")
        return time.monotonic() - began

    def said_of_clocks(self) -> list[str]:
        """What the ranks' errors have of PyTorch's clocks, a line of each."""
        found = [CLOCKS.search(name.read_text()) for name in sorted(self.folder.glob("rank-*"))]
        return [match[0][:240] for match in found if match]


def losses_of(jobs: Jobs, channel: str, rounds: int, took: dict[str, list[float]]) -> list[float]:
    """Of a job that is suspended so often; raises Failed."""
    from checkpoint_bench import Failed

    with jobs.begun(channel, PATIENCE_SECONDS) as job:
        marks = [STEPS * (n + 1) // (rounds + 2) for n in range(rounds)]
        while "losses" not in (said := job.answer(PATIENCE_SECONDS)):
            if not marks or said["step"] < marks[0]:
                continue
            marks.pop(0)
            took["suspended_job_s"].append(jobs.order("suspend"))
            time.sleep(CALM_SECONDS)
            while job.has_answered():
                said = job.answer()
                if "losses" in said:
                    raise Failed("it was done before it was suspended")
            time.sleep(CALM_SECONDS)
            if job.has_answered():
                raise Failed("it went on while it was suspended")
            took["resumed_job_s"].append(jobs.order("resume"))
        if marks or not said["right"]:
            raise Failed(f"{len(marks)} suspensions too few, all-reduce right: {said['right']}")
        job.process.wait(PATIENCE_SECONDS)
    losses: list[float] = said["losses"]
    return losses


def clock(jobs: Jobs, channel: str, seconds: float, alone: list[float]) -> None:
    """Prints what becomes of a job that is suspended for twice as long as its clocks allow."""
    from checkpoint_bench import Failed

    beats = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(int(seconds))}
    with jobs.begun(channel, seconds, **beats) as job:
        while job.answer(PATIENCE_SECONDS).get("step", 0) < STEPS // 4:
            pass
        jobs.order("suspend")
        began, ended = time.monotonic(), ""
        while not ended and time.monotonic() < began + 2 * seconds:
            time.sleep(0.1)
            if job.process.poll() is not None:
                ended = f"ended {time.monotonic() - began:.1f} s after it was suspended"
        if not ended:
            jobs.order("resume")
            try:
                while "losses" not in (said := job.answer(PATIENCE_SECONDS)):
                    pass
                ended = "went on" + ("" if said["losses"] == alone else " WITH OTHER LOSSES")
            except Failed as error:
                ended = f"ended behind it: {str(error)[-200:]}"
    print(f"{channel}: clocks of {seconds:g} s, suspended for {2 * seconds:g} s: {ended}")
    for line in jobs.said_of_clocks():
        print(f"  {line}", flush=True)
    if "OTHER" in ended:
        raise Failed("its losses are others")


def measure(jobs: Jobs, rounds: int, clock_seconds: float) -> list[Any]:
    """Everything; raises Failed where losses are others, or something is left."""
    from checkpoint_bench import Failed
    from measurements import Run
    from run_workloads import torch_version

    run_of = Run(
        "python3 tests/gpu/suspended_job.py", gpu=True, rounds=rounds, software=torch_version()
    )
    kept = []
    for channel in ("shm", "tcp"):
        took: dict[str, list[float]] = {"suspended_job_s": [], "resumed_job_s": []}
        alone = losses_of(jobs, channel, 0, took)
        again = losses_of(jobs, channel, rounds, took)
        if again != alone:
            first = next(n for n, (a, b) in enumerate(zip(again, alone, strict=True)) if a != b)
            raise Failed(f"{channel}: losses are others from step {first}")
        medians = {name: statistics.median(each) for name, each in took.items()}
        print(f"{channel}: suspended {rounds} times, the losses of {STEPS} steps alone: {medians}")
        for name, each in took.items():
            kept.append(run_of.record(name, medians[name], "s", channel=channel, values=each))
        clock(jobs, channel, clock_seconds, alone)
    return kept


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=10, help="of suspending and resuming")
    parser.add_argument("--clock-seconds", type=float, default=15, help="that PyTorch's allow")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["NCCL_NVLS_ENABLE"] = "0"  # of workers, too
    if options.job:
        return job_main(float(options.job[0]), options.job[1])
    from checkpoint_bench import Failed
    from control_plane import running
    from measurements import write_measured
    from two_servers import gpus, on_cards

    if len(gpus()) < RANKS:
        print("skipped: this machine shows no two NVIDIA GPUs")
        return 0
    kept: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="sluice-job-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with running(
            folder,
            suspend={"swap_mib": SWAP_MIB, "ready_mib": READY_MIB},
            **on_cards(gpus()[:RANKS]),
        ) as plane:
            try:
                kept = measure(Jobs(plane, folder), options.rounds, options.clock_seconds)
            except Failed as failed:
                print(f"failed: {failed}\n{plane.log('server')[-1500:]}")
                return 1
    print(f"figures: {write_measured('suspended_job', kept)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
