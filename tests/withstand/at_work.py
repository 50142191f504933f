# SPDX-License-Identifier: Apache-2.0
"""Programs that have kernels done one after the other, and how many they have had done."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from control_plane import ControlPlane, wait_for
from relay_host import RelayHost

from .prompted import Prompted
from .suspended import Told
from .traces import LIMIT

Start = Callable[..., Prompted]
KERNEL_NS = 2_000_000  # how long each takes, whatever else the host's processors have to do


def working(start: Start, percent: int, channel: str = "shm", **more: str) -> Prompted:
    """A program with that share that has begun to work."""
    program = start(channel, SLUICE_RATIO=str(percent), **more)
    assert program.ask(f"work {KERNEL_NS}") == "work: ok"
    wait_for(lambda: worked(program) > 0, LIMIT, "the first kernel")
    return program


def relayed(host: RelayHost, start: Start) -> Prompted:
    """A program of a host without a GPU that has begun to work."""
    return working(start, 20, SLUICE_SERVER_SOCKET=str(host.socket_path))


def worked(program: Prompted) -> int:
    """How many kernels it has had done."""
    return int(program.ask("worked").removeprefix("worked: "))


def goes_on(program: Prompted, kernels: int = 4) -> None:
    """Waits until it has had more of them done."""
    before = worked(program)
    wait_for(lambda: worked(program) > before + kernels, LIMIT, "more work done")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def worker_of(plane: ControlPlane, program: Prompted | Told) -> int:
    """The worker of a program's session."""
    (found,) = [s for s in plane.sessions() if s["client_pid"] == program.pid]
    (record,) = [
        r for r in plane.worker_records() if r["session"] and r["session"]["id"] == found["id"]
    ]
    return int(record["pid"])
