# SPDX-License-Identifier: Apache-2.0
"""A control plane over software GPUs that its processes share, and programs that it suspends there.

For the tests of sessions whose contexts leave their GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from control_plane import ControlPlane, wait_for

from .softgpu_card import SharedCard
from .suspended import PIECE_MIB, SLAB_MIB, Subject, grant_of, start_subject

GPU_MIB, CONTEXT_MIB, LEFT_MIB, VGPU_MIB = 256, 32, 4, 64
MOVED_MIB = SLAB_MIB + 5 * PIECE_MIB


class Rig:
    """A control plane over a shared card, and the programs on it."""

    def __init__(self, plane: ControlPlane, card: SharedCard) -> None:
        self.plane, self.card = plane, card
        self.begun: list[Subject] = []

    def begin(self, channel: str = "shm", **more: Any) -> Subject:
        """A program with memory of every kind."""
        more.setdefault("SLUICE_GMEM", str(VGPU_MIB))
        self.begun.append(start_subject(self.plane, channel, **more))
        return self.begun[-1]

    def beside(self) -> Subject:
        """A program that uses the card without the pool."""
        self.begun.append(self.card.beside(self.plane.folder))
        return self.begun[-1]

    def end_programs(self) -> None:
        for subject in self.begun:
            subject.kill()
        self.begun.clear()
        wait_for(lambda: not self.plane.grants(), message="what was begun to be gone")

    def order(self, subject: Subject, what: str = "suspend") -> str:
        """The grant's id."""
        grant: str = grant_of(self.plane, subject.pid)["id"]
        ordered = self.plane.rest.post(f"/grants/{grant}/{what}")
        assert ordered.status_code == 202, ordered.text
        return grant

    def suspension(self, grant: str) -> dict[str, Any]:
        """{}: it runs."""
        shown = self.plane.rest.get(f"/grants/{grant}").json()["suspension"]
        return dict(shown or {})

    def context(self, grant: str) -> str | None:
        return self.suspension(grant).get("context")

    def take_off(self, subject: Subject) -> str:
        """Suspends it, and waits until its context has left; the grant's id."""
        grant = self.order(subject)
        wait_for(
            lambda: self.context(grant) == "off",
            message=lambda: f"its context to leave: {self.suspension(grant)}",
        )
        return grant

    def stays(self, subject: Subject) -> dict[str, Any]:
        """Suspends it; what is shown once it is decided that its context stays."""
        grant = self.order(subject)
        wait_for(lambda: self.context(grant) == "stays", message="its context to stay")
        return self.suspension(grant)

    def resume(self, grant: str) -> None:
        ordered = self.plane.rest.post(f"/grants/{grant}/resume")
        assert ordered.status_code == 202, ordered.text
        wait_for(lambda: not self.suspension(grant), message="it to go on")

    def worker_of(self, subject: Subject) -> int:
        [session] = [s for s in self.plane.sessions() if s["client_pid"] == subject.pid]
        [pid] = [
            record["pid"]
            for record in self.plane.worker_records()
            if record["session"] and record["session"]["id"] == session["id"]
        ]
        return int(pid)

    def granted_mib(self, number: int = 0) -> int:
        """What is booked of a GPU."""
        gpus = self.plane.rest.get("/gpus").json()["gpus"]
        return int(gpus[number]["granted_mib"])


def is_right(subject: Subject) -> None:
    """Everything that it has is as it was."""
    assert subject.ask("check") == {"wrong": 0}
    assert subject.ask("again") == {"wrong": 0}, "the graph, over memory that was cleared"


def helpers_of(plane: ControlPlane) -> list[int]:
    """The processes that ask the driver, of a plane's server."""
    assert plane.server
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        parent = int(stat[stat.rindex(")") + 2 :].split()[1])
        if b"checkpoints/driver_process.py" in command and parent == plane.server.pid:
            found.append(int(entry.name))
    return found
