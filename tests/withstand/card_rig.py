# SPDX-License-Identifier: Apache-2.0
"""A control plane over software GPUs that its processes share, and programs that it suspends there.

For the tests of sessions whose contexts leave their GPU. Rigs starts each that a module needs once,
by its settings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from child_processes import children_running
from control_plane import ControlPlane, running, wait_for
from faulty_driver import make_faulty_driver

from .at_work import worker_of
from .softgpu_card import SharedCard, shared_card
from .suspended import PIECE_MIB, SLAB_MIB, Subject, grant_of, start_subject

GPU_MIB, CONTEXT_MIB, LEFT_MIB, VGPU_MIB = 256, 32, 4, 64
MOVED_MIB = SLAB_MIB + 5 * PIECE_MIB


OpenRig = Callable[..., "Rig"]


class Rig:
    """A control plane over a shared card, and the programs on it."""

    def __init__(self, plane: ControlPlane, card: SharedCard, nvml: Path | None = None) -> None:
        """`nvml`: what its server's NVML goes by (tests/server/fake_nvml_events.c)."""
        self.plane, self.card, self.nvml = plane, card, nvml
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

    def hog(self, but_mib: int) -> Subject:
        """One of those, which takes all of the card that is free but so much.

        Once the worker that waits for the next session has its part.
        """
        wait_for(self._has_waiting_worker, message="a worker to wait")
        one = self.beside()
        one.ask("most", but_mib=but_mib)
        return one

    def _has_waiting_worker(self) -> bool:
        waiting = [each["pid"] for each in self.plane.worker_records() if not each["session"]]
        return any(self.card.taken_mib(pid) >= CONTEXT_MIB for pid in waiting)

    def says_free(self, mib: int, gpu: int = 0) -> None:
        """Its NVML, from now on."""
        assert self.nvml
        with self.nvml.open("a") as lines:
            lines.write(f"free {gpu} {mib}\n")

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

    def resume_at_last(self, grant: str) -> None:
        """Until it goes on, however often that fails."""

        def runs() -> bool:
            if not self.suspension(grant):
                return True
            self.plane.rest.post(f"/grants/{grant}/resume")  # 409: it is about to
            time.sleep(0.1)
            return False

        wait_for(runs, message=lambda: f"it to go on: {self.suspension(grant)}")

    def events(self, grant: str, kind: str) -> list[str]:
        """Their texts."""
        about = {"subject": grant, "kind": kind}
        found = self.plane.rest.get("/events", params=about).json()
        return [str(event["text"]) for event in found["events"]]

    def worker_of(self, subject: Subject) -> int:
        return worker_of(self.plane, subject)

    def granted_mib(self, number: int = 0) -> int:
        """What is booked of a GPU."""
        gpus = self.plane.rest.get("/gpus").json()["gpus"]
        return int(gpus[number]["granted_mib"])


@contextmanager
def rigs(folder: Callable[[str], Path], *, gpus: int = 1, **always: Any) -> Iterator[OpenRig]:
    """Rigs by their settings; each is started once. `always`: of [suspend], in all of them."""
    found: dict[str, Rig] = {}
    with ExitStack() as stack:

        def opened(
            suspend: dict[str, Any] | None = None,
            server: dict[str, Any] | None = None,
            *,
            nvml: bool = False,
            **settings: str,
        ) -> Rig:
            """`nvml`: its driver lies beside an NVML, which says what is free of each GPU."""
            key = repr((suspend, server, nvml, sorted(settings.items())))
            if key not in found:
                count = {"SLUICE_SOFTGPU_COUNT": str(gpus)} if gpus > 1 else {}
                card = stack.enter_context(
                    shared_card(GPU_MIB, CONTEXT_MIB, **{**count, **settings})
                )
                script = folder("nvml") / "lines" if nvml else None
                driver, told = {}, {}
                if script:
                    script.touch()
                    driver = {"driver": make_faulty_driver(script.parent)}
                    told = {"SLUICE_FAKE_NVML": str(script)}
                plane = running(
                    folder("pool"),
                    # on the software GPU a sandbox lets nothing be written
                    server={
                        "worker_sandbox": "false",
                        "context_overhead_mib": CONTEXT_MIB,
                        **driver,
                        **(server or {}),
                    },
                    suspend={"swap_mib": 512, "drain_seconds": 60, **always, **(suspend or {})},
                    pool={"job_linger_seconds": 1},
                    environment={**card.settings, **told},
                )
                found[key] = Rig(stack.enter_context(plane), card, script)
            return found[key]

        yield opened


def is_right(subject: Subject) -> None:
    """Everything that it has is as it was."""
    assert subject.ask("check") == {"wrong": 0}
    assert subject.ask("again") == {"wrong": 0}, "the graph, over memory that was cleared"


def helpers_of(plane: ControlPlane) -> list[int]:
    """The processes that ask the driver, of a plane's server."""
    assert plane.server
    return children_running(plane.server.pid, "checkpoints/driver_process.py", zombies=True)
