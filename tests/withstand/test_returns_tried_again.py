# SPDX-License-Identifier: Apache-2.0
"""A suspended session's return finds no room, is tried again, and somebody is killed just then.

What hinders it is in unreturned.py: the pool's books, memory that somebody else has, a restore that
would not be safe or that nobody answers for, the other GPU of a move, a job of which a part came
back. Whoever is killed: nothing is lost, nobody is held for ever, the books are right, and a
program has its memory bit for bit or a CUDA error. All parts are real but for the card.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator

import pytest
from control_plane import wait_for

from .at_work import stopped
from .card_rig import (
    CONTEXT_MIB,
    GPU_MIB,
    MOVED_MIB,
    OpenRig,
    Rig,
    helpers_of,
    is_right,
    rigs,
)
from .conftest import arbiter_pid, has_another_arbiter
from .suspended import Failed, Subject
from .traces import Traces
from .unreturned import (
    HINDRANCES,
    MORE_MIB,
    NO_PLACE,
    ROOM_OF_A_CONTEXT,
    Unreturned,
    begin_larger,
)

SLOW = {"SLUICE_SOFTGPU_CHECKPOINT_MS": "1500"}
SERVICES = ("server", "controller", "arbiter")
TRIES = 6
SEED = 18


@pytest.fixture(scope="module")
def open_rig(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenRig]:
    """Each rig's programs end with the test that began them."""
    with rigs(tmp_path_factory.mktemp) as opened:
        yield opened


@pytest.fixture
def hinder(open_rig: OpenRig) -> Iterator[OpenRig]:
    """Rigs whose programs end with the test."""
    used: list[Rig] = []

    def opened(*arguments: object, **settings: object) -> Rig:
        used.append(open_rig(*arguments, **settings))
        return used[-1]

    yield opened
    for rig in used:
        rig.end_programs()


def kill(rig: Rig, service: str) -> None:
    """And it is there again, or another one in its place."""
    plane = rig.plane
    if service == "arbiter":
        before = arbiter_pid(plane)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: has_another_arbiter(rig.plane, before), message="another arbiter")
        return
    plane.stop(service, signal.SIGKILL)
    if service == "server":
        plane.start_server()
    else:
        plane.start_controller()
        wait_for(lambda: plane.node_state() == "up", message="the server to return by itself")


def goes_on(one: Unreturned) -> None:
    """All of it, right, where and as large as it is booked."""
    one.rig.resume_at_last(one.grant)
    assert one.answers() == [{"wrong": 0}] * len(one.subjects)
    for subject in one.subjects:
        assert subject.ask("check") == {"wrong": 0}
    grants = one.rig.plane.grants()
    [grant] = [each for each in grants if each["id"] == one.grant]
    assert {vgpu["gpu"][-2:] for vgpu in grant["vgpus"]} == {"00"}
    memory = sum(vgpu["memory_mib"] for each in grants for vgpu in each["vgpus"])
    sessions = len(one.rig.plane.sessions())
    assert one.rig.granted_mib() == memory + CONTEXT_MIB * sessions


@pytest.mark.parametrize("hindrance", HINDRANCES)
def test_services_are_killed_between_two_tries_and_it_goes_on_when_it_can(
    hinder: OpenRig, hindrance: str
) -> None:
    one = HINDRANCES[hindrance](hinder)
    one.begin_to_check()
    for service in SERVICES:
        kill(one.rig, service)
        assert one.waits(), f"nothing has changed but the {service}"
    one.clear()
    goes_on(one)


ENDS = [(each, "client") for each in HINDRANCES] + [("context", "worker"), ("turn", "worker")]


@pytest.mark.parametrize(("hindrance", "who"), ENDS)
def test_it_ends_between_two_tries_and_nothing_of_it_is_left(
    hinder: OpenRig, hindrance: str, who: str
) -> None:
    one = HINDRANCES[hindrance](hinder)
    others = len(one.rig.plane.session_worker_pids()) - len(one.subjects)
    traces = traces_of(one)
    workers = [one.rig.worker_of(subject) for subject in one.subjects]
    began = time.monotonic()
    for subject, worker in zip(one.subjects, workers, strict=True):
        if who == "client":
            subject.kill()
        else:
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(Failed):
                has_error(subject)
            subject.kill()
    traces.wait_gone(f"{who} killed while its return is hindered by {hindrance}", began)
    assert len(one.rig.plane.session_worker_pids()) == others
    one.clear()
    is_right(one.rig.begin())
    assert one.rig.plane.rest.get(f"/grants/{one.grant}").json()["state"] == "ended"


def traces_of(one: Unreturned) -> Traces:
    """Of its sessions alone."""
    found = Traces(one.rig.plane)
    pids = {subject.pid for subject in one.subjects}
    for record in one.rig.plane.worker_records():
        if record["session"] and record["session"]["asker"]["pid"] in pids:
            found.add(record)
    assert len(found.workers) == len(pids)
    return found


