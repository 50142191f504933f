# SPDX-License-Identifier: Apache-2.0
"""Real guests whose region has a doorbell: QEMU's ivshmem-doorbell and a server of ours."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, wait_for

from sluice.hypervisor.domain_document import DomainDocument, parse_domain

from .conftest import doorbell_pid
from .guests import Fleet, Guest, GuestProgram, Rig, prepare
from .traces import LIMIT, wait_nothing_left

RIGHT = "compute: wrong 0 of 1000"
FIGURES = {"memory_mib": 64, "compute": 10, "region_mib": 64}

pytestmark = [pytest.mark.vm, pytest.mark.slow]


@pytest.fixture(scope="module")
def fleet(guests_rig: Rig, guests_plane: ControlPlane) -> Iterator[Fleet]:
    guests = Fleet(guests_rig, guests_plane)
    yield guests
    guests.close()
    folders = guests_plane.folder / "run" / "ivshmem"
    wait_for(lambda: not list(folders.glob("[!.]*")), LIMIT, "their servers' folders to go")


def document(guest: Guest) -> DomainDocument:
    return parse_domain(guest.domain.XMLDesc())


def has_doorbell(guest: Guest) -> bool:
    region = document(guest).region
    return region is not None and region.server is not None


@pytest.fixture(scope="module")
def guest(fleet: Fleet) -> Guest:
    """One that got its request by virsh while it was off, and was then started."""
    made = fleet.rig.define_guest("doorbelled", mem_mib=384, vcpus=1)
    fleet.adopt(made)
    written = " ".join(f"{key.replace('_', '-')}='{value}'" for key, value in FIGURES.items())
    fleet.virsh(
        *("metadata", made.name, "https://sluice.dev/xmlns/libvirt/1", "--config"),
        *("--key", "sluice", "--set", f"<vgpu {written} channel='ivshmem-doorbell'/>"),
    )
    wait_for(lambda: has_doorbell(made), LIMIT, "the device in the definition")
    device_socket = fleet.plane.folder / "run" / "ivshmem" / made.uuid / "server"
    wait_for(device_socket.exists, LIMIT, "its server")
    made.start()
    made.wait_ready()
    prepare(made)
    return made


def bells_of(pid: int) -> dict[str, int]:
    """The eventfds of a process by descriptor, with what was rung and not yet heard."""
    found = {}
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        if str(descriptor.readlink()) == "anon_inode:[eventfd]":
            told = Path(f"/proc/{pid}/fdinfo/{descriptor.name}").read_text()
            count = re.search(r"eventfd-count:\s*([0-9a-f]+)", told)
            assert count is not None
            found[descriptor.name] = int(count[1], 16)
    return found


def rings(plane: ControlPlane, program: GuestProgram) -> bool:
    """Whether what the program asks for rings while nobody listens, and is answered then."""
    doorbell = doorbell_pid(plane)
    time.sleep(1)  # the worker sleeps
    os.kill(doorbell, signal.SIGSTOP)
    try:
        program.say("compute")
        wait_for(lambda: any(bells_of(doorbell).values()), message="the bell")
    finally:
        os.kill(doorbell, signal.SIGCONT)
    assert program.answer(LIMIT) == RIGHT
    wait_for(lambda: not any(bells_of(doorbell).values()), LIMIT, "it to be heard")
    return True


def has_another_doorbell(plane: ControlPlane, before: int) -> bool:
    """Whether a new doorbell process has the bell."""
    try:
        now = doorbell_pid(plane)
        return now != before and bool(bells_of(now))
    except (AssertionError, OSError):  # none at the moment
        return False


def test_a_guest_rings_its_host(guests_plane: ControlPlane, guest: Guest) -> None:
    program = GuestProgram(guest)
    assert program.ask("compute") == RIGHT
    [session] = guests_plane.sessions()
    assert session["channel"] == "ivshmem"
    assert "its doorbell wakes the host" in guest.check("sluice check")
    assert rings(guests_plane, program)
    program.quit()
    wait_nothing_left(guests_plane)


def test_the_bell_outlives_server_and_doorbell(guests_plane: ControlPlane, guest: Guest) -> None:
    program = GuestProgram(guest)
    before = doorbell_pid(guests_plane)
    os.kill(before, signal.SIGKILL)
    wait_for(
        lambda: has_another_doorbell(guests_plane, before), message="the bell in a new doorbell"
    )
    assert rings(guests_plane, program)
    guests_plane.stop("server", signal.SIGKILL)
    guests_plane.start_server()
    assert rings(guests_plane, program)
    program.quit()
    wait_nothing_left(guests_plane)


def test_started_again_it_rings_again(
    guests_plane: ControlPlane, fleet: Fleet, guest: Guest
) -> None:
    fleet.virsh("destroy", guest.name)
    guest.start()
    guest.wait_ready()
    prepare(guest)
    assert len(bells_of(doorbell_pid(guests_plane))) == 1
    program = GuestProgram(guest)
    assert rings(guests_plane, program)
    program.quit()
    wait_nothing_left(guests_plane)
    fleet.virsh("destroy", guest.name)


def test_it_comes_and_goes_while_the_guest_runs(guests_plane: ControlPlane, fleet: Fleet) -> None:
    running = fleet.boot("doorbell-later")
    # Of a guest that is off; where this test runs once more, its own of before has to go first.
    wait_for(lambda: len(bells_of(doorbell_pid(guests_plane))) < 2, message="one bell at most")
    before = bells_of(doorbell_pid(guests_plane))
    figures = ("--memory-mib", "64", "--compute", "10", "--region-mib", "64")

    def plug_in() -> None:
        assert fleet.vm("attach", running.name, *figures, "--channel", "ivshmem-doorbell") == 0
        wait_for(lambda: has_doorbell(running), message="the device")

    plug_in()
    time.sleep(1.5)  # and QEMU survives it: it would watch an eventfd of the device for ever
    assert fleet.vm("detach", running.name) == 0
    plug_in()
    prepare(running)
    program = GuestProgram(running)
    assert rings(guests_plane, program)
    program.quit()
    wait_nothing_left(guests_plane)
    assert "at 0000:" in fleet.vm_says("show", running.name).stdout
    assert fleet.vm("detach", running.name) == 0
    assert document(running).region is None
    inactive = 2
    assert parse_domain(running.domain.XMLDesc(inactive)).region is None
    wait_for(lambda: bells_of(doorbell_pid(guests_plane)) == before, message="the bell to go")
    fleet.virsh("destroy", running.name)
