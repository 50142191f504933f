# SPDX-License-Identifier: Apache-2.0
"""Sessions that go on on another GPU of their node, and what may happen on the way there.

On two software GPUs that have the ways of cards (test_checkpointed_sessions.py); they restore a
process by a map as a driver does, and refuse with an error where a card would hang. Everything else
is real: workers, the server and the process that asks the driver, the controller, who are killed
where it hurts.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
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
from .suspended import SUBJECT, Failed, Subject, grant_of, sluice
from .traces import Traces

PROGRAM = SUBJECT.with_name("moving_subject.py")
SLOW = {"SLUICE_SOFTGPU_CHECKPOINT_MS": "1500"}
UUID = "GPU-536c7569-6365-4000-8073-6f66746770{:02x}"
MOVES = 10
CHANNELS = pytest.mark.parametrize("channel", ["shm", "tcp"])
SIGNALS = pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
WHOLE = VGPU_MIB + CONTEXT_MIB
SLAB_MIB = 2  # what a step may take besides


@pytest.fixture(scope="module")
def open_rig(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenRig]:
    """Rigs of two GPUs."""
    with rigs(tmp_path_factory.mktemp, gpus=2, movable="on") as opened:
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


def gpu_of(rig: Rig, grant: str) -> int:
    """The number of the GPU that a grant is booked on."""
    [vgpu] = rig.plane.rest.get(f"/grants/{grant}").json()["vgpus"]
    return int(vgpu["gpu"][-2:], 16)


def taken(rig: Rig, worker: int) -> list[int]:
    """MiB of each GPU that a process has."""
    return [rig.card.taken_mib(worker, device) for device in range(2)]


def begin(rig: Rig, channel: str = "shm", **more: Any) -> tuple[Subject, str, int]:
    """A program, its grant and its worker."""
    subject = rig.begin(channel, program=PROGRAM, **more)
    return subject, grant_of(rig.plane, subject.pid)["id"], rig.worker_of(subject)


def order(rig: Rig, grant: str, gpu: int | str = "") -> Any:
    return rig.plane.rest.post(f"/grants/{grant}/move", json={"gpu": str(gpu)})


def move(rig: Rig, grant: str, gpu: int) -> None:
    """And waits until it goes on there."""
    ordered = order(rig, grant, gpu)
    assert ordered.status_code == 202, ordered.text
    arrives(rig, grant, gpu)


def arrives(rig: Rig, grant: str, gpu: int) -> None:
    wait_for(
        lambda: not rig.suspension(grant) and gpu_of(rig, grant) == gpu,
        message=lambda: f"it to go on on GPU {gpu}: {rig.plane.rest.get(f'/grants/{grant}').text}",
    )


@CHANNELS
def test_a_training_moved_back_and_forth_has_the_results_of_one_left_alone(
    rig: Rig, channel: str
) -> None:
    alone, _, _ = begin(rig, channel)
    expected = alone.ask("train", steps=MOVES)["left"]
    alone.kill()
    wait_for(lambda: not rig.plane.grants(), message="it to be gone")
    subject, grant, worker = begin(rig, channel)
    subject.ask("train", steps=0)  # its memory
    whole = taken(rig, worker)
    assert (whole[0] >= CONTEXT_MIB + MOVED_MIB, whole[1]) == (True, 0)
    left = []
    for step in range(MOVES):
        there = 1 - step % 2
        subject.tell("train", steps=1)
        move(rig, grant, there)
        said = subject.answer()
        left += said["left"]
        assert said["devices"] == 1, "the others are no business of its"
        held = taken(rig, worker)
        assert held[1 - there] == 0, "nothing stays"
        assert whole[0] <= held[there] <= whole[0] + SLAB_MIB
        assert [rig.granted_mib(n) for n in range(2)] == [WHOLE * (n == there) for n in range(2)]
    assert left == expected
    is_right(subject)
    assert len(rig.events(grant, "grant.moved")) == MOVES


def test_the_command_moves_it_and_says_where_it_is(rig: Rig) -> None:
    subject, grant, worker = begin(rig)
    done = sluice(rig.plane, "grant", "move", grant)
    assert done.returncode == 0, done.stderr
    assert UUID.format(1) in done.stdout
    assert taken(rig, worker)[0] == 0
    done = sluice(rig.plane, "grant", "move", grant, "--gpu", UUID.format(1))
    assert done.returncode != 0
    assert "already" in done.stderr
    done = sluice(rig.plane, "grant", "move", grant, "--gpu", "0")
    assert (done.returncode, taken(rig, worker)[1]) == (0, 0), done.stderr
    is_right(subject)


def test_what_it_takes_after_a_move_is_of_the_gpu_that_it_is_on(rig: Rig) -> None:
    subject, grant, worker = begin(rig)
    move(rig, grant, 1)
    before = taken(rig, worker)
    subject.ask("slab", mib=16, piece_mib=2)
    assert subject.ask("check") == {"wrong": 0}
    assert taken(rig, worker) == [0, before[1] + 16]
    [vgpu] = [v for v in rig.plane.rest.get("/vgpus").json()["vgpus"] if v["grant_id"] == grant]
    assert vgpu["gpu"].endswith(UUID.format(1))


def test_one_that_is_suspended_comes_back_elsewhere_where_its_gpu_is_taken(rig: Rig) -> None:
    subject, grant, worker = begin(rig)
    rig.take_off(subject)
    whole = GPU_MIB - CONTEXT_MIB - CONTEXT_MIB - LEFT_MIB
    other, its, _ = begin(rig, SLUICE_GMEM=str(whole), SLUICE_WAIT="0")
    assert gpu_of(rig, its) == 0, "the fuller one"
    assert rig.plane.rest.post(f"/grants/{grant}/resume").status_code == 202
    arrives(rig, grant, 1)
    assert taken(rig, worker)[0] == 0
    is_right(subject)
    is_right(other)


def test_a_gpu_that_is_drained_is_left_by_what_can_be_moved(rig: Rig) -> None:
    subject, grant, worker = begin(rig)
    uuid = UUID.format(0)
    done = sluice(rig.plane, "gpu", "drain", uuid, "--wait", "60")
    assert done.returncode == 0, done.stderr + done.stdout
    arrives(rig, grant, 1)
    assert taken(rig, worker)[0] == 0
    is_right(subject)
    done = sluice(rig.plane, "gpu", "undrain", uuid)
    assert done.returncode == 0, done.stderr


def test_a_gpu_that_a_session_sees_is_given_to_no_vm_before_that_ends(rig: Rig) -> None:
    """And is seen by nobody who begins then."""
    subject, grant, _ = begin(rig)
    gpu = rig.plane.rest.get("/gpus").json()["gpus"][1]

    def switched() -> dict[str, Any]:
        return dict(rig.plane.rest.get(f"/gpus/{gpu['id']}").json())

    rig.plane.rest.put(f"/gpus/{gpu['id']}/switch", json={"to": "native"}).raise_for_status()

    def why() -> str:
        return rig.plane.rest.get(f"/gpus/{gpu['id']}/switch").text

    wait_for(lambda: "sees it" in why(), message=why)
    is_right(subject)
    assert order(rig, grant, 1).status_code == 409
    subject.kill()
    wait_for(lambda: switched()["mode"] == "native", message=lambda: str(switched()))
    other, its, worker = begin(rig)
    assert "--beside" not in Path(f"/proc/{worker}/cmdline").read_text()
    rig.plane.rest.put(f"/gpus/{gpu['id']}/switch", json={"to": "pooled"}).raise_for_status()
    wait_for(lambda: switched()["mode"] == "pooled", message=lambda: str(switched()))
    assert order(rig, its, 1).status_code == 202, "the controller does not know what it sees"
    wait_for(lambda: rig.events(its, "grant.not_moved"), message="it not to be moved")
    assert "its worker sees no other GPU" in rig.events(its, "grant.not_moved")[0]
    arrives(rig, its, 0)
    is_right(other)

    def sees_both() -> bool:
        waiting = [record for record in rig.plane.worker_records() if not record["session"]]
        return len(waiting) == 2 and all(record["beside"] for record in waiting)

    wait_for(sees_both, message=lambda: str(rig.plane.worker_records()))


def test_no_room_on_the_other_is_said_at_once_and_nothing_stands_still(rig: Rig) -> None:
    subject, grant, _ = begin(rig, SLUICE_GMEM="160")
    hog, its, _ = begin(rig, SLUICE_GMEM="160")
    assert gpu_of(rig, its) == 1
    refused = order(rig, grant, 1)
    assert refused.status_code == 409
    assert "MiB and" in refused.json()["detail"]
    assert "no other GPU" in order(rig, grant).json()["detail"]
    assert rig.suspension(grant) == {}
    assert order(rig, grant, 7).status_code == 404
    is_right(subject)
    is_right(hog)


def test_who_is_not_of_the_pool_has_the_others_room_it_stays_out_and_comes_back(rig: Rig) -> None:
    """The restore there would fail for good; on a card NVML shows it before, here it ends."""
    subject, grant, _ = begin(rig)
    _, lost, _ = begin(rig)
    hog = rig.card.beside(rig.plane.folder, CUDA_VISIBLE_DEVICES="1")
    hog.ask("most", but_mib=2)
    assert order(rig, lost, 1).status_code == 202
    wait_for(
        lambda: rig.plane.rest.get(f"/grants/{lost}").json()["state"] == "ended",
        message="it to end",
    )
    why = rig.plane.rest.get(f"/grants/{lost}").json()["reason"]
    assert "the driver could not restore its context: restore: out_of_memory" in why
    hog.kill()
    is_right(subject)
    move(rig, grant, 1)
    is_right(subject)


def test_one_with_memory_for_others_stays_and_the_reason_is_said(rig: Rig) -> None:
    one, grant, _ = begin(rig)
    other, _, _ = begin(rig, filled=False)
    path = str(rig.plane.folder / "handles")
    one.tell("export", path=path)
    other.ask("open", path=path)
    one.answer()
    assert order(rig, grant, 1).status_code == 202
    wait_for(lambda: rig.events(grant, "grant.not_moved"), message="it not to be moved")
    assert "other processes may have memory of it open" in rig.events(grant, "grant.not_moved")[0]
    arrives(rig, grant, 0)
    assert one.ask("check") == other.ask("check") == {"wrong": 0}


def test_where_sessions_do_not_move_the_reason_is_said(open_rig: OpenRig) -> None:
    rig = open_rig({"movable": "off"})
    subject, grant, worker = begin(rig)
    assert "[suspend] movable = on" in order(rig, grant, 1).json()["detail"]
    command = Path(f"/proc/{worker}/cmdline").read_text()
    assert "--beside" not in command, "and its worker sees its own GPU only"
    assert rig.suspension(rig.take_off(subject))["moves_to"] == []
    rig.resume(grant)
    is_right(subject)
    rig.end_programs()


@SIGNALS
@pytest.mark.parametrize("service", ["server", "controller"])
@pytest.mark.parametrize("later", [0.3, 2.2])
def test_a_restart_in_the_middle_of_a_move_finishes_it_or_takes_it_back(
    slow_rig: Rig, service: str, how: signal.Signals, later: float
) -> None:
    """While its context leaves (1.5 s), and while it is restored on the other one."""
    subject, grant, worker = begin(slow_rig)
    subject.tell("train", steps=3)
    assert order(slow_rig, grant, 1).status_code == 202
    wait_for(lambda: helpers_of(slow_rig.plane), message="the driver to be asked")
    time.sleep(later)
    stop_and_start(slow_rig.plane, service, how)
    wait_for(lambda: not slow_rig.suspension(grant), message="it to go on")
    there = gpu_of(slow_rig, grant)
    assert taken(slow_rig, worker)[1 - there] == 0, "it is where it is booked"
    assert [slow_rig.granted_mib(n) for n in range(2)] == [WHOLE * (n == there) for n in range(2)]
    subject.answer()
    is_right(subject)


def stop_and_start(plane: ControlPlane, service: str, how: signal.Signals) -> None:
    plane.stop(service, how)
    if service == "server":
        plane.start_server()
    else:
        plane.start_controller()
        wait_for(lambda: plane.node_state() == "up", message="the server to return by itself")


@pytest.mark.parametrize("later", [0.5, 2.2])
def test_who_asks_the_driver_is_killed_in_the_middle(slow_rig: Rig, later: float) -> None:
    subject, grant, worker = begin(slow_rig)
    assert order(slow_rig, grant, 1).status_code == 202
    wait_for(lambda: helpers_of(slow_rig.plane), message="the driver to be asked")
    time.sleep(later)
    for pid in helpers_of(slow_rig.plane):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not slow_rig.suspension(grant), message="it to go on all the same")
    assert taken(slow_rig, worker)[1 - gpu_of(slow_rig, grant)] == 0
    is_right(subject)


@pytest.mark.parametrize("who", ["client", "worker"])
@pytest.mark.parametrize("later", [0.5, 2.2])
def test_it_ends_while_it_moves_and_nothing_is_left_on_either(
    slow_rig: Rig, who: str, later: float
) -> None:
    subject, grant, worker = begin(slow_rig)
    traces = Traces.of(slow_rig.plane)
    assert order(slow_rig, grant, 1).status_code == 202
    wait_for(lambda: helpers_of(slow_rig.plane), message="the driver to be asked")
    time.sleep(later)
    began = time.monotonic()
    if who == "client":
        subject.kill()
    else:
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(Failed):
            subject.ask("check")
        subject.kill()
    traces.wait_gone(f"{who} killed while its session moves", began)
    assert [slow_rig.granted_mib(n) for n in range(2)] == [0, 0]
    is_right(begin(slow_rig)[0])


JOB_MIB, PROCESSES = 120, 3


def begin_job(rig: Rig) -> tuple[list[Subject], str, list[int]]:
    """Its programs, their grant, their workers."""
    job = {"SLUICE_JOB": secrets.token_hex(16), "SLUICE_GMEM": str(JOB_MIB)}
    begun = [begin(rig, **job) for _ in range(PROCESSES)]
    [grant] = {grant for _, grant, _ in begun}
    return [subject for subject, _, _ in begun], grant, [worker for _, _, worker in begun]


def test_the_processes_of_a_job_move_together(rig: Rig) -> None:
    subjects, grant, workers = begin_job(rig)
    for there in (1, 0, 1):
        for subject in subjects:
            subject.tell("train", steps=1)
        move(rig, grant, there)
        steps = [subject.answer()["left"] for subject in subjects]
        assert steps.count(steps[0]) == PROCESSES, "each has what the others have"
        assert [taken(rig, worker)[1 - there] for worker in workers] == [0] * PROCESSES
        whole = JOB_MIB + PROCESSES * CONTEXT_MIB
        assert [rig.granted_mib(n) for n in range(2)] == [whole * (n == there) for n in range(2)]
    for subject in subjects:
        is_right(subject)


@pytest.mark.parametrize("service", ["server", "controller", "worker"])
def test_somebody_is_killed_while_a_job_moves_and_it_is_on_one_gpu(
    slow_rig: Rig, service: str
) -> None:
    """While its contexts are restored on the other one, one behind the other."""
    subjects, grant, workers = begin_job(slow_rig)
    assert order(slow_rig, grant, 1).status_code == 202
    wait_for(lambda: slow_rig.context(grant) == "off", message="its contexts to leave")
    time.sleep(1.0)
    if service == "worker":
        os.kill(workers.pop(), signal.SIGKILL)
        subjects.pop().kill()
    else:
        stop_and_start(slow_rig.plane, service, signal.SIGKILL)
    wait_for(lambda: not slow_rig.suspension(grant), message="it to go on")
    there = gpu_of(slow_rig, grant)
    for subject in subjects:
        is_right(subject)
    assert [taken(slow_rig, worker)[1 - there] for worker in workers] == [0] * len(workers)
    whole = JOB_MIB + len(workers) * CONTEXT_MIB
    assert [slow_rig.granted_mib(n) for n in range(2)] == [whole * (n == there) for n in range(2)]
