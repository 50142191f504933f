# SPDX-License-Identifier: Apache-2.0
"""A process with vGPUs of two nodes that does what a test tells it, a line at a time.

Used by test_node_links.py (programs/copier.py) and test_collectives_of_nodes.py
(programs/collectives.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from control_plane import ControlPlane

PROGRAMS = Path(__file__).resolve().parent / "programs"


def start(plane: ControlPlane, *command: str | Path, **more: str) -> subprocess.Popen[str]:
    """A program with vGPUs of both nodes."""
    wide = {"SLUICE_CHANNEL": "tcp", "SLUICE_VGPU": "2", "SLUICE_CROSS_NODE": "1"}
    return subprocess.Popen(
        command,
        env=plane.program_environment(**{**wide, "SLUICE_GMEM": "256", **more}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Told:
    """It, once its devices are there."""

    def __init__(self, plane: ControlPlane, program: str, devices: int = 2, **more: str) -> None:
        more = {"SLUICE_VGPU": str(devices), **more}
        self.process = start(plane, sys.executable, PROGRAMS / program, **more)
        if (said := self.read()) != str(devices):
            raise AssertionError(f"{program} said {said!r}: {self.close()}")

    def do(self, what: str) -> str:
        """The status of the first call that failed, or 0; the programs say what they know."""
        self.ask(what)
        return self.read()

    def ask(self, what: str) -> None:
        """The same, whose answer is read later."""
        assert self.process.stdin
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def read(self) -> str:
        """The next line that it says."""
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def close(self) -> str:
        """Ends it in good order; returns what it said on standard error."""
        return self.process.communicate(timeout=60)[1]

    def kill(self) -> None:
        """Ends it as the kernel does."""
        self.process.kill()
        self.process.communicate(timeout=60)


def all_given_back(first: ControlPlane, second: ControlPlane) -> bool:
    """Whether nothing of any session is left on either node, or in the pool's books."""
    if first.grants() or first.sessions():
        return False
    booked = any(gpu["granted_mib"] for gpu in first.rest.get("/gpus").json()["gpus"])
    return not (booked or first.session_worker_pids() or second.session_worker_pids())
