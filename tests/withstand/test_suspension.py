# SPDX-License-Identifier: Apache-2.0
"""Sessions are suspended and resumed, bit for bit, whatever happens meanwhile.

All parts are real; the GPU is the software GPU. What a program has on it is slabs, an allocation, a
pool, an instantiated graph and recorded events (suspended.py), over each channel. No test goes by
how long something takes: whether a program stands still is told by what it has not answered yet.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for
from scrapes import scrape

from .at_work import worker_of
from .conftest import arbiter_pid
from .prompted import ENDLESS, SOURCES, Prompted
from .suspended import (
    MOVED_MIB,
    PIECE_MIB,
    SLAB_MIB,
    Failed,
    Subject,
    grant_of,
    is_right,
    refused,
    resume,
    sluice,
    start_subject,
    suspend,
    suspension,
)
from .traces import Traces

SWAP_MIB = 64
pytestmark = pytest.mark.control_plane(
    reused=True, suspend={"swap_mib": SWAP_MIB, "drain_seconds": 60}
)
#: Where a session is not to come to a stop: it need not be waited for, and none that does is.
IMPATIENT = pytest.mark.control_plane(suspend={"swap_mib": SWAP_MIB, "drain_seconds": 1})
LARGEST_MIB = 30
MANAGED_MIB = 8
READY = {"swap_mib": 1024, "ready_mib": 512}
CHANNELS = pytest.mark.parametrize("channel", ["shm", "tcp"])
SIGNALS = pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
STILL_SECONDS = 0.3

Begin = Callable[..., Subject]
Start = Callable[..., Prompted]
Seen = Callable[..., Traces]


@pytest.fixture
def begin(plane: ControlPlane) -> Iterator[Begin]:
    """Starts programs, and ends what a test leaves."""
    begun: list[Subject] = []

    def start_one(channel: str = "shm", **more: Any) -> Subject:
        begun.append(start_subject(plane, channel, **more))
        return begun[-1]

    yield start_one
    for subject in begun:
        subject.kill()


def is_still(subject: Subject) -> bool:
    try:
        subject.answer(STILL_SECONDS)
    except Failed:
        return True
    return False


def booked(plane: ControlPlane) -> tuple[int, int]:
    [gpu] = plane.rest.get("/gpus").json()["gpus"]
    return int(gpu["granted_mib"]), int(gpu["granted_percent"])


@CHANNELS
def test_a_session_is_suspended_and_goes_on_bit_for_bit(
    plane: ControlPlane, begin: Begin, channel: str
) -> None:
    subject = begin(channel)
    between = subject.ask("between")
    grant = suspend(plane, subject)
    subject.tell("check")
    assert is_still(subject), "it waits in its call"
    shown = suspension(plane, grant)
    assert shown
    assert (shown["state"], shown["resumes"]) == ("suspended", False)
    assert shown["runs_with"] == [{"memory_mib": 64, "compute_percent": 10}]
    memory, percent = booked(plane)
    assert (memory < 64 - MOVED_MIB, percent) == (True, 0)
    resume(plane, grant)
    assert subject.answer() == {"wrong": 0}
    is_right(subject)
    assert subject.ask("between") == between
    assert booked(plane) == (64, 10)


@CHANNELS
def test_managed_memory_goes_with_it_but_for_what_the_program_holds(
    plane: ControlPlane, begin: Begin, channel: str
) -> None:
    subject = begin(channel, filled=False, program=SOURCES / "managed_subject.py")
    assert subject.ask("managed", mib=MANAGED_MIB) == {"wrong": 0}
    grant = suspend(plane, subject)
    assert booked(plane)[0] < 64 - MANAGED_MIB, "it moves as any memory"
    assert subject.ask("held") == {"wrong": 0}, "this needs no GPU"
    subject.tell("all_of_it")
    assert is_still(subject), "it waits in its touch"
    resume(plane, grant)
    assert subject.answer() == {"wrong": 0}
    assert subject.ask("check") == {"wrong": 0}


def test_ten_times_in_a_row_and_in_the_middle_of_its_work(
    plane: ControlPlane, begin: Begin
) -> None:
    subject = begin()
    for _ in range(10):
        for _ in range(3):
            subject.tell("again")
        resume(plane, suspend(plane, subject))
        for _ in range(3):
            assert subject.answer() == {"wrong": 0}
    is_right(subject)


def test_the_commands_of_operators(plane: ControlPlane, begin: Begin) -> None:
    subject = begin()
    grant, [session] = grant_of(plane, subject.pid)["id"], plane.sessions()
    done = sluice(plane, "session", "suspend", session["id"])
    assert (done.returncode, done.stdout) == (0, f"grant {grant} is suspended\n"), done.stderr
    assert " suspended " in sluice(plane, "grant", "list").stdout
    again = sluice(plane, "grant", "suspend", grant)
    assert again.returncode == 1
    assert "is suspended already" in again.stderr
    done = sluice(plane, "grant", "resume", grant)
    assert (done.returncode, done.stdout) == (0, f"grant {grant} goes on\n"), done.stderr
    assert sluice(plane, "grant", "suspend", "nobody").returncode == 3


def test_a_session_is_resumed_by_its_own_id(plane: ControlPlane, begin: Begin) -> None:
    subject = begin()
    [session] = plane.sessions()
    path, grant = f"/sessions/{session['id']}", session["grant_id"]
    runs = f"grant {grant} is not suspended"
    done = sluice(plane, "session", "resume", session["id"])
    assert (done.returncode, runs in done.stderr) == (1, True), done.stderr
    refusal = plane.rest.post(f"{path}/resume")
    assert (refusal.status_code, runs in refusal.json()["detail"]) == (409, True), refusal.text
    is_right(subject)
    suspend(plane, subject)
    done = sluice(plane, "session", "resume", session["id"])
    assert (done.returncode, done.stdout) == (0, f"grant {grant} goes on\n"), done.stderr
    is_right(subject)
    suspend(plane, subject)
    answer = plane.rest.post(f"{path}/resume")
    assert (answer.status_code, answer.json()["id"]) == (202, grant)
    wait_for(lambda: suspension(plane, grant) is None, message="it to go on")
    is_right(subject)
    assert plane.rest.post("/sessions/nobody/resume").status_code == 404
    assert sluice(plane, "session", "resume", "nobody").returncode == 3
    subject.kill()
    wait_for(lambda: not plane.sessions(), message="it to end")
    ended = plane.rest.post(f"{path}/resume")
    assert (ended.status_code, "has ended already" in ended.json()["detail"]) == (409, True)


def test_its_place_is_another_programs_meanwhile(plane: ControlPlane, begin: Begin) -> None:
    subject = begin(SLUICE_GMEM="3000", SLUICE_RATIO="100")
    grant = suspend(plane, subject)
    other = begin(SLUICE_GMEM="3000", SLUICE_RATIO="100", SLUICE_WAIT="0")
    is_right(other)
    assert plane.rest.post(f"/grants/{grant}/resume").status_code == 202
    assert suspension(plane, grant), "there is no room for it yet"
    other.kill()
    wait_for(lambda: suspension(plane, grant) is None, message="it to go on by itself")
    is_right(subject)


@SIGNALS
@pytest.mark.parametrize("service", ["server", "controller"])
def test_a_restart_changes_nothing(
    plane: ControlPlane, begin: Begin, service: str, how: signal.Signals
) -> None:
    subject = begin()
    grant = suspend(plane, subject)
    subject.tell("check")
    plane.stop(service, how)
    if service == "server":
        plane.start_server()
    else:
        plane.start_controller()
        wait_for(lambda: plane.node_state() == "up", message="the server to return by itself")
    shown = suspension(plane, grant)
    assert shown
    assert shown["state"] == "suspended"
    assert is_still(subject)
    assert booked(plane)[1] == 0
    resume(plane, grant)
    assert subject.answer() == {"wrong": 0}
    is_right(subject)


@CHANNELS
def test_the_client_of_a_suspended_session_is_killed(
    plane: ControlPlane, begin: Begin, seen: Seen, channel: str
) -> None:
    subject = begin(channel)
    suspend(plane, subject)
    traces = seen()
    began = time.monotonic()
    subject.kill()
    traces.wait_gone(f"kill -9 of a suspended client over {channel}", began)
    assert booked(plane) == (0, 0)
    next_one = begin(channel)
    suspend(plane, next_one)  # its host memory has come back, too


def test_its_worker_is_killed_while_its_memory_is_the_hosts(
    plane: ControlPlane, begin: Begin, seen: Seen
) -> None:
    subject = begin()
    suspend(plane, subject)
    traces = seen()
    began = time.monotonic()
    os.kill(traces.worker, signal.SIGKILL)
    with pytest.raises(Failed):
        subject.ask("check")
    subject.kill()
    traces.wait_gone("kill -9 of a suspended session's worker", began)
    suspend(plane, begin())


def test_its_worker_is_killed_while_its_memory_moves(
    plane: ControlPlane, begin: Begin, seen: Seen
) -> None:
    """Wherever on the way the kill finds it: nothing is left, and nobody else notices."""
    beside = begin()
    for pause in (0.0, 0.01, 0.05):
        subject = begin()
        grant = grant_of(plane, subject.pid)["id"]
        pid = worker_of(plane, subject)
        assert plane.rest.post(f"/grants/{grant}/suspend").status_code == 202
        time.sleep(pause)
        os.kill(pid, signal.SIGKILL)
        wait_for(
            lambda grant=grant: grant not in {g["id"] for g in plane.grants()},
            message="its grant to end",
        )
        subject.kill()
    is_right(beside)
    suspend(plane, beside)


def test_the_hosts_budget_is_full(plane: ControlPlane, begin: Begin) -> None:
    wait_for(lambda: not plane.grants(), message="what was before to be gone")
    first, second, third = begin(), begin(), begin()
    suspend(plane, first)
    kept = suspend(plane, second)
    why = refused(plane, third)
    left = SWAP_MIB - 2 * MOVED_MIB
    assert f"[suspend] swap_mib ({SWAP_MIB}) {left} MiB are left" in why
    is_right(third)
    resume(plane, kept)
    suspend(plane, third)


@IMPATIENT
def test_an_endless_kernel_cannot_be_suspended_and_says_so(
    plane: ControlPlane, start: Start, begin: Begin
) -> None:
    endless, beside = start(), begin()
    assert endless.ask(f"launch {ENDLESS}") == "launch: ok"
    why = refused(plane, endless)
    assert "does not come to a stop within [suspend] drain_seconds (1)" in why
    assert "work on the GPU" in why
    is_right(beside)


@CHANNELS
def test_a_host_function_is_waited_for(plane: ControlPlane, begin: Begin, channel: str) -> None:
    subject = begin(channel)
    subject.ask("host_function", seconds=0.2)
    subject.tell("check")
    resume(plane, suspend(plane, subject))
    assert subject.answer() == {"wrong": 0}


@IMPATIENT
def test_a_capture_that_does_not_end_is_in_the_way(plane: ControlPlane, begin: Begin) -> None:
    subject = begin()
    grant = grant_of(plane, subject.pid)["id"]
    subject.ask("capture")
    done = sluice(plane, "grant", "suspend", grant)
    assert done.returncode == 1
    assert f"grant {grant} runs as before" in done.stderr
    assert "a stream captures a graph" in done.stderr
    is_right(subject)
    subject.ask("end_capture")
    is_right(subject)


def test_a_capture_is_waited_for(plane: ControlPlane, begin: Begin) -> None:
    subject = begin()
    grant = grant_of(plane, subject.pid)["id"]
    subject.ask("capture")
    assert plane.rest.post(f"/grants/{grant}/suspend").status_code == 202
    subject.tell("end_capture")
    wait_for(
        lambda: (suspension(plane, grant) or {}).get("state") == "suspended",
        message="it to be suspended behind its capture",
    )
    resume(plane, grant)
    assert subject.answer() == {}
    is_right(subject)


def test_memory_that_another_process_has_open_stays_and_is_counted(
    plane: ControlPlane, begin: Begin
) -> None:
    one, other = begin(), begin(filled=False)
    path = str(plane.folder / "handles")
    one.tell("export", path=path)
    other.ask("open", path=path)
    one.answer()
    grant = suspend(plane, one)
    [stays] = plane.rest.get(f"/grants/{grant}").json()["vgpus"]
    assert stays["memory_mib"] >= SLAB_MIB
    assert other.ask("check") == {"wrong": 0}, "who has it open uses it on"
    resume(plane, grant)
    is_right(one)
    other_grant = suspend(plane, other)
    is_right(one)
    resume(plane, other_grant)


def test_a_request_that_preempts_has_it_suspended_and_it_comes_back(
    plane: ControlPlane, begin: Begin
) -> None:
    victim = begin(SLUICE_GMEM="3000", SLUICE_RATIO="80")
    grant = grant_of(plane, victim.pid)["id"]
    quota = plane.rest.put("/quotas/default", json={"may_preempt": True})
    assert quota.status_code < 300, quota.text
    urgent = begin(
        SLUICE_GMEM="3000",
        SLUICE_RATIO="80",
        SLUICE_PREEMPT="1",
        SLUICE_PRIORITY="5",
        SLUICE_WAIT="60",
    )
    shown = suspension(plane, grant)
    assert shown
    assert (shown["state"], shown["resumes"]) == ("suspended", True)
    assert "preempted" in shown["note"]
    is_right(urgent)
    urgent.kill()
    wait_for(lambda: suspension(plane, grant) is None, message="the victim to come back")
    is_right(victim)
    plane.rest.delete("/quotas/default")


@IMPATIENT
def test_no_session_of_a_job_is_suspended_where_one_cannot_be(
    plane: ControlPlane, begin: Begin
) -> None:
    job = secrets.token_hex(16)
    first, second = (begin(SLUICE_JOB=job, SLUICE_GMEM="128") for _ in range(2))
    second.ask("capture")
    assert "a stream captures a graph" in refused(plane, first)
    is_right(first)
    second.ask("end_capture")
    is_right(second)


def test_all_sessions_of_a_job_are_suspended_together(plane: ControlPlane, begin: Begin) -> None:
    job = secrets.token_hex(16)
    first, second = (begin(SLUICE_JOB=job, SLUICE_GMEM="128") for _ in range(2))
    session = plane.sessions()[0]["id"]
    alone = plane.rest.post(f"/sessions/{session}/suspend")
    assert alone.status_code == 409
    assert "has 2 sessions, which are suspended and resumed together" in alone.json()["detail"]
    grant = suspend(plane, first)
    for subject in (first, second):
        subject.tell("check")
    assert is_still(first)
    assert is_still(second)
    late = start_subject(plane, begun=False, SLUICE_JOB=job, SLUICE_GMEM="128")
    late.tell("begin")
    assert is_still(late), "who joins waits until the job runs"
    resume(plane, grant)
    assert [first.answer(), second.answer()] == [{"wrong": 0}] * 2
    assert "pid" in late.answer()
    late.kill()
    is_right(second)


@CHANNELS
def test_copies_are_under_way(plane: ControlPlane, begin: Begin, channel: str) -> None:
    """A program that copies all the time: pinned memory, and pageable, there and back."""
    subject = begin(channel, filled=False)
    subject.ask("slab", mib=SLAB_MIB, piece_mib=PIECE_MIB)
    for _ in range(3):
        subject.tell("copy_about", mib=8, times=20)
        resume(plane, suspend(plane, subject))
        assert subject.answer() == {"wrong": 0}
    assert subject.ask("check") == {"wrong": 0}


def test_turns_go_on_beside_a_suspended_session_and_without_its_arbiter(
    plane: ControlPlane, begin: Begin
) -> None:
    subject, beside = begin(), begin()
    grant = suspend(plane, subject)
    is_right(beside)
    os.kill(arbiter_pid(plane), signal.SIGKILL)
    is_right(beside)
    resume(plane, grant)
    is_right(subject)
    is_right(beside)


def pieces_of_driver(worker: int) -> list[int]:
    """MiB of each that the worker of a suspended session has; what programs have is smaller."""
    found = {}
    for entry in Path(f"/proc/{worker}/fd").iterdir():
        if "sluice-softgpu" in str(entry.readlink()):
            found[entry.stat().st_ino] = entry.stat().st_size >> 20
    return [mib for mib in found.values() if mib > LARGEST_MIB]


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(
            [256], id="of the driver", marks=pytest.mark.control_plane(suspend=READY, metrics={})
        ),
        pytest.param(
            [],
            id="shared",
            marks=pytest.mark.control_plane(suspend=READY | {"driver_memory": "off"}, metrics={}),
        ),
        # it has no room beside what is to be ready, and is given up
        pytest.param(
            [256],
            id="not kept",
            marks=pytest.mark.control_plane(suspend=READY | {"swap_mib": 600}, metrics={}),
        ),
    ],
)
def test_memory_that_is_kept_ready_is_used_piece_after_piece(
    plane: ControlPlane, begin: Begin, pieces: list[int], request: pytest.FixtureRequest
) -> None:
    subject = begin(filled=False, SLUICE_GMEM="700")
    subject.ask("slab", mib=300, piece_mib=LARGEST_MIB)
    subject.ask("plain", mib=2)
    worker = worker_of(plane, subject)
    stays = [] if request.node.callspec.id == "not kept" else pieces

    def is_ready() -> bool:
        found = scrape(plane.metrics_url).value("sluice_server_host_memory_bytes", state="ready")
        return (found or 0) >= 256 << 20

    for _ in range(2):
        wait_for(is_ready, message="a piece to be ready")
        grant = suspend(plane, subject)
        assert pieces_of_driver(worker) == pieces
        resume(plane, grant)
        assert subject.ask("check") == {"wrong": 0}
        wait_for(lambda: pieces_of_driver(worker) == stays, message="what it keeps")
