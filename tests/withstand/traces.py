# SPDX-License-Identifier: Apache-2.0
"""What a session leaves on a host while it lives, and whether all of it is gone.

Used by every test of an end. Taken while the session runs; `wait_gone` looks at the kernel
(processes, mappings, descriptors, cgroups, /dev/shm) and at REST, and says how long the last trace
took.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for
from relay_host import RelayHost

#: Within five seconds of an end nothing may remain. A loaded machine gets this much.
LIMIT = float(os.environ.get("SLUICE_WITHSTAND_LIMIT", "60"))
PROMISED = 5.0
CGROUPS = tuple(Path("/sys/fs/cgroup") / kind / "sluice" for kind in ("", "memory", "pids"))


def start_time(pid: int) -> str:
    """Tells two processes of one number apart; "" when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat[stat.rindex(")") + 2 :].split()
    return "" if fields[0] == "Z" else fields[19]


def shared_files(pid: int) -> set[str]:
    """The files in /dev/shm that a process maps."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split(None, 5)[5] for line in lines if "/dev/shm/" in line}


def holders_of(name: str) -> Iterator[str]:
    """Yields the processes that map a memory file of this name or have it open."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(name in line for line in (process / "maps").open()):
                yield f"process {process.name} maps {name}"
            for descriptor in (process / "fd").iterdir():
                if name in str(descriptor.readlink()):
                    yield f"process {process.name} has {name} open"
        except OSError:
            continue


def wait_nothing_left(plane: ControlPlane, host: RelayHost | None = None) -> None:
    """No session has left anything, on the host with the GPU or the one that relays.

    A closed socket ends a session: what else would comes later than LIMIT (silent_seconds).
    """
    wait_for(lambda: not plane.grants(), LIMIT, "the grant to return")
    wait_for(lambda: not plane.session_worker_pids(), LIMIT, "the worker to end")
    wait_for(lambda: host is None or not host.relays(), LIMIT, "the relay to end")


@dataclass
class Traces:
    """The sessions that run when it is made."""

    plane: ControlPlane
    workers: dict[str, tuple[int, str]] = field(default_factory=dict)
    grants: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    memory_names: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, plane: ControlPlane, count: int = 1) -> Traces:
        """Takes note of what runs; fails the test where that are not `count` sessions."""
        found = cls(plane)
        for record in plane.worker_records():
            if record["session"]:
                found.add(record)
        assert len(found.workers) == count, found
        assert count == 0 or found.left(), "a running session leaves traces"
        return found

    def add(self, record: dict[str, Any]) -> None:
        self.workers[record["id"]] = (record["pid"], start_time(record["pid"]))
        self.grants.add(record["session"]["grant_id"])
        self.sessions.add(record["session"]["id"])
        asker = record["session"]["asker"]
        if asker["channel"] == "shm":
            self.memory_names.add(f"memfd:sluice-{asker['pid']} ")
        if asker["channel"] != "ivshmem":
            # a guest's region belongs to its domain; a process of this host has nothing there
            self.files |= shared_files(record["pid"])

    @property
    def worker(self) -> int:
        """The pid of the one worker."""
        [(pid, _)] = self.workers.values()
        return pid

    def left(self) -> list[str]:
        """Names every trace that is still there."""
        found = [
            f"worker process {pid}"
            for pid, started in self.workers.values()
            if start_time(pid) == started
        ]
        folder = self.plane.folder / "run" / "workers"
        found += [str(p) for p in folder.iterdir() if p.stem in self.workers]
        found += [str(g / w) for g in CGROUPS for w in self.workers if (g / w).exists()]
        found += [h for name in self.memory_names for h in holders_of(name)]
        found += [name for name in self.files if Path(name).exists()]
        found += [f"grant {g['id']}" for g in self.plane.grants() if g["id"] in self.grants]
        found += [f"session {s['id']}" for s in self.plane.sessions() if s["id"] in self.sessions]
        return found

    def wait_gone(self, what: str, began: float) -> float:
        """Waits until nothing is left; returns and prints the seconds since `began`."""
        while left := self.left():
            if time.monotonic() - began > LIMIT:
                pytest.fail(f"{what}: still there after {LIMIT:g} s: {'; '.join(left)}")
            time.sleep(0.02)
        seconds = time.monotonic() - began
        verdict = "" if seconds < PROMISED else f" (more than the promised {PROMISED:g} s)"
        print(f"{what}: nothing left after {seconds:.2f} s{verdict}")
        assert self.free_again(), self.plane.rest.get("/gpus").json()
        return seconds

    def free_again(self) -> bool:
        """Whether the pool's books show no more than the grants that are still held."""
        held = sum(v["memory_mib"] for g in self.plane.grants() for v in g["vgpus"])
        booked = sum(int(g["granted_mib"]) for g in self.plane.rest.get("/gpus").json()["gpus"])
        return booked == 0 if held == 0 else booked >= held
