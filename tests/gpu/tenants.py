# SPDX-License-Identifier: Apache-2.0
"""Tenants of one GPU as processes: started side by side, held at a barrier, asked what they did.

Used by neighbours.py, shares.py and torch_shares.py, and where they take turns by turns.py. A
tenant is a program that prints one JSON object when it is ready to work, and then answers each line
of standard input (a JSON object: of window() with `begin` and `end`, seconds of CLOCK_MONOTONIC,
which all processes share) with another; it ends when its input does. Other lines that it prints are
not for us. Also here: what else the machine does meanwhile, as a window in which another process
starts is none to compare.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

Said = dict[str, Any]

READY_SECONDS = 180.0  # to import PyTorch, to make a model and to warm it, eight at once
LATE_SECONDS = 60.0  # behind the end of a window
END_SECONDS = 30.0
QUIET_SECONDS = 1.5  # three times what a server waits before it starts another warm worker
QUIET_CPU_SECONDS = 0.05
SETTLE_SECONDS = 30.0
WORKER = "sluice-worker"
TAIL_CHARACTERS = 1500


class TenantFailed(Exception):
    """A tenant that ended or said nothing in time; the text has the end of what it wrote."""


class Tenant:
    """One process. What it writes to standard error is shown where it fails."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._unread = b""
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def tell(self, said: Said) -> None:
        """Sends a line; raises TenantFailed where nobody reads it."""
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(said).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise self._failed(f"does not listen: {error}") from error

    def answer(self, seconds: float) -> Said:
        """The next object that it prints; raises TenantFailed."""
        assert self.process.stdout
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                line, found, rest = self._unread.partition(b"\n")
                if found:
                    self._unread = rest
                    if line.startswith(b"{"):
                        said: Said = json.loads(line)
                        return said
                    continue
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._failed(f"said nothing in {seconds:g} s")
                piece = os.read(self.process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise self._failed(f"ended with status {self.process.wait(END_SECONDS)}")
                self._unread += piece

    def end(self) -> None:
        """Ends it, by force where it does not end by itself."""
        assert self.process.stdin
        assert self.process.stdout
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._errors.close()

    def _failed(self, why: str) -> TenantFailed:
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        return TenantFailed(f"{self.name} {why}\n{text[-TAIL_CHARACTERS:]}")


class Tenants:
    """Several processes that start together; leaving the block ends them.

    >>> with Tenants() as tenants:
    ...     one = tenants.start("one", [sys.executable, "child.py"], os.environ)
    ...     tenants.wait_ready()
    ...     print(window([one], 6.0))
    """

    def __init__(self) -> None:
        self._all: list[Tenant] = []
        self._waited = 0

    def __enter__(self) -> Tenants:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for tenant in self._all:  # all at once: a driver takes a while to go
            assert tenant.process.stdin
            with contextlib.suppress(OSError):
                tenant.process.stdin.close()
        for tenant in self._all:
            tenant.end()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Tenant:
        """Starts one and does not wait for it."""
        self._all.append(Tenant(name, command, environment))
        return self._all[-1]

    def wait_ready(self, seconds: float = READY_SECONDS) -> list[Said]:
        """What those say that were started since the last time, in order; raises TenantFailed."""
        deadline = time.monotonic() + seconds
        new, self._waited = self._all[self._waited :], len(self._all)
        return [tenant.answer(max(1.0, deadline - time.monotonic())) for tenant in new]


def window(
    tenants: Sequence[Tenant], seconds: float, *, lead: float = 1.0, **task: Any
) -> list[Said]:
    """Lets them all work at once, counted from `lead` seconds from now; their answers in order."""
    begin = time.monotonic() + lead
    for tenant in tenants:
        tenant.tell({"begin": begin, "end": begin + seconds, **task})
    return [tenant.answer(lead + seconds + LATE_SECONDS) for tenant in tenants]


def tasks() -> Iterator[Said]:
    """In a tenant: what it is told, until its input ends."""
    for line in sys.stdin:
        yield json.loads(line)


def say(said: Said) -> None:
    """In a tenant: that it is ready, or what it did."""
    print(json.dumps(said), flush=True)


@dataclass(frozen=True)
class Process:
    """Another process of this machine at one moment."""

    name: str
    cpu_seconds: float


def processes() -> dict[int, Process]:
    """All of this machine, by id."""
    found = {}
    ticks = os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it may have gone
            before, _, rest = path.read_text(errors="replace").rpartition(")")
            spent = rest.split()[11:13]
            name = before.partition("(")[2]
            found[int(path.parent.name)] = Process(name, sum(map(int, spent)) / ticks)
    return found


def workers(of: Mapping[int, Process]) -> dict[int, Process]:
    """Those that are workers of Sluice."""
    return {pid: process for pid, process in of.items() if process.name == WORKER}


def settled(seconds: float = SETTLE_SECONDS) -> bool:
    """Waits until no worker starts or computes any more; False where that does not come.

    A server replaces a warm worker half a second after it was taken, and a driver that starts
    takes its time on the GPU.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        before = workers(processes())
        time.sleep(QUIET_SECONDS)
        now = workers(processes())
        spent = [now[pid].cpu_seconds - before[pid].cpu_seconds for pid in now if pid in before]
        if now.keys() == before.keys() and max(spent, default=0.0) < QUIET_CPU_SECONDS:
            return True
    return False


@contextlib.contextmanager
def undisturbed(show: bool = False) -> Iterator[None]:
    """A block that begins when workers have settled; `show` prints what else ran in it."""
    if not settled():
        print(f"a worker starts or computes even after {SETTLE_SECONDS:g} s", flush=True)
    before = processes()
    yield
    if show:
        print(f"  meanwhile: {meanwhile(before, processes())}", flush=True)


def meanwhile(before: Mapping[int, Process], now: Mapping[int, Process], most: int = 6) -> str:
    """What ran between two moments: the load, workers that began or ended, who used the CPU."""
    spent = []
    for pid, process in now.items():
        then = before.get(pid)
        spent.append((process.cpu_seconds - (then.cpu_seconds if then else 0.0), pid, process.name))
    busy = [f"{name} {cpu:.1f} s" for cpu, _, name in sorted(spent, reverse=True) if cpu >= 0.1]
    began = len(workers(now).keys() - workers(before).keys())
    ended = len(workers(before).keys() - workers(now).keys())
    load = " ".join(f"{one:.2f}" for one in os.getloadavg())
    return (
        f"load {load}; {len(workers(now))} workers, {began} began and {ended} ended meanwhile; "
        f"CPU: {', '.join(busy[:most]) or 'nobody'}"
    )
