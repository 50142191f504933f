# SPDX-License-Identifier: Apache-2.0
"""Host memory that a session keeps when it has come back: used again, right, and in nobody's way.

All parts are real; the GPU is the software GPU. Who has what of the host's memory is told by the
server's metrics. How much a program has that was filled: MOVED_MIB.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for
from scrapes import scrape

from .at_work import stopped, worker_of
from .card_rig import GPU_MIB, rigs
from .suspended import (
    MOVED_MIB,
    Failed,
    Subject,
    grant_of,
    is_right,
    refused,
    resume,
    start_subject,
    suspend,
    suspension,
)

FULL_MIB = 2 * MOVED_MIB  # of two, and of no more
LARGE_MIB = 400
SHARED_MIB = (
    3 * 76 - 128 + 76
)  # what is promised beyond the GPU's memory, and once more the largest


def with_room(mib: int, **more: Any) -> pytest.MarkDecorator:
    """A control plane with so much host memory for what is suspended."""
    options: dict[str, Any] = {"swap_mib": mib, "drain_seconds": 60, **more}
    return pytest.mark.control_plane(suspend=options, metrics={})


pytestmark = with_room(FULL_MIB)
Begin = Callable[..., Subject]


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


def has(plane: ControlPlane, state: str) -> int:
    """MiB that are `used`, `kept` or `ready`."""
    found = scrape(plane.metrics_url).value("sluice_server_host_memory_bytes", state=state)
    assert found is not None
    return int(found) >> 20


def wait_kept(plane: ControlPlane, mib: int) -> None:
    """Until so much is kept in all."""
    wait_for(lambda: has(plane, "kept") == mib, message=lambda: f"{has(plane, 'kept')} MiB kept")


def keeper(plane: ControlPlane, begin: Begin) -> Subject:
    """A program that was suspended before, and keeps what it had."""
    subject, before = begin(), has(plane, "kept")
    resume(plane, suspend(plane, subject))
    wait_kept(plane, before + MOVED_MIB)
    return subject


def test_it_is_used_again_and_gone_with_its_session(plane: ControlPlane, begin: Begin) -> None:
    subject = keeper(plane, begin)
    for _ in range(3):
        grant = suspend(plane, subject)
        assert (has(plane, "used"), has(plane, "kept")) == (MOVED_MIB, 0)
        resume(plane, grant)
        wait_kept(plane, MOVED_MIB)
        assert has(plane, "used") == 0
    is_right(subject)
    subject.kill()
    wait_kept(plane, 0)


@with_room(2 * LARGE_MIB)
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_memory_that_grows_and_shrinks_in_between_is_right(
    plane: ControlPlane, begin: Begin, channel: str
) -> None:
    chance = random.Random(7)
    subject = begin(channel, filled=False, SLUICE_GMEM=str(LARGE_MIB))
    most = 0
    for _ in range(10):
        if chance.random() < 0.3:
            subject.ask("forget")
        mib = 2 * chance.randrange(1, 20)
        subject.ask("slab", mib=mib, piece_mib=2 * chance.randrange(1, 6))
        grant = suspend(plane, subject)
        used = has(plane, "used")
        resume(plane, grant)
        assert subject.ask("check") == {"wrong": 0}
        wait_for(lambda used=used: has(plane, "kept") >= used, message="what it used to be kept")
        most = max(most, has(plane, "kept"))
    assert most <= LARGE_MIB, "a session keeps no more than its vGPU has"


def test_who_has_kept_it_the_longest_gives_it_up_and_no_more_than_is_needed(
    plane: ControlPlane, begin: Begin
) -> None:
    first, second = keeper(plane, begin), keeper(plane, begin)
    assert has(plane, "kept") == FULL_MIB, "the host's budget is exactly full"
    third = begin()
    grant = suspend(plane, third)
    assert (has(plane, "used"), has(plane, "kept")) == (MOVED_MIB, MOVED_MIB)
    suspend(plane, second)
    assert (has(plane, "used"), has(plane, "kept")) == (FULL_MIB, 0), "its own"
    assert f"[suspend] swap_mib ({FULL_MIB}) 0 MiB are left" in refused(plane, first)
    resume(plane, grant)
    suspend(plane, first)
    is_right(third)


def test_who_has_no_room_beside_what_he_keeps_himself_gives_that_up(
    plane: ControlPlane, begin: Begin
) -> None:
    """One piece now that fits into nothing which was kept for many, and there is room for one."""
    subject = begin(filled=False, SLUICE_GMEM="64")
    subject.ask("slab", mib=36, piece_mib=2)
    resume(plane, suspend(plane, subject))
    wait_kept(plane, 38)
    subject.ask("forget")
    subject.ask("slab", mib=44, piece_mib=44)
    grant = suspend(plane, subject)
    assert (has(plane, "used"), has(plane, "kept")) == (46, 0)
    resume(plane, grant)
    assert subject.ask("check") == {"wrong": 0}


def test_who_gives_it_up_goes_on_with_his_work_meanwhile(plane: ControlPlane, begin: Begin) -> None:
    first, second = keeper(plane, begin), keeper(plane, begin)
    third = begin()
    for _ in range(3):
        first.tell("copy_about", mib=8, times=20)
        second.tell("again")
        resume(plane, suspend(plane, third))
        assert second.answer() == {"wrong": 0}
        assert first.answer() == {"wrong": 0}
    is_right(first)
    is_right(third)


def suspend_at_once(plane: ControlPlane, *subjects: Subject) -> list[str]:
    """All of them are ordered out before one is waited for; their grants."""
    grants = [str(grant_of(plane, subject.pid)["id"]) for subject in subjects]
    for grant in grants:
        assert plane.rest.post(f"/grants/{grant}/suspend").status_code == 202
    for grant in grants:
        wait_for(
            lambda grant=grant: (suspension(plane, grant) or {}).get("state") == "suspended",
            message=lambda: f"all to be suspended: {plane.rest.get('/events').text[-2000:]}",
        )
    return grants


def test_two_are_suspended_at_once_while_others_or_they_keep_all_of_it(
    plane: ControlPlane, begin: Begin
) -> None:
    first, second = keeper(plane, begin), keeper(plane, begin)
    third, fourth = begin(), begin()
    for pair in ((third, fourth), (first, second), (second, third), (second, third)):
        for grant in suspend_at_once(plane, *pair):
            resume(plane, grant)
        wait_kept(plane, FULL_MIB)
    for subject in (first, second, third, fourth):
        is_right(subject)


def test_a_worker_that_stands_still_is_asked_once_and_what_it_has_stays_booked(
    plane: ControlPlane, begin: Begin
) -> None:
    first, second = keeper(plane, begin), keeper(plane, begin)
    third, fourth = begin(), begin()
    with stopped(worker_of(plane, first)):
        suspend(plane, third)
        assert (has(plane, "used"), has(plane, "kept")) == (MOVED_MIB, MOVED_MIB)
        why = refused(plane, fourth)
        assert f"keeps {MOVED_MIB} MiB (its worker does not answer)" in why
    wait_kept(plane, 0)
    suspend(plane, fourth)
    is_right(first)
    is_right(second)


@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_a_worker_is_killed_while_it_is_asked(
    plane: ControlPlane, begin: Begin, pause: float
) -> None:
    first, second = keeper(plane, begin), keeper(plane, begin)
    third = begin()
    pid = worker_of(plane, first)
    os.kill(pid, signal.SIGSTOP)
    grant = grant_of(plane, third.pid)["id"]
    assert plane.rest.post(f"/grants/{grant}/suspend").status_code == 202
    with pytest.raises(Failed):
        third.answer(pause)
    os.kill(pid, signal.SIGKILL)
    wait_for(
        lambda: (suspension(plane, grant) or {}).get("state") == "suspended",
        message="the other to be suspended",
    )
    with pytest.raises(Failed):
        first.ask("check")
    resume(plane, grant)
    is_right(third)
    is_right(second)


def test_a_later_server_knows_what_is_kept(plane: ControlPlane, begin: Begin) -> None:
    subject = keeper(plane, begin)
    plane.stop("server", signal.SIGKILL)
    plane.start_server()
    wait_kept(plane, MOVED_MIB)
    grant = suspend(plane, subject)
    assert (has(plane, "used"), has(plane, "kept")) == (MOVED_MIB, 0)
    plane.stop("server", signal.SIGKILL)
    plane.start_server()
    resume(plane, grant)
    wait_kept(plane, MOVED_MIB)
    is_right(subject)


def test_a_later_server_with_less_host_memory_has_it_given_up(
    plane: ControlPlane, begin: Begin
) -> None:
    subject = keeper(plane, begin)
    plane.stop("server")
    settings = plane.folder / "server.conf"
    wanted = f"swap_mib = {FULL_MIB}"
    assert wanted in settings.read_text()
    settings.write_text(settings.read_text().replace(wanted, f"swap_mib = {MOVED_MIB - 1}"))
    plane.start_server()
    wait_kept(plane, 0)
    is_right(subject)
    assert "swap_mib" in refused(plane, subject)
    is_right(subject)


@with_room(1024, ready_mib=512)
def test_what_is_kept_makes_room_for_what_is_to_be_ready(plane: ControlPlane, begin: Begin) -> None:
    """Both are pieces of the driver; three that keep 256 MiB each leave no room for 512 ready."""
    subjects = [begin(filled=False, SLUICE_GMEM="300") for _ in range(3)]
    for subject in subjects:
        subject.ask("slab", mib=250, piece_mib=10)
    for subject in subjects:
        resume(plane, suspend(plane, subject))
        assert subject.ask("check") == {"wrong": 0}
    wait_for(lambda: has(plane, "ready") == 512, message="as much to be ready as is wanted")
    assert 0 < has(plane, "kept") <= 512


@pytest.mark.control_plane(
    suspend={
        "swap_mib": SHARED_MIB,
        "drain_seconds": 60,
        "memory_oversubscription": 2.0,
        "idle_seconds": 0.5,
    },
    environment={"SLUICE_SOFTGPU_MEMORY_MIB": "128"},
    metrics={},
)
@pytest.mark.chaos
def test_sessions_that_are_out_in_part_in_turns_never_have_more_than_there_is(
    plane: ControlPlane, begin: Begin
) -> None:
    """Three of 64 MiB on a GPU of 128, with as much host memory as placement asks for."""
    subjects = [begin(filled=False, SLUICE_GMEM="76", SLUICE_RATIO="30") for _ in range(3)]
    for subject in subjects:
        subject.ask("slab", mib=64, piece_mib=4)
    most_kept = 0
    for _ in range(6):
        for subject in subjects:
            assert subject.ask("check") == {"wrong": 0}
            used, kept = has(plane, "used"), has(plane, "kept")
            assert used + kept <= SHARED_MIB
            most_kept = max(most_kept, kept)
    assert most_kept, "they keep what has room"


def test_contexts_leave_with_nothing_of_it_mapped(
    built: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The driver restores nobody who has memory of another process open: pieces of the driver."""
    ready = {"swap_mib": 2048, "ready_mib": 512}
    with rigs(tmp_path_factory.mktemp) as opened:
        rig = opened(ready, SLUICE_SOFTGPU_MEMORY_MIB=str(4 * GPU_MIB))
        subject = rig.begin(filled=False, SLUICE_GMEM="700")
        for mib, forgets in ((400, False), (260, True), (270, False), (300, True)):
            if forgets:  # what it keeps is more than it needs
                subject.ask("forget")
            subject.ask("slab", mib=mib, piece_mib=20)
            rig.resume(rig.take_off(subject))
            assert subject.ask("check") == {"wrong": 0}
        rig.end_programs()
