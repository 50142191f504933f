# SPDX-License-Identifier: Apache-2.0
"""What is left of sessions when the network swallows everything. Run by test_silent_network.py.

    unshare --net python silence.py FOLDER [--until-workers-end]

In a network of its own, whose loopback is taken down: what is sent is lost and nobody is told, as
with a cable pulled somewhere between two switches. Prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "harness")]

from control_plane import running, wait_for  # noqa: E402
from holder import Holder  # noqa: E402
from relay_host import relay_host  # noqa: E402

MOST_SECONDS = 150.0
WORKERS_SECONDS = 240.0
SERVER = {"network_grace_seconds": 20}
POOL = {"node_timeout_seconds": 3}  # the node is lost meanwhile


def link(state: str) -> None:
    """Takes the loopback up or down."""
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


def alive(workers: list[int]) -> list[int]:
    """Those that have not ended: the pool cannot be asked while the network is down."""
    found = []
    for pid in workers:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.append(pid)
    return found


def measure(folder: Path, *, until_workers_end: bool) -> dict[str, Any]:
    """Seconds from the silence to each end, and what was said of it."""
    link("up")
    found: dict[str, Any] = {}
    with (
        running(folder, pool=POOL, server=SERVER) as plane,
        relay_host(plane, folder / "b") as host,
    ):
        programs = {
            "tcp": Holder(plane.program_environment(SLUICE_CHANNEL="tcp")),
            "relay": Holder(host.environment()),
        }
        for program in programs.values():
            program.say()
            assert program.answer(60) == 0
        if until_workers_end:
            before = set(plane.session_worker_pids())
            programs["answer"] = Holder(plane.program_environment(SLUICE_CHANNEL="tcp"))
            [slow] = set(plane.session_worker_pids()) - before
            os.kill(slow, signal.SIGSTOP)
            programs["answer"].say()
            time.sleep(1)  # it has what it is asked for, and answers into the void
        workers = plane.session_worker_pids()
        [relay] = host.relays()
        link("down")
        began = time.monotonic()
        if until_workers_end:
            os.kill(slow, signal.SIGCONT)
        for name in ("tcp", "relay"):
            programs[name].say()
        for name, program in programs.items():
            result = program.answer(began + MOST_SECONDS - time.monotonic())
            found[name] = {"result": result, "seconds": time.monotonic() - began}
        wait_for(lambda: not Path(f"/proc/{relay['pid']}").exists(), message="the relay to end")
        if until_workers_end:
            left = began + WORKERS_SECONDS - time.monotonic()
            wait_for(lambda: not alive(workers), left, "the workers to end")
            found["workers_seconds"] = time.monotonic() - began
        link("up")
        began = time.monotonic()
        wait_for(lambda: plane.node_state() == "up", message="the servers to find their controller")
        found["node_up_seconds"] = time.monotonic() - began
        for name, program in programs.items():
            program.say()
            found[name]["later"] = program.answer(60)
            found[name]["said"] = program.kill()
        if until_workers_end:
            wait_for(lambda: not plane.grants(), message="the grants to return")
        logs = (plane.folder / "log" / "session").glob("*.log")
        found["logs"] = [log.read_text().splitlines()[-1] for log in logs]
    return found


if __name__ == "__main__":
    told = measure(Path(sys.argv[1]), until_workers_end="--until-workers-end" in sys.argv)
    print(json.dumps(told))
