# SPDX-License-Identifier: Apache-2.0
"""Programs whose steps may meet the end of a turn, and jobs of ranks: programs/rank.cu.

NVIDIA's NCCL does not run on the software GPU. What stands in for it on the node,
programs/fake_nccl_ranks.c, moves no data and has its collectives wait for one another as NCCL's do.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, running, wait_for

from sluice.config.native_files import NativeFileMissing, find_native

from .prompted import RANK, SOURCES, Prompted
from .traces import LIMIT

ROUNDS = 5  # of a kernel, a millisecond each


class Rank(Prompted):
    """One of them."""

    program = RANK

    def work(self, how: str) -> None:
        """Begins, and has done some of it."""
        self.begin(how)
        wait_for(lambda: self.count() > 0, LIMIT, f"the first step of {how}")

    def begin(self, how: str) -> None:
        """Begins; a rank comes nowhere without its peers."""
        assert self.ask(f"work {how} {ROUNDS}") == "work: ok"

    def count(self, what: str = "worked") -> int:
        """How many steps it has had done, or calls, or modules compiled."""
        return int(self.ask(what).removeprefix(f"{what}: "))

    def goes_on(self, steps: int = 4, what: str = "worked") -> None:
        """Waits until it has had more of them done."""
        before = self.count(what)
        wait_for(lambda: self.count(what) > before + steps, LIMIT, f"more {what}")


class Job:
    """Ranks of one grant, each with a vGPU of its own, that work with collectives."""

    def __init__(self, plane: ControlPlane, percent: int, ranks: int = 2) -> None:
        token = secrets.token_hex(16)
        common = {"SLUICE_JOB": token, "SLUICE_VGPU": str(ranks), "SLUICE_RATIO": str(percent)}
        self.ranks = [
            Rank(plane, CUDA_VISIBLE_DEVICES=str(number), **common) for number in range(ranks)
        ]
        for rank in self.ranks:
            assert rank.ask("open") == "open: ok"
        name = self.ranks[0].ask("unique").removeprefix("unique: ")
        for number, rank in enumerate(self.ranks):
            rank.say(f"join {ranks} {number} {name}")
        assert [rank.answer() for rank in self.ranks] == ["join: ok"] * ranks

    def work(self, how: str = "collectives") -> None:
        """Begins, and has done some of it."""
        for rank in self.ranks:
            rank.begin(how)
        self.goes_on()

    def count(self) -> int:
        """Steps that all of its ranks have done."""
        return min(rank.count() for rank in self.ranks)

    def goes_on(self, steps: int = 4) -> None:
        """Waits until all of its ranks have had more done."""
        for rank in self.ranks:
            rank.goes_on(steps)

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()


def build_fake_nccl(folder: Path) -> None:
    """What the node finds for NCCL."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # workers have accounts of their own
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Wl,-soname,libnccl.so.2"]
    made = folder / "libnccl.so.2"
    subprocess.run(
        ["cc", *options, "-o", str(made), str(SOURCES / "fake_nccl_ranks.c")], check=True
    )


@contextlib.contextmanager
def plane_of_ranks(folder: Path, **options: Any) -> Iterator[ControlPlane]:
    """Two GPUs, and something for NCCL; skips the test where our own NCCL is not built."""
    try:
        find_native("libnccl.so.2")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    with tempfile.TemporaryDirectory() as libraries:
        build_fake_nccl(Path(libraries))
        with running(
            folder,
            # on the software GPU a sandbox lets nothing be written, as the ranks' file is
            server={"cuda_libraries": libraries, "worker_sandbox": "false"},
            pool={"job_linger_seconds": 1},
            environment={"SLUICE_SOFTGPU_COUNT": "2"},
            **options,
        ) as started:
            yield started


@contextlib.contextmanager
def jobs_of(plane: ControlPlane) -> Iterator[Callable[..., Job]]:
    """Starts jobs that work, and ends those that are left."""
    started: list[Job] = []

    def begin(percent: int = 50, how: str = "collectives") -> Job:
        one = Job(plane, percent)
        started.append(one)
        one.work(how)
        return one

    yield begin
    for one in started:
        one.kill()
    wait_for(lambda: not plane.grants(), LIMIT, "the jobs' grants to go back")