def has_error(subject: Subject) -> None:
    """What it is told is no answer; one that it was asked for before is read first."""
    subject.ask("check")
    subject.ask("check")


@pytest.mark.parametrize("hindrance", ["context", "part"])
def test_services_are_killed_at_any_moment_of_a_try(hinder: OpenRig, hindrance: str) -> None:
    one = HINDRANCES[hindrance](hinder)
    one.begin_to_check()
    chance = random.Random(SEED)
    for number in range(TRIES):
        one.try_again()
        time.sleep(chance.uniform(0.0, 0.4))
        kill(one.rig, SERVICES[number % 2])
    one.clear()
    goes_on(one)


@pytest.mark.parametrize("who", ["server", "controller", "client", "worker"])
def test_somebody_is_killed_while_nobody_answers_for_a_restore(hinder: OpenRig, who: str) -> None:
    """Who asks the driver is killed, and until it is known what came of that the next one is."""
    rig = hinder(**SLOW)
    subject = rig.begin()
    grant = rig.take_off(subject)
    one = Unreturned(rig, grant, [subject], lambda: None)
    rig.order(subject, "resume")
    wait_for(lambda: helpers_of(rig.plane), message="the driver to be asked")
    time.sleep(0.3)
    for pid in helpers_of(rig.plane):
        os.kill(pid, signal.SIGKILL)
    traces, began = traces_of(one), time.monotonic()
    if who in SERVICES:
        one.begin_to_check()
        kill(rig, who)
        goes_on(one)
        return
    if who == "client":
        subject.kill()
    else:
        os.kill(traces.worker, signal.SIGKILL)
        with pytest.raises(Failed):
            has_error(subject)
        subject.kill()
    traces.wait_gone(f"{who} killed while nobody answers for its restore", began)
    assert rig.granted_mib() == 0


def test_a_job_that_its_server_left_in_part_goes_on_whole(hinder: OpenRig) -> None:
    """It was killed when one of three had come back; the others found no room behind that."""
    one = left_in_part(hinder)
    one.clear()
    one.rig.plane.start_server()
    goes_on(one)


def test_a_job_that_its_server_left_in_part_is_suspended_whole_where_there_is_no_room(
    hinder: OpenRig,
) -> None:
    one = left_in_part(hinder)
    one.rig.plane.start_server()
    wait_for(
        lambda: one.rig.suspension(one.grant).get("state") == "suspended",
        message="the part that runs to be suspended, too",
    )
    assert NO_PLACE in one.rig.suspension(one.grant)["note"]
    one.clear()
    goes_on(one)


def left_in_part(hinder: OpenRig) -> Unreturned:
    """With the server away: one session of three runs, and two are out."""
    rig = hinder({"checkpoint_contexts": "off"}, SLUICE_SOFTGPU_MEMORY_MIB=str(2 * GPU_MIB))
    job = {"SLUICE_JOB": "7" * 32, "SLUICE_GMEM": "240"}
    subjects = [begin_larger(rig, **job) for _ in range(3)]
    rig.stays(subjects[0])
    grant = rig.plane.grants()[0]["id"]
    hog = rig.hog(MOVED_MIB + MORE_MIB + ROOM_OF_A_CONTEXT)
    one = Unreturned(rig, grant, subjects, hog.kill)
    one.begin_to_check()
    workers = [rig.worker_of(subject) for subject in subjects]
    with stopped(workers[1]), stopped(workers[2]):
        rig.order(subjects[0], "resume")
        wait_for(lambda: len(one.done()) == 1, message="the first of them to go on")
        rig.plane.stop("server", signal.SIGKILL)
    return one


@pytest.mark.parametrize(("service", "later"), [("server", 0.0), ("server", 0.1), ("arbiter", 0.0)])
def test_a_job_of_three_is_suspended_whole_or_not_at_all(
    hinder: OpenRig, service: str, later: float
) -> None:
    rig = hinder()
    job = {"SLUICE_JOB": "8" * 32, "SLUICE_GMEM": "120"}
    subjects = [rig.begin(**job) for _ in range(3)]
    workers = [rig.worker_of(subject) for subject in subjects]
    with stopped(workers[2]):
        grant = rig.order(subjects[0])
        time.sleep(later)
        if service == "server":
            rig.plane.stop(service, signal.SIGKILL)
        else:
            kill(rig, service)
    if service == "server":
        rig.plane.start_server()
    wait_for(
        lambda: rig.suspension(grant).get("state") in ("suspended", None),
        message="it to be suspended, or to run",
    )
    one = Unreturned(rig, grant, subjects, lambda: None)
    one.begin_to_check()
    if rig.suspension(grant):
        assert one.waits()
        assert not one.done(), "all of it stands still"
    goes_on(one)
