# SPDX-License-Identifier: Apache-2.0
"""Guests may kill, die, pause, be detached and write rubbish: all comes back, others go on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from control_plane import ControlPlane, wait_for
from region_slots import FREE

from .conftest import PAUSE_SECONDS, doorbell_pid
from .guests import (
    REGION_MIB,
    SLOTS,
    Fleet,
    Guest,
    GuestProgram,
    prepare,
    region_file,
    slot_states,
    wait_usable,
)
from .prompted import ENDLESS, is_cuda_error
from .traces import LIMIT, Traces

pytestmark = [
    pytest.mark.vm,
    pytest.mark.slow,
    pytest.mark.control_plane(shared="guests_plane"),
]
#: A kernel of a second or a few on the software GPU.
ROUNDS = 1_000_000
RIGHT = "compute: wrong 0 of 1000"


@pytest.fixture(scope="module")
def shared(fleet: Fleet) -> Guest:
    """The guest of the tests that leave it as they found it."""
    return fleet.make("shared")


@pytest.fixture
def quiet(plane: ControlPlane) -> Iterator[None]:
    """No session before the test, none after it."""
    wait_for(lambda: not plane.grants(), LIMIT, "the last test's grants to return")
    yield
    for grant in plane.grants():
        plane.rest.delete(f"/grants/{grant['id']}")


def end_of(guest: Guest, program: GuestProgram) -> None:
    program.signal("KILL")
    wait_for(lambda: slot_states(guest) == [FREE] * SLOTS, LIMIT, "the slot to be free")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("state", ["idle", "in mid-kernel", "in a blocking call"])
def test_of_an_application_killed_in_a_guest_nothing_remains(
    plane: ControlPlane, shared: Guest, state: str
) -> None:
    application = GuestProgram(shared)
    if state != "idle":
        assert application.ask(f"launch {ENDLESS}") == "launch: ok"
    if state == "in a blocking call":
        application.say("wait")
        assert application.is_silent(0.5)
    traces = Traces.of(plane)
    assert slot_states(shared) != [FREE] * SLOTS
    began = time.monotonic()
    application.signal("KILL")
    traces.wait_gone(f"kill -9 in a guest, {state}", began)
    wait_for(lambda: slot_states(shared) == [FREE] * SLOTS, LIMIT, "the slot to be free")
    following = GuestProgram(shared)
    assert following.ask("compute") == RIGHT
    following.quit()


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("call", ["wait", "poll-event", "wait-event"])
def test_a_killed_worker_is_a_cuda_error_in_a_guest(
    plane: ControlPlane, shared: Guest, call: str
) -> None:
    application = GuestProgram(shared)
    assert application.ask(f"launch {ENDLESS}") == "launch: ok"
    traces = Traces.of(plane)
    application.say(call)
    assert application.is_silent(0.5)
    began = time.monotonic()
    os.kill(traces.worker, signal.SIGKILL)
    assert is_cuda_error(application.answer(LIMIT + 15))
    traces.wait_gone(f"kill -9 of a guest's worker during {call}", began)
    assert is_cuda_error(application.ask("compute")), "the error stays"
    application.quit()
    following = GuestProgram(shared)
    assert following.ask("compute") == RIGHT
    following.quit()


@pytest.mark.usefixtures("quiet")
def test_processes_of_a_guest_run_at_once_and_one_too_many_is_told_why_not(
    plane: ControlPlane, shared: Guest
) -> None:
    programs = [GuestProgram(shared) for _ in range(SLOTS)]
    traces = Traces.of(plane, SLOTS)
    for program in programs:
        assert program.ask(f"launch {ROUNDS}") == "launch: ok"
    one_too_many = GuestProgram(shared, opened=False)
    assert is_cuda_error(one_too_many.ask("open"))
    assert f"all {SLOTS} slots of this machine's region are in use" in one_too_many.errors()
    one_too_many.quit()
    for program in programs:
        assert program.ask(f"turned {ROUNDS}") == "turned: right"
        assert program.ask("compute") == RIGHT
    programs[0].quit()
    wait_for(lambda: FREE in slot_states(shared), LIMIT, "a slot to be free")
    following = GuestProgram(shared)
    assert following.ask("compute") == RIGHT
    following.quit()
    for program in programs[1:]:
        program.quit()
    traces.wait_gone(f"exit of {SLOTS} programs of a guest", time.monotonic())


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_guests_session_survives_the_servers_restart(
    plane: ControlPlane, shared: Guest, how: signal.Signals
) -> None:
    application = GuestProgram(shared)
    traces = Traces.of(plane)
    before = plane.grants()
    assert application.ask(f"launch {ROUNDS}") == "launch: ok"
    application.say("wait")
    plane.stop("server", how)
    assert application.answer() == "wait: ok"
    assert application.ask("compute") == RIGHT, "while no server runs"
    plane.start_server()
    assert application.ask(f"turned {ROUNDS}") == "turned: right"
    assert application.ask("compute") == RIGHT, "after the restart"
    assert plane.grants() == before
    assert [s["id"] for s in plane.sessions()] == list(traces.sessions)
    began = time.monotonic()
    application.signal("KILL")
    traces.wait_gone("kill -9 in a guest after the server's restart", began)
    following = GuestProgram(shared)
    assert following.ask("compute") == RIGHT
    following.quit()


@pytest.mark.usefixtures("quiet")
def test_a_guest_destroyed_in_mid_kernel_gives_all_back_and_is_served_after_its_next_start(
    plane: ControlPlane, fleet: Fleet
) -> None:
    guest = fleet.make("destroyed")
    applications = [GuestProgram(guest) for _ in range(2)]
    for application in applications:
        assert application.ask(f"launch {ENDLESS}") == "launch: ok"
    applications[1].say("wait")
    traces = Traces.of(plane, 2)
    began = time.monotonic()
    guest.destroy()  # returns once QEMU has ended
    destroyed = time.monotonic()
    print(f"virsh destroy itself took {destroyed - began:.2f} s")
    traces.wait_gone("virsh destroy in mid-kernel", destroyed)
    # the definition keeps its channel, so the region stays for the next start
    assert region_file(guest).stat().st_size == REGION_MIB << 20
    wait_for(lambda: slot_states(guest) == [FREE] * SLOTS, LIMIT, "the slots to be free")
    guest.start()
    guest.wait_ready()
    prepare(guest)
    following = GuestProgram(guest)
    assert following.ask("compute") == RIGHT
    traces = Traces.of(plane)
    began = time.monotonic()
    guest.undefine()
    traces.wait_gone("undefine of a running guest", began)
    wait_for(lambda: not region_file(guest).exists(), LIMIT, "the region to be deleted")


@pytest.mark.usefixtures("quiet")
def test_a_paused_guest_and_a_stopped_application_in_another_survive(
    plane: ControlPlane, fleet: Fleet, shared: Guest
) -> None:
    paused = fleet.make("paused")
    applications = [GuestProgram(paused), GuestProgram(paused), GuestProgram(shared)]
    stopped = applications[2]
    for application in applications[1:]:
        assert application.ask(f"launch {ROUNDS}") == "launch: ok"
        application.say("wait")
    traces = Traces.of(plane, len(applications))
    stopped.signal("STOP")
    paused.pause()
    time.sleep(PAUSE_SECONDS)
    assert {g["id"] for g in plane.grants()} == traces.grants
    paused.resume()
    stopped.signal("CONT")
    for application in applications[1:]:
        assert application.answer() == "wait: ok"
        assert application.ask(f"turned {ROUNDS}") == "turned: right"
    for application in applications:
        assert application.ask("compute") == RIGHT
    assert {g["id"] for g in plane.grants()} == traces.grants
    began = time.monotonic()
    for application in applications:
        application.quit()
    traces.wait_gone("exit of applications that were paused and stopped for long", began)


@pytest.mark.usefixtures("quiet")
def test_a_detached_guests_programs_get_an_error_and_do_not_hang(
    plane: ControlPlane, fleet: Fleet
) -> None:
    guest = fleet.make("detached")
    waiting, polling, idle = (GuestProgram(guest) for _ in range(3))
    for application in (waiting, polling):
        assert application.ask(f"launch {ENDLESS}") == "launch: ok"
    waiting.say("wait")
    polling.say("poll-event")
    assert waiting.is_silent(0.5)
    traces = Traces.of(plane, 3)
    began = time.monotonic()
    assert fleet.vm("detach", guest.name) == 0
    for application in (waiting, polling):
        assert is_cuda_error(application.answer(LIMIT + 15))
    assert is_cuda_error(idle.ask("compute", LIMIT + 15))
    traces.wait_gone("sluice vm detach while programs run", began)
    assert not region_file(guest).exists()
    fleet.attach(guest)
    wait_usable(guest)
    following = GuestProgram(guest)
    assert following.ask("compute") == RIGHT
    following.quit()


@pytest.mark.usefixtures("quiet")
def test_a_guest_that_writes_over_its_whole_region_harms_itself_alone(
    plane: ControlPlane, fleet: Fleet, shared: Guest
) -> None:
    assert plane.server
    server, doorbell = plane.server.pid, doorbell_pid(plane)
    hostile = fleet.make("hostile")
    victim = GuestProgram(hostile)
    assert victim.ask(f"launch {ENDLESS}") == "launch: ok"
    neighbour = GuestProgram(shared)
    assert neighbour.ask(f"launch {ROUNDS}") == "launch: ok"
    for seed in range(3):
        hostile.check(
            "/root/scribble $(dirname $(grep -l 0x1110 /sys/bus/pci/devices/*/device))/resource2 "
            f"{seed} 2",
            timeout=180,
        )
        assert neighbour.ask("compute") == RIGHT
    assert neighbour.ask("wait") == "wait: ok"
    assert neighbour.ask(f"turned {ROUNDS}") == "turned: right"
    own = [s for s in plane.sessions() if s["domain_name"] == hostile.name]
    wait_for(
        lambda: not [s for s in plane.sessions() if s["domain_name"] == hostile.name],
        LIMIT,
        f"the hostile guest's session to end: {own}",
    )
    assert plane.server.poll() is None
    assert (plane.server.pid, doorbell_pid(plane)) == (server, doorbell)
    following = GuestProgram(shared)
    assert following.ask("compute") == RIGHT, "the doorbell serves others"
    following.quit()
    hostile.restart()
    prepare(hostile)
    reformed = GuestProgram(hostile)
    assert reformed.ask("compute") == RIGHT, "a rebooted guest is served again"
    end_of(hostile, reformed)
    hostile.check(
        "/root/scribble $(dirname $(grep -l 0x1110 /sys/bus/pci/devices/*/device))/resource2 9 1",
        timeout=180,
    )
    assert fleet.vm("detach", hostile.name) == 0
    fleet.attach(hostile)
    wait_usable(hostile)
    reformed = GuestProgram(hostile)
    assert reformed.ask("compute") == RIGHT, "and so is one that is attached anew"
    reformed.quit()
    neighbour.quit()
