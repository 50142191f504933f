# SPDX-License-Identifier: Apache-2.0
"""Sessions that are suspended in the middle of something, and what others do with them meanwhile.

In the middle of compiling, of one large copy, of a host function whose program stands still; with
an array; while another opens their memory. All parts are real; the GPU is the software GPU.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for

from .card_rig import rigs
from .prompted import PATIENCE, SOURCES
from .suspended import (
    Failed,
    Subject,
    grant_of,
    is_right,
    refused,
    resume,
    start_subject,
    suspend,
    suspension,
    why_not,
)

PROGRAM = SOURCES / "met_subject.py"
COPIED_MIB, ARRAY_MIB = 256, 8
SWAP = {"swap_mib": 1024, "drain_seconds": 60}
pytestmark = pytest.mark.control_plane(reused=True, suspend=SWAP)
IMPATIENT = pytest.mark.control_plane(suspend={**SWAP, "drain_seconds": 1})
CHANNELS = pytest.mark.parametrize("channel", ["shm", "tcp"])
MOST_ROUNDS = 10
STILL_SECONDS, END_SECONDS = 0.3, 5.0  # how long nothing is heard; how long an end may take

Begin = Callable[..., Subject]


@pytest.fixture
def begin(plane: ControlPlane) -> Iterator[Begin]:
    """Starts programs, and ends what a test leaves."""
    begun: list[Subject] = []

    def start_one(channel: str = "shm", **more: Any) -> Subject:
        begun.append(start_subject(plane, channel, program=PROGRAM, **more))
        return begun[-1]

    yield start_one
    for subject in begun:
        end(subject)


def end(subject: Subject) -> None:
    """By itself, at the end of its input, where it can: its session is gone at once then."""
    assert subject.process.stdin
    subject.process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        subject.process.wait(END_SECONDS)
    subject.kill()


class InHostFunction:
    """A program that is stopped in one, behind which it has more to do."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self._subject, self._end = subject, folder / f"end of {subject.pid}"
        subject.tell("wait_in_host_function", path=str(self._end))
        assert subject.answer() == {"begun": True}
        os.kill(subject.pid, signal.SIGSTOP)
        wait_for(self._stands_still, message="it to stand still")

    def _stands_still(self) -> bool:
        stat = Path(f"/proc/{self._subject.pid}/stat").read_text()
        return stat[stat.rindex(")") + 2] == "T"

    def goes_on(self, seconds: float = PATIENCE) -> None:
        """It comes to the end of all that it has to do."""
        self._end.touch()
        os.kill(self._subject.pid, signal.SIGCONT)
        assert self._subject.answer(seconds) == {"wrong": 0}


@CHANNELS
def test_a_program_is_suspended_while_it_compiles(
    plane: ControlPlane, begin: Begin, channel: str
) -> None:
    subject = begin(channel)

    def compiled() -> int:
        said = subject.ask("count")
        assert said["wrong"] == []
        return int(said["compiled"])

    subject.ask("compile")
    for _ in range(3):
        before = compiled()
        wait_for(lambda before=before: compiled() > before, message="the next to be compiled")
        grant = suspend(plane, subject)
        before = compiled() + 1  # which was compiled, and not counted yet
        time.sleep(STILL_SECONDS)
        assert compiled() <= before, "it stands still"
        resume(plane, grant)
        wait_for(lambda before=before: compiled() > before, message="more to be compiled")
    assert subject.ask("end_compiling")["wrong"] == []
    is_right(subject)


@IMPATIENT
def test_a_program_that_stands_still_in_a_host_function_cannot_be_suspended(
    plane: ControlPlane, begin: Begin, tmp_path: Path
) -> None:
    subject, beside = begin(), begin()
    function = InHostFunction(subject, tmp_path)
    why = refused(plane, subject)
    assert "does not come to a stop within [suspend] drain_seconds (1)" in why
    assert "a host function that its client has yet to run" in why
    is_right(beside)
    function.goes_on()
    resume(plane, suspend(plane, subject))
    is_right(subject)


@IMPATIENT
def test_over_tcp_it_is_suspended_as_nothing_of_it_is_on_the_gpu_then(
    plane: ControlPlane, begin: Begin, tmp_path: Path
) -> None:
    """Its host functions run in its own calls, when everything before them is done."""
    subject = begin("tcp")
    function = InHostFunction(subject, tmp_path)
    resume(plane, suspend(plane, subject))
    grant = suspend(plane, subject)
    with pytest.raises(Failed, match="no answer"):
        function.goes_on(STILL_SECONDS)
    resume(plane, grant)
    assert subject.answer() == {"wrong": 0}
    is_right(subject)


