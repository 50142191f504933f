# SPDX-License-Identifier: Apache-2.0
"""A GPU fails from which suspended sessions are off: they stay so, and go on on another.

On two software GPUs that have the ways of cards, with an NVML that reports what a test writes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from control_plane import wait_for

from .card_rig import OpenRig, Rig, is_right, rigs
from .suspended import SUBJECT, Failed, Subject, grant_of

PROGRAM = SUBJECT.with_name("moving_subject.py")
UUID = "GPU-536c7569-6365-4000-8073-6f66746770{:02x}"


@pytest.fixture(scope="module")
def open_rig(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenRig]:
    """Rigs of two GPUs."""
    with rigs(tmp_path_factory.mktemp, gpus=2, movable="on") as opened:
        yield opened


def begin(rig: Rig) -> tuple[Subject, str]:
    subject = rig.begin(program=PROGRAM)
    return subject, grant_of(rig.plane, subject.pid)["id"]


def gpu_of(rig: Rig, grant: str) -> str:
    [vgpu] = rig.plane.rest.get(f"/grants/{grant}").json()["vgpus"]
    return str(vgpu["gpu"]).rpartition(":")[2]


def health(rig: Rig, uuid: str) -> str:
    return str(rig.plane.rest.get(f"/gpus/{uuid}").json()["health"])


def fails(rig: Rig, number: int) -> None:
    wait_for(lambda: "watching GPUs" in rig.plane.log("server"), message="the watch to begin")
    assert rig.nvml
    with rig.nvml.open("a") as lines:
        lines.write(f"xid {number} 79\n")
    wait_for(lambda: health(rig, UUID.format(number)) == "fault", message="the GPU to fail")


def clear(rig: Rig, number: int) -> None:
    rig.plane.rest.delete(f"/gpus/{UUID.format(number)}/fault").raise_for_status()
    wait_for(lambda: health(rig, UUID.format(number)) == "ok", message="the GPU to be well")


def note(rig: Rig, grant: str) -> str:
    return str(rig.suspension(grant).get("note"))


def test_what_is_off_goes_on_on_another_and_what_runs_there_ends(open_rig: OpenRig) -> None:
    rig = open_rig(nvml=True)
    subject, grant = begin(rig)
    runs, its = begin(rig)
    assert gpu_of(rig, grant) == gpu_of(rig, its) == UUID.format(0)
    rig.take_off(subject)
    fails(rig, 0)
    wait_for(lambda: state(rig, its)["state"] == "ended", message="what runs there to end")
    assert "has failed: XID 79" in state(rig, its)["reason"]
    with pytest.raises(Failed):
        runs.ask("check")
    assert rig.suspension(grant)["state"] == "suspended"
    rig.plane.stop("server", signal.SIGKILL)
    rig.plane.start_server()
    wait_for(lambda: rig.plane.node_state() == "up", message="the server to return")
    wait_for(lambda: rig.context(grant) == "off", message=lambda: str(rig.suspension(grant)))
    rig.resume(grant)
    assert gpu_of(rig, grant) == UUID.format(1)
    is_right(subject)
    assert len(rig.events(grant, "grant.moved")) == 1
    rig.end_programs()
    clear(rig, 0)


def state(rig: Rig, grant: str) -> dict[str, Any]:
    return dict(rig.plane.rest.get(f"/grants/{grant}").json())


def test_what_cannot_move_waits_with_the_reason_until_its_gpu_is_well(open_rig: OpenRig) -> None:
    rig = open_rig({"movable": "off"}, nvml=True)
    subject, grant = begin(rig)
    rig.take_off(subject)
    fails(rig, 0)
    wait_for(lambda: "has failed (XID 79" in note(rig, grant), message=lambda: note(rig, grant))
    assert "[suspend] movable = on" in note(rig, grant)
    rig.plane.rest.post(f"/grants/{grant}/resume").raise_for_status()
    assert rig.suspension(grant)["state"] == "suspended"
    clear(rig, 0)
    wait_for(lambda: not rig.suspension(grant), message="it to go on")
    assert gpu_of(rig, grant) == UUID.format(0)
    is_right(subject)
    rig.end_programs()
