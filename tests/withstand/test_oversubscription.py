# SPDX-License-Identifier: Apache-2.0
"""Sessions whose memory does not fit on their GPU together compute what they should, bit for bit.

All parts are real; the GPU is the software GPU, cut to 128 MiB, of which the pool promises twice as
much. That memory moved is told by the arbiter's figures, as REST shows them; no test goes by how
long something takes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for

from .at_work import stopped
from .conftest import arbiter_pid, has_another_arbiter
from .suspended import Failed, Subject, grant_of, memory_of, resume, start_subject, suspend
from .traces import Traces

GPU_MIB, FACTOR, PIECE_MIB = 128, 2.0, 4
LARGE_MIB = 88  # what each of two takes of a vGPU of 112
SUSPEND = {
    "swap_mib": 512,
    "drain_seconds": 60,
    "memory_oversubscription": FACTOR,
    "idle_seconds": 0.5,
}
GPU = {"SLUICE_SOFTGPU_MEMORY_MIB": str(GPU_MIB)}
pytestmark = pytest.mark.control_plane(suspend=SUSPEND, environment=GPU)
TIGHT_MIB = 2 * 112 - GPU_MIB + 112 + 4
LARGE = {"SLUICE_GMEM": "112", "SLUICE_RATIO": "50"}

Begin = Callable[..., Subject]
Seen = Callable[..., Traces]


@pytest.fixture
def begin(plane: ControlPlane) -> Iterator[Begin]:
    """Starts programs, and ends what a test leaves."""
    begun: list[Subject] = []

    def start_one(channel: str = "shm", mib: int = 0, **more: str) -> Subject:
        subject = start_subject(plane, channel, filled=False, **{**LARGE, **more})
        begun.append(subject)
        if mib:
            subject.ask("slab", mib=mib, piece_mib=PIECE_MIB)
        return subject

    yield start_one
    for subject in begun:
        subject.kill()


def wait_out(plane: ControlPlane, subject: Subject) -> dict[str, Any]:
    """Until some of it is in host memory."""
    wait_for(lambda: memory_of(plane, subject)["swapped_mib"], message="its memory to be out")
    return memory_of(plane, subject)


def is_right(subject: Subject) -> None:
    assert subject.ask("check") == {"wrong": 0}


def in_turns(subjects: list[Subject], times: int) -> None:
    """Each checks all of its memory so often, all at the same time."""

    def work(subject: Subject) -> None:
        for _ in range(times):
            is_right(subject)

    with ThreadPoolExecutor(len(subjects)) as threads:
        list(threads.map(work, subjects))


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_two_that_do_not_fit_together_are_right(
    plane: ControlPlane, begin: Begin, channel: str
) -> None:
    one, two = begin(channel, LARGE_MIB), begin(channel, LARGE_MIB)
    in_turns([one, two], 6)

    def moves() -> list[int]:
        return [memory_of(plane, each)["memory_moves"] or 0 for each in (one, two)]

    # who was through in his first stay does not come back
    wait_for(lambda: min(moves()) >= 1 and sum(moves()) >= 3, message=lambda: f"moves: {moves()}")
    [gpu] = plane.rest.get("/gpus").json()["gpus"]
    assert (gpu["granted_mib"], gpu["promisable_mib"]) == (224, GPU_MIB * FACTOR)
    resident = [memory_of(plane, each)["resident_mib"] for each in (one, two)]
    assert sum(resident) <= GPU_MIB


def test_those_that_fit_are_never_moved(plane: ControlPlane, begin: Begin) -> None:
    one, two = begin(mib=40), begin(mib=40)
    in_turns([one, two], 3)
    wait_for(lambda: memory_of(plane, one)["resident_mib"], message="the arbiter's word")
    for each in (one, two):
        memory = memory_of(plane, each)
        assert (memory["memory_moves"], memory["swapped_mib"]) == (0, 0)


def test_only_the_difference_is_moved(plane: ControlPlane, begin: Begin) -> None:
    one = begin(mib=LARGE_MIB)
    is_right(one)
    two = begin(mib=LARGE_MIB)
    memory = wait_out(plane, one)
    assert memory["swapped_mib"] < LARGE_MIB, "what fits beside the other stays"
    is_right(two)
    is_right(one)


@pytest.mark.chaos
def test_twenty_four_that_are_mostly_idle(plane: ControlPlane, begin: Begin) -> None:
    subjects = [begin(mib=8, SLUICE_GMEM="10", SLUICE_RATIO="4") for _ in range(24)]
    for _ in range(2):
        for subject in subjects:
            is_right(subject)
    moves = sum(memory_of(plane, each)["memory_moves"] for each in subjects)
    assert moves, "192 MiB do not fit at once"


def test_no_more_is_promised_than_the_factor_and_each_alone_allow(
    plane: ControlPlane, begin: Begin
) -> None:
    begin(mib=8)
    begin(mib=8, SLUICE_RATIO="20")
    at_once = {"SLUICE_RATIO": "10", "SLUICE_WAIT": "0"}
    with pytest.raises(Failed):  # 224 of 256 are promised
        begin(SLUICE_GMEM="40", **at_once)
    with pytest.raises(Failed):  # the GPU has 128
        begin(SLUICE_GMEM="136", **at_once)
    begin(mib=8, SLUICE_GMEM="32", **at_once)


@pytest.mark.parametrize("service", ["server", "controller", "arbiter"])
def test_a_restart_in_between_changes_nothing(
    plane: ControlPlane, begin: Begin, service: str
) -> None:
    one, two = begin(mib=LARGE_MIB), begin(mib=LARGE_MIB)
    wait_out(plane, one)
    if service == "server":
        plane.stop("server", signal.SIGKILL)
        plane.start_server()
    elif service == "controller":
        plane.stop("controller", signal.SIGKILL)
        plane.start_controller()
        wait_for(lambda: plane.node_state() == "up", message="the server to return by itself")
    else:
        before = arbiter_pid(plane)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: has_another_arbiter(plane, before), message="another arbiter")
    assert grant_of(plane, one.pid)["suspension"] is None, "to the pool it runs"
    in_turns([one, two], 4)


def test_who_begins_while_the_arbiter_stands_still_takes_nothing_of_what_others_have(
    plane: ControlPlane, begin: Begin
) -> None:
    one = begin(mib=LARGE_MIB)
    with stopped(arbiter_pid(plane)):
        two = begin()
        two.tell("slab", mib=LARGE_MIB, piece_mib=PIECE_MIB)
        with pytest.raises(Failed, match="no answer"):
            two.answer(1.5)
    two.answer()
    in_turns([one, two], 2)


def test_a_worker_is_killed_while_its_memory_moves(
    plane: ControlPlane, begin: Begin, seen: Seen
) -> None:
    """Wherever on the way the kill finds it: the other one goes on, and the next one comes in."""
    stays = begin(mib=LARGE_MIB)
    for pause in (0.0, 0.02, 0.1):
        subject = begin(mib=LARGE_MIB)
        pid = worker_of(plane, subject)
        subject.tell("check")
        stays.tell("check")
        time.sleep(pause)
        os.kill(pid, signal.SIGKILL)
        assert stays.answer() == {"wrong": 0}
        subject.kill()
        wait_for(lambda: len(plane.grants()) == 1, message="its grant to end")
    is_right(stays)
    last = begin(mib=LARGE_MIB)
    in_turns([stays, last], 3)


def worker_of(plane: ControlPlane, subject: Subject) -> int:
    [pid] = [
        record["pid"]
        for record in plane.worker_records()
        if record["session"] and record["session"]["asker"]["pid"] == subject.pid
    ]
    return int(pid)


def test_it_can_be_suspended_while_it_is_out_and_comes_back(
    plane: ControlPlane, begin: Begin
) -> None:
    one, two = begin(mib=LARGE_MIB), begin(mib=LARGE_MIB)
    wait_out(plane, one)
    grant = grant_of(plane, one.pid)["id"]
    assert plane.rest.post(f"/grants/{grant}/suspend").status_code == 202

    def state() -> str:
        shown = plane.rest.get(f"/grants/{grant}").json()["suspension"]
        return str(shown["state"]) if shown else ""

    wait_for(lambda: state() == "suspended", message="it to be suspended")
    is_right(two)
    assert plane.rest.post(f"/grants/{grant}/resume").status_code == 202
    wait_for(lambda: state() == "", message="it to be resumed")
    in_turns([one, two], 3)


@pytest.mark.control_plane(suspend={**SUSPEND, "swap_mib": 16}, environment=GPU)
def test_host_memory_bounds_what_is_promised(plane: ControlPlane, begin: Begin) -> None:
    [gpu] = plane.rest.get("/gpus").json()["gpus"]
    assert gpu["promisable_mib"] == GPU_MIB + 16
    begin(mib=8)
    with pytest.raises(Failed):
        begin(SLUICE_WAIT="0")


@pytest.mark.control_plane(
    # no more than placement asks for, with what stays of two that are suspended: they take the most
    suspend={**SUSPEND, "swap_mib": TIGHT_MIB},
    environment=GPU,
)
def test_the_hosts_budget_is_full(plane: ControlPlane, begin: Begin) -> None:
    """Two are suspended in what the moves of others need: these wait, with the reason, and go on
    when there is room.
    """
    suspended = [begin(mib=LARGE_MIB) for _ in range(2)]
    for each in suspended:
        suspend(plane, each)
    inside, outside = begin(mib=LARGE_MIB), begin()
    outside.tell("slab", mib=LARGE_MIB, piece_mib=PIECE_MIB)
    own = grant_of(plane, inside.pid)["id"]

    def refusal() -> str:
        start = f"memory of grant {own} does not move to the host"
        lines = [line for line in plane.log("server").splitlines() if start in line]
        return lines[-1] if lines else ""

    wait_for(refusal, message="the move to be refused")
    assert f"[suspend] swap_mib ({TIGHT_MIB})" in refusal()
    assert "MiB are left" in refusal()
    with pytest.raises(Failed, match="no answer"):
        outside.answer(0.3)
    inside.tell("check")  # of which a part had room in the host's before
    suspended.pop().kill()
    outside.answer()
    assert inside.answer() == {"wrong": 0}
    in_turns([inside, outside], 3)
    outside.kill()
    wait_for(lambda: len(plane.grants()) == 2, message="its grant to end")
    [last] = suspended
    resume(plane, grant_of(plane, last.pid)["id"])
    in_turns([inside, last], 3)


def test_the_client_of_one_that_is_out_is_killed(
    plane: ControlPlane, begin: Begin, seen: Seen
) -> None:
    one, two = begin(mib=LARGE_MIB), begin(mib=LARGE_MIB)
    wait_out(plane, one)
    one.kill()
    wait_for(lambda: len(plane.grants()) == 1, message="its grant to end")
    is_right(two)
    next_one = begin(mib=LARGE_MIB)
    in_turns([two, next_one], 2)


def test_memory_that_another_process_has_open_stays(plane: ControlPlane, begin: Begin) -> None:
    one, other = begin(mib=32), begin(SLUICE_GMEM="40", SLUICE_RATIO="10")
    one.ask("plain", mib=40)
    path = str(plane.folder / "handles")
    one.tell("export", path=path)
    other.ask("open", path=path)
    one.answer()
    two = begin(mib=80, SLUICE_GMEM="96", SLUICE_RATIO="30")
    assert wait_out(plane, one)["resident_mib"] >= 32
    for _ in range(3):
        for each in (two, other, one):
            is_right(each)
