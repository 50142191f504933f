# SPDX-License-Identifier: Apache-2.0
"""Sessions that run at once through NVIDIA's MPS: their shares, and what an end does to others.

    python3 tests/gpu/at_once.py [shares] [totals] [ends]    # as root

Through the real server, with kernels of neighbours.py. Each line is a thing that must hold, and
what was found; exit status 0 only if all hold. docs/decisions/0005 has what MPS does by itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import concurrent_probe
import neighbours
from run import Server, find_driver

ILLEGAL_ADDRESS = 700
failures: list[str] = []


def must(what: str, holds: bool, *found: object) -> None:
    """One line."""
    if not holds:
        failures.append(what)
    shown = " | ".join(str(f) for f in found)
    print(f"{'ok' if holds else 'FAILED':6s} {what:58s} | {shown}", flush=True)


class Rig:
    """Programs on the server, by project and share."""

    def __init__(self, server: Server, rate: float) -> None:
        self._server, self.rate = server, rate
        self._environment = {**os.environ, **server.environments["shm"]}
        del self._environment["SLUICE_STATS"]

    def start(self, percent: int, project: str = "default", **task: Any) -> subprocess.Popen[bytes]:
        """A program that does a task of concurrent_probe.be, at once with its project's others."""
        asked = {"rate": self.rate, "us": 100, "seconds": 4, **task}
        own = {"SLUICE_SHARING": "concurrent", "SLUICE_RATIO": str(percent)}
        return subprocess.Popen(
            [sys.executable, concurrent_probe.__file__, "--be", json.dumps(asked)],
            env={**self._environment, **own, "SLUICE_PROJECT": project},
            stdout=subprocess.PIPE,
        )

    def did(self, percent: int, **task: Any) -> dict[str, Any]:
        """What one alone has done."""
        said: dict[str, Any] = concurrent_probe.told(self.start(percent, **task))
        return said

    def workers(self) -> list[int]:
        """The processes of sessions that run at once, oldest first."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words = path.read_bytes().split(b"\0")
            if words[0].endswith(b"sluice-worker") and b"--concurrent" in words:
                found.append(int(path.parent.name))
        return sorted(found)

    def log(self) -> str:
        """What the server and its sessions have written."""
        return "\n".join(p.read_text() for p in (self._server.folder / "log").rglob("*.log"))


def shares(rig: Rig) -> None:
    """Multiprocessors by percentage, alone and together."""
    whole = rig.did(100)
    must("the whole card is a client of MPS", whole.get("mps") == 1, whole)
    for percent in (50, 25, 8):
        said = rig.did(percent)
        least = whole["sms"] * percent / 100
        must(f"{percent} % has its multiprocessors", said["sms"] >= least, said["sms"], least)
    # so many blocks that a last round of them, which fills no part of the card, is little
    fine = {"us": 10, "blocks": 20 * neighbours.WHOLE_CARD}
    alone = rig.did(100, **fine)["done"]
    pair = [rig.start(p, **fine) for p in (25, 75)]
    small, large = (concurrent_probe.told(p)["done"] for p in pair)
    part, total = 100 * small / (small + large), (small + large) / alone
    must("25 and 75 together have 25 and 75", abs(part - 25) < 2, round(part, 1))
    must("together they do nine tenths of one alone", total > 0.9, round(total, 3))


def totals(rig: Rig) -> None:
    """Eight with small kernels, each waited for, at once and by the driver's slicing."""
    task = {"us": 20, "corner": 1, "each": 1, "seconds": 3}
    at_once = [rig.start(12, **task) for _ in range(8)]
    ours = sum(concurrent_probe.told(p)["done"] for p in at_once)
    native = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "CUDA_MPS"))}
    be = [sys.executable, concurrent_probe.__file__, "--be"]
    running = [
        subprocess.Popen(
            [*be, json.dumps({"rate": rig.rate, **task})],
            env=native,
            stdout=subprocess.PIPE,
        )
        for _ in range(8)
    ]
    driver = sum(concurrent_probe.told(p)["done"] for p in running)
    must(
        "eight small: 2.2 times the driver's own", ours > 2.2 * driver, ours, driver, ours / driver
    )


def ends(rig: Rig) -> None:
    """What becomes of a neighbour and of another project when a session ends badly."""
    slow = {"us": 400_000, "each": 3, "seconds": 9}
    long = {"seconds": 9}

    def beside(name: str, task: dict[str, Any], act: Any, survives: bool) -> None:
        before = set(rig.workers())
        victim = rig.start(25, **task)
        time.sleep(2)
        of_victim = sorted(set(rig.workers()) - before)
        neighbour, stranger = rig.start(25, **long), rig.start(25, "other", **long)
        time.sleep(2.5)
        act(victim, of_victim)
        it, near, far = (concurrent_probe.told(p) for p in (victim, neighbour, stranger))
        fine = not near.get("error") and near.get("done", 0) > 0
        must(f"{name}: its neighbour {'goes on' if survives else 'ends'}", fine == survives, near)
        must(f"{name}: another project goes on", not far.get("error"), far.get("longest_s"))
        print(f"       it: {it}")
        new = rig.did(25)
        must(f"{name}: the next one runs", not new.get("error") and new.get("mps") == 1, new)

    beside("its program killed with 1.2 s of work", slow, lambda p, _: p.kill(), True)
    beside("a fault", {**long, "fault": 1}, lambda _, __: None, False)

    def kill_worker(_: Any, workers: list[int]) -> None:
        for pid in workers[:1]:
            os.kill(pid, signal.SIGKILL)

    beside("its worker killed with work", slow, kill_worker, False)
    must("the reason is told", "shares NVIDIA's MPS server" in rig.log())


PARTS = {"shares": shares, "totals": totals, "ends": ends}


def main() -> int:
    """All of it."""
    driver = find_driver()
    if not driver or os.geteuid() != 0:
        print("skipped: this machine shows no NVIDIA GPU, or this is not root")
        return 0
    rate = float(
        subprocess.run(
            [sys.executable, neighbours.__file__, "--calibrate"], stdout=subprocess.PIPE, check=True
        ).stdout
    )
    with tempfile.TemporaryDirectory(prefix="sluice-concurrent-") as name:
        Path(name).chmod(0o755)
        server = Server(driver, Path(name), memory_mib=1024, uid=None)
        rig = Rig(server, rate)
        try:
            for part in sys.argv[1:] or PARTS:
                PARTS[part](rig)
        finally:
            server.close()
            for text in rig.log().splitlines():
                if " ERROR " in text or " WARNING " in text or "MPS" in text:
                    print(text[:300])
    print(f"{len(failures)} failed" if failures else "all hold")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
