# SPDX-License-Identifier: Apache-2.0
"""Suspended sessions whose contexts have left their GPU by the driver's checkpoint, too.

On a software GPU that has the ways of a card: contexts take memory that others then lack, a process
off the GPU has none of it, a restore without room fails for good. Everything else is real: workers,
the server and the process that asks the driver for it, which are killed where it hurts.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from collections.abc import Iterator

import pytest
from breaking_network import BreakingNetwork
from control_plane import ControlPlane, wait_for

from .card_rig import (
    CONTEXT_MIB,
    GPU_MIB,
    LEFT_MIB,
    MOVED_MIB,
    VGPU_MIB,
    OpenRig,
    Rig,
    helpers_of,
    is_right,
    rigs,
)
from .suspended import SLAB_MIB, Failed, Subject, grant_of, sluice
from .traces import Traces

SLOW = {"SLUICE_SOFTGPU_CHECKPOINT_MS": "1500"}
STILL_SECONDS = 0.3
SEED = 18
CHANNELS = pytest.mark.parametrize("channel", ["shm", "tcp"])
SIGNALS = pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])


@pytest.fixture(scope="module")
def open_rig(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenRig]:
    with rigs(tmp_path_factory.mktemp) as opened:
        yield opened


@pytest.fixture
def rig(open_rig: OpenRig) -> Iterator[Rig]:
    """The usual one."""
    one = open_rig()
    yield one
    one.end_programs()


@pytest.fixture
def slow_rig(open_rig: OpenRig) -> Iterator[Rig]:
    """One on which a checkpoint, and a restore, takes its time."""
    one = open_rig(**SLOW)
    yield one
    one.end_programs()


@CHANNELS
def test_its_context_leaves_the_gpu_and_comes_back_bit_for_bit(rig: Rig, channel: str) -> None:
    subject = rig.begin(channel)
    between, worker = subject.ask("between"), rig.worker_of(subject)
    taken = rig.card.taken_mib(worker)
    assert taken >= CONTEXT_MIB + MOVED_MIB
    assert rig.granted_mib() == VGPU_MIB + CONTEXT_MIB
    for _ in range(3):
        grant = rig.take_off(subject)
        assert rig.card.taken_mib(worker) == 0
        assert rig.granted_mib() == LEFT_MIB
        subject.tell("check")
        with pytest.raises(Failed):
            subject.answer(STILL_SECONDS)
        rig.resume(grant)
        assert subject.answer() == {"wrong": 0}
        assert rig.card.taken_mib(worker) == taken
        assert rig.granted_mib() == VGPU_MIB + CONTEXT_MIB
    is_right(subject)
    assert subject.ask("between") == between


def test_what_is_in_the_drivers_own_memory_comes_back_to_a_restored_context(
    open_rig: OpenRig,
) -> None:
    """The driver restores nobody who has memory of another process open at the checkpoint."""
    ready = {"swap_mib": 2048, "ready_mib": 512}
    rig = open_rig(ready, SLUICE_SOFTGPU_MEMORY_MIB=str(4 * GPU_MIB))
    subject = rig.begin(filled=False, SLUICE_GMEM="600")
    subject.ask("slab", mib=300, piece_mib=30)
    for _ in range(2):
        rig.resume(rig.take_off(subject))
        assert subject.ask("check") == {"wrong": 0}
    rig.end_programs()


def test_the_room_of_its_context_is_another_programs_meanwhile(rig: Rig) -> None:
    subject = rig.begin()
    grant = rig.take_off(subject)
    # of what is not the waiting worker's; with the context there this would not fit
    whole = GPU_MIB - CONTEXT_MIB - CONTEXT_MIB - LEFT_MIB
    other = rig.begin(SLUICE_GMEM=str(whole), SLUICE_WAIT="0")
    is_right(other)
    assert rig.plane.rest.post(f"/grants/{grant}/resume").status_code == 202
    assert rig.context(grant) == "off", "there is no room for it yet"
    other.kill()
    wait_for(lambda: not rig.suspension(grant), message="it to go on by itself")
    is_right(subject)


def test_the_context_of_a_preempted_session_leaves_too(rig: Rig) -> None:
    victim = rig.begin()
    grant = grant_of(rig.plane, victim.pid)["id"]
    rig.plane.rest.put("/quotas/default", json={"may_preempt": True}).raise_for_status()
    urgent = rig.begin(
        SLUICE_GMEM="128",
        SLUICE_PREEMPT="1",
        SLUICE_PRIORITY="5",
        SLUICE_WAIT="60",
    )
    wait_for(lambda: rig.context(grant) == "off", message="the victim's context to leave")
    is_right(urgent)
    urgent.kill()
    wait_for(lambda: not rig.suspension(grant), message="the victim to come back")
    is_right(victim)
    rig.plane.rest.delete("/quotas/default")


def test_the_sessions_of_a_job_leave_together(rig: Rig) -> None:
    job = secrets.token_hex(16)
    both = [rig.begin(SLUICE_JOB=job, SLUICE_GMEM="128") for _ in range(2)]
    grant = rig.take_off(both[0])
    assert [rig.card.taken_mib(rig.worker_of(one)) for one in both] == [0, 0]
    assert rig.granted_mib() == 2 * LEFT_MIB
    rig.resume(grant)
    for one in both:
        is_right(one)


def test_who_has_anothers_memory_open_keeps_its_context_and_who_exported_it_does_not(
    rig: Rig,
) -> None:
    one, other = rig.begin(), rig.begin(filled=False)
    path = str(rig.plane.folder / "handles")
    one.tell("export", path=path)
    other.ask("open", path=path)
    one.answer()
    shown = rig.stays(other)
    assert shown["context_stays"] == "opened_memory"
    assert "memory of another process open" in shown["context_note"]
    rig.resume(grant_of(rig.plane, other.pid)["id"])
    grant = rig.take_off(one)
    stays = grant_of(rig.plane, one.pid)["vgpus"][0]["memory_mib"]
    assert stays >= SLAB_MIB
    assert rig.card.taken_mib(rig.worker_of(one)) == stays, "what is booked is what is there"
    assert other.ask("check") == {"wrong": 0}, "who has it open uses it on"
    rig.resume(grant)
    is_right(one)
    assert other.ask("check") == {"wrong": 0}


@SIGNALS
@pytest.mark.parametrize("service", ["server", "controller"])
def test_a_restart_changes_nothing(rig: Rig, service: str, how: signal.Signals) -> None:
    subject = rig.begin()
    grant = rig.take_off(subject)
    subject.tell("check")
    rig.plane.stop(service, how)
    if service == "server":
        rig.plane.start_server()
    else:
        rig.plane.start_controller()
        wait_for(lambda: rig.plane.node_state() == "up", message="the server to return by itself")
    wait_for(lambda: rig.context(grant) == "off", message="it to be known to be off")
    assert rig.card.taken_mib(rig.worker_of(subject)) == 0
    assert rig.granted_mib() == LEFT_MIB
    rig.resume(grant)
    assert subject.answer() == {"wrong": 0}
    is_right(subject)


def test_the_server_is_killed_while_its_context_leaves(slow_rig: Rig) -> None:
    """The driver carries it out, and the next server learns of it."""
    subject = slow_rig.begin()
    grant = slow_rig.order(subject)
    wait_for(lambda: helpers_of(slow_rig.plane), message="the driver to be asked")
    wait_for(lambda: slow_rig.context(grant) == "leaving", message="its context to be about to go")
    slow_rig.plane.stop("server", signal.SIGKILL)
    slow_rig.plane.start_server()
    wait_for(lambda: slow_rig.context(grant) == "off", message="it to be known to be off")
    slow_rig.resume(grant)
    is_right(subject)


@pytest.mark.parametrize("way", ["out", "back"])
def test_who_asks_the_driver_is_killed_in_the_middle(slow_rig: Rig, way: str) -> None:
    subject = slow_rig.begin()
    if way == "out":
        grant = slow_rig.order(subject)
        wait_for(lambda: helpers_of(slow_rig.plane), message="the driver to be asked")
        kill_soon(slow_rig.plane)
        wait_for(lambda: slow_rig.context(grant) == "off", message="it to be off all the same")
        slow_rig.resume(grant)
    else:
        grant = slow_rig.take_off(subject)
        assert slow_rig.plane.rest.post(f"/grants/{grant}/resume").status_code == 202
        kill_soon(slow_rig.plane)
        wait_for(lambda: not slow_rig.suspension(grant), message="it to go on all the same")
    is_right(subject)


def kill_soon(plane: ControlPlane) -> None:
    """Somewhere in the 1.5 s that a call takes."""
    time.sleep(0.5)
    for pid in helpers_of(plane):
        os.kill(pid, signal.SIGKILL)


@CHANNELS
def test_its_client_is_killed(rig: Rig, channel: str) -> None:
    subject = rig.begin(channel)
    rig.take_off(subject)
    traces = Traces.of(rig.plane)
    began = time.monotonic()
    subject.kill()
    traces.wait_gone(f"kill -9 of the client of a session off the GPU, over {channel}", began)
    assert rig.granted_mib() == 0
    rig.take_off(rig.begin(channel))  # its host memory has come back, too


@pytest.mark.parametrize("how", ["client", "worker", "operator"])
def test_it_ends_while_its_context_leaves(slow_rig: Rig, how: str) -> None:
    subject = slow_rig.begin()
    slow_rig.order(subject)
    wait_for(lambda: helpers_of(slow_rig.plane), message="the driver to be asked")
    time.sleep(0.3)
    traces = Traces.of(slow_rig.plane)
    began = time.monotonic()
    end(slow_rig, subject, traces, how)
    if how != "client":
        with pytest.raises(Failed):
            subject.ask("check")
        subject.kill()
    traces.wait_gone(f"a session whose context leaves is ended by its {how}", began)
    is_right(slow_rig.begin())


@pytest.mark.parametrize("how", ["worker", "operator"])
def test_it_is_ended_while_it_is_off(rig: Rig, how: str) -> None:
    subject = rig.begin()
    rig.take_off(subject)
    traces = Traces.of(rig.plane)
    began = time.monotonic()
    end(rig, subject, traces, how)
    with pytest.raises(Failed):
        subject.ask("check")
    subject.kill()
    traces.wait_gone(f"a session off the GPU is ended by its {how}", began)


def end(rig: Rig, subject: Subject, traces: Traces, how: str) -> None:
    if how == "client":
        subject.kill()
    elif how == "worker":
        os.kill(traces.worker, signal.SIGKILL)
    else:
        [session] = traces.sessions
        done = sluice(rig.plane, "session", "end", session)
        assert done.returncode == 0, done.stderr


def test_without_room_at_its_restore_it_ends_with_the_reason_and_nobody_else_notices(
    rig: Rig,
) -> None:
    """Somebody takes the card's memory who is not one of the pool's."""
    lost, beside = rig.begin(), rig.begin()
    grant = rig.take_off(lost)
    hog = rig.beside()
    hog.ask("most", but_mib=2)
    assert rig.plane.rest.post(f"/grants/{grant}/resume").status_code == 202
    wait_for(
        lambda: rig.plane.rest.get(f"/grants/{grant}").json()["state"] == "ended",
        message="it to end",
    )
    with pytest.raises(Failed):
        lost.ask("check")
    why = rig.plane.rest.get(f"/grants/{grant}").json()["reason"]
    assert "the driver could not restore its context: restore: out_of_memory" in why
    hog.kill()
    is_right(beside)
    is_right(rig.begin())


def test_its_client_loses_its_connection_and_comes_back_while_it_is_off(
    open_rig: OpenRig,
) -> None:
    rig = open_rig(server={"advertise_addr": "127.0.0.2", "network_grace_seconds": 300})
    with BreakingNetwork(rig.plane.data_port) as way:
        subject = rig.begin("tcp")
        grant = rig.take_off(subject)
        subject.tell("check")
        for _ in range(2):
            before = len(way.connections)
            way.cut()
            wait_for(lambda before=before: len(way.connections) > before, message="its return")
        assert rig.context(grant) == "off"
        rig.resume(grant)
        assert subject.answer() == {"wrong": 0}
        is_right(subject)
        rig.end_programs()


def test_where_it_is_switched_off_its_context_stays_and_the_reason_is_shown(
    open_rig: OpenRig,
) -> None:
    rig = open_rig({"checkpoint_contexts": "off"})
    subject = rig.begin()
    shown = rig.stays(subject)
    assert (shown["context_stays"], helpers_of(rig.plane)) == ("off", [])
    assert "[suspend] checkpoint_contexts of its node is off" in shown["context_note"]
    assert rig.granted_mib() >= CONTEXT_MIB
    assert rig.card.taken_mib(rig.worker_of(subject)) >= CONTEXT_MIB
    rig.resume(grant_of(rig.plane, subject.pid)["id"])
    is_right(subject)
    rig.end_programs()


def test_too_little_memory_is_out_for_it_to_come_back_safely(rig: Rig) -> None:
    subject = rig.begin(filled=False)
    assert rig.stays(subject)["context_stays"] == "little_memory"


def test_orders_and_kills_at_random_lose_nobody(open_rig: OpenRig) -> None:
    """Suspending and resuming two programs, while who asks the driver and the server are killed.

    SLUICE_LONG has it go on for longer.
    """
    rig = open_rig(SLUICE_SOFTGPU_CHECKPOINT_MS="150")
    chance = random.Random(SEED)
    subjects = [rig.begin(channel) for channel in ("shm", "tcp")]
    grants = [grant_of(rig.plane, subject.pid)["id"] for subject in subjects]

    def ordered(what: str) -> None:
        rig.plane.rest.post(f"/grants/{chance.choice(grants)}/{what}")  # 409: it is so already

    def killed() -> None:
        for pid in helpers_of(rig.plane):
            os.kill(pid, signal.SIGKILL)

    def restarted() -> None:
        rig.plane.stop("server", chance.choice([signal.SIGTERM, signal.SIGKILL]))
        rig.plane.start_server()

    for _ in range(200 if os.environ.get("SLUICE_LONG") else 40):
        kind = chance.choices(["suspend", "resume", "kill", "restart"], [8, 8, 3, 1])[0]
        if kind in ("suspend", "resume"):
            ordered(kind)
        else:
            (killed if kind == "kill" else restarted)()
        time.sleep(chance.uniform(0, 0.4))
    for grant in grants:
        rig.resume_at_last(grant)
    for subject in subjects:
        is_right(subject)
    assert rig.granted_mib() == len(subjects) * (VGPU_MIB + CONTEXT_MIB)
    rig.end_programs()
