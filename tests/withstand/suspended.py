# SPDX-License-Identifier: Apache-2.0
"""A program with memory of every kind on a control plane that suspends: for test_suspension.py.

The program is tests/gpu/checkpoint_subject.py, which fills memory by a kernel and counts the words
that are wrong. Suspending and resuming goes by the command `sluice`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from control_plane import PYTHON_PATH, ControlPlane, wait_for
from forks import run_command

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "tests" / "gpu"))

from checkpoint_bench import SUBJECT, Failed, Told  # noqa: E402

from .prompted import Prompted, client_environment  # noqa: E402

__all__ = [
    "Failed",
    "Subject",
    "Told",
    "grant_of",
    "is_right",
    "memory_of",
    "refused",
    "resume",
    "sluice",
    "start_subject",
    "suspend",
    "suspension",
]

SLAB_MIB, PIECE_MIB = 16, 2
#: That moves of a program which is filled: an allocation, the pool, the graph, a word of its own.
MOVED_MIB = SLAB_MIB + 5 * PIECE_MIB
Subject = Told


def start_subject(
    plane: ControlPlane,
    channel: str = "shm",
    *,
    begun: bool = True,
    filled: bool = True,
    program: Path = SUBJECT,
    **more: str,
) -> Told:
    """The program; `begun`: with a session; `filled`: with slabs, a pool, a graph and events.

    `program`: one that is a subject, too.
    """
    told = Told([sys.executable, str(program)], client_environment(plane, channel, **more))
    if begun:
        told.ask("begin")
    if begun and filled:
        told.ask("slab", mib=SLAB_MIB, piece_mib=PIECE_MIB)
        told.ask("plain", mib=PIECE_MIB)
        told.ask("pool", mib=PIECE_MIB)
        told.ask("events")
        told.ask("graph", mib=PIECE_MIB)
    return told


def sluice(plane: ControlPlane, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, as an operator gives it."""
    address = f"127.0.0.1:{plane.rest_port}"
    variables = {"PYTHONPATH": str(PYTHON_PATH), "SLUICE_CONTROLLER": address}
    return run_command(*words, environment={**os.environ, **variables})


def grant_of(plane: ControlPlane, pid: int) -> dict[str, Any]:
    """The grant of a program's session."""
    [session] = [s for s in plane.sessions() if s["client_pid"] == pid]
    grant: dict[str, Any] = plane.rest.get(f"/grants/{session['grant_id']}").json()
    return grant


def memory_of(plane: ControlPlane, subject: Subject) -> dict[str, Any]:
    """What is known of where its grant's memory is."""
    grant = grant_of(plane, subject.pid)["id"]
    [vgpu] = [v for v in plane.rest.get("/vgpus").json()["vgpus"] if v["grant_id"] == grant]
    return dict(vgpu)


def suspension(plane: ControlPlane, grant_id: str) -> dict[str, Any] | None:
    """How a grant stands; None: it runs."""
    found: dict[str, Any] | None = plane.rest.get(f"/grants/{grant_id}").json()["suspension"]
    return found


def order_suspension(plane: ControlPlane, grant: str) -> None:
    """As one who is told that a session of it is being opened, and to try again."""

    def is_ordered() -> bool:
        ordered = plane.rest.post(f"/grants/{grant}/suspend")
        being_opened = ordered.status_code == 409 and "is being opened" in ordered.text
        assert being_opened or ordered.status_code == 202, ordered.text
        return not being_opened

    wait_for(is_ordered, message="its sessions to be opened")


def suspend(plane: ControlPlane, subject: Subject) -> str:
    """Until it is; the grant's id."""
    grant: str = grant_of(plane, subject.pid)["id"]
    order_suspension(plane, grant)

    def is_suspended() -> bool:
        shown = suspension(plane, grant)
        assert shown, why_not(plane, grant)
        return bool(shown["state"] == "suspended")

    wait_for(is_suspended, message="it to be suspended")
    return grant


def why_not(plane: ControlPlane, grant: str) -> str:
    """Why it could not be suspended; "": nothing was in the way."""
    answer = plane.rest.get("/events", params={"subject": grant, "kind": "grant.not_suspended"})
    return "; ".join(event["text"] for event in answer.json()["events"])


def refused(plane: ControlPlane, subject: Subject | Prompted) -> str:
    """Why it is not suspended: it goes on.

    What it has in the way may be on its way to the GPU yet: then it is suspended, and once more.
    """
    grant: str = grant_of(plane, subject.pid)["id"]
    order_suspension(plane, grant)

    def reason() -> str:
        shown = suspension(plane, grant)
        if shown and shown["state"] == "suspended":
            resume(plane, grant)
            order_suspension(plane, grant)
        return "" if shown else why_not(plane, grant)

    return str(wait_for(reason, message="it to be refused"))


def resume(plane: ControlPlane, grant: str) -> None:
    """Until it goes on."""
    ordered = plane.rest.post(f"/grants/{grant}/resume")
    assert ordered.status_code == 202, ordered.text
    wait_for(lambda: suspension(plane, grant) is None, message="it to go on")


def is_right(subject: Subject) -> None:
    """Everything that it has is as it was."""
    assert subject.ask("check") == {"wrong": 0}
    assert subject.ask("again") == {"wrong": 0}, "the graph, over memory that was cleared"