@IMPATIENT
def test_who_stands_still_in_a_host_function_is_no_victim_and_another_is(
    plane: ControlPlane, begin: Begin, tmp_path: Path
) -> None:
    large = {"SLUICE_RATIO": "45"}
    stands, other = begin(**large, SLUICE_PRIORITY="0"), begin(**large, SLUICE_PRIORITY="1")
    stays, victim = (str(grant_of(plane, each.pid)["id"]) for each in (stands, other))
    function = InHostFunction(stands, tmp_path)
    quota = plane.rest.put("/quotas/default", json={"may_preempt": True})
    assert quota.status_code < 300, quota.text
    urgent = begin(
        **large, SLUICE_PREEMPT="1", SLUICE_PRIORITY="5", SLUICE_WAIT="60", SLUICE_GMEM="64"
    )
    assert "a host function that its client has yet to run" in why_not(plane, stays)
    assert suspension(plane, stays) is None
    shown = suspension(plane, victim)
    assert shown
    assert "preempted" in shown["note"]
    function.goes_on()
    is_right(urgent)
    urgent.kill()
    wait_for(lambda: suspension(plane, victim) is None, message="the victim to come back")
    is_right(other)
    is_right(stands)
    plane.rest.delete("/quotas/default")


def meets_it(plane: ControlPlane, subject: Subject, way: str) -> None:
    """A suspension meets a copy that is under way; where it was done before, another does."""
    for _ in range(MOST_ROUNDS):
        subject.tell(f"copy_{way}")
        assert subject.answer() == {"begun": True}
        grant = suspend(plane, subject)
        try:
            assert subject.answer(STILL_SECONDS) == {"copied": True}
            was_under_way = False
        except Failed:
            was_under_way = True
        resume(plane, grant)
        if was_under_way:
            assert subject.answer() == {"copied": True}
        assert subject.answer() == {"wrong": 0}
        if was_under_way:
            return
    raise AssertionError("none was under way")


@CHANNELS
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "pageable"])
def test_one_large_copy_is_under_way(
    plane: ControlPlane, begin: Begin, channel: str, pinned: bool
) -> None:
    subject = begin(channel, filled=False, SLUICE_GMEM="300")
    subject.ask("prepare_copies", mib=COPIED_MIB, pinned=pinned)
    for way in ("to_device", "to_host"):
        meets_it(plane, subject, way)
    assert subject.ask("check") == {"wrong": 0}


def test_an_array_stays_is_counted_and_holds_its_bytes(plane: ControlPlane, begin: Begin) -> None:
    subject = begin()

    def stays() -> int:
        grant = suspend(plane, subject)
        [vgpu] = plane.rest.get(f"/grants/{grant}").json()["vgpus"]
        resume(plane, grant)
        return int(vgpu["memory_mib"])

    before = stays()
    assert subject.ask("array", mib=ARRAY_MIB) == {"wrong": 0}
    assert stays() == before + ARRAY_MIB
    assert subject.ask("check_array") == {"wrong": 0}
    is_right(subject)


def test_an_array_holds_its_bytes_while_its_context_is_off(
    built: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with rigs(tmp_path_factory.mktemp) as opened:
        rig = opened()
        subject = rig.begin(program=PROGRAM)
        assert subject.ask("array", mib=ARRAY_MIB) == {"wrong": 0}
        grant = rig.take_off(subject)
        assert rig.card.taken_mib(rig.worker_of(subject)) == 0
        rig.resume(grant)
        assert subject.ask("check_array") == {"wrong": 0}
        is_right(subject)
        rig.end_programs()


def test_memory_of_a_suspended_session_is_opened(plane: ControlPlane, begin: Begin) -> None:
    """Its context is on the GPU, and what others may open is, too."""
    owner, other = begin(), begin(filled=False)
    shared = owner.ask("ipc_handle")
    grant = suspend(plane, owner)
    assert other.ask("ipc_open", **shared) == {"wrong": 0}
    assert other.ask("refill", seed=77) == {"wrong": 0}
    resume(plane, grant)
    owner.ask("refilled", seed=77)
    assert owner.ask("check") == {"wrong": 0}
    suspend(plane, owner)
    assert other.ask("check") == {"wrong": 0}
    other.kill()
    resume(plane, grant)
    owner.ask("refilled", seed=shared["seed"])  # as its graph does
    assert owner.ask("again") == {"wrong": 0}


def test_memory_of_one_whose_context_has_left_is_opened_when_it_runs(
    built: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with rigs(tmp_path_factory.mktemp) as opened:
        rig = opened()
        owner = rig.begin(program=PROGRAM)
        other = rig.begin(program=PROGRAM, filled=False)
        shared = owner.ask("ipc_handle")
        grant = rig.take_off(owner)
        with pytest.raises(Failed, match="cuIpcOpenMemHandle_v2: CUDA_ERROR_INVALID_VALUE"):
            other.ask("ipc_open", **shared)
        rig.resume(grant)
        assert other.ask("ipc_open", **shared) == {"wrong": 0}
        is_right(owner)
        assert other.ask("check")["wrong"] == 0
        rig.end_programs()
