# SPDX-License-Identifier: Apache-2.0
"""Guests with a vGPU are saved, go back to snapshots and migrate; their books stay right.

Real guests, two libvirts as two hosts, a control plane for each. A program with a session is thrown
out by none of it unless that was asked for, and none of it leaves a session or a slot behind.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

if shutil.which("qemu-img") is None:
    pytest.skip("qemu-img is not installed", allow_module_level=True)

from control_plane import ControlPlane, running, wait_for
from free_ports import free_port
from region_slots import FREE

from sluice.hypervisor.libvirt_host import live_document, persistent_document

from .alone import boot_alone, generation, take_channel
from .guests import (
    SLOTS,
    Fleet,
    Guest,
    GuestProgram,
    Rig,
    region_file,
    serving,
    slot_states,
)
from .prompted import is_cuda_error
from .traces import LIMIT, Traces, shared_files

pytestmark = [
    pytest.mark.vm,
    pytest.mark.slow,
    pytest.mark.control_plane(shared="guests_plane"),
]
RIGHT = "compute: wrong 0 of 1000"


@pytest.fixture(scope="module")
def mover(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Guest:
    """A guest with its channel, which every test leaves so."""
    guest = boot_alone(fleet, "mover", tmp_path_factory.mktemp("disks"))
    fleet.attach(guest)
    take_channel(guest)
    return guest


def plugged(guest: Guest) -> bool:
    live = live_document(guest.domain)
    return live is not None and live.region is not None


def maps_region(guest: Guest) -> bool:
    """Whether its QEMU has the channel's memory still: that is freed after the device is out."""
    return f"/dev/shm/{region_file(guest).name}" in shared_files(guest.qemu_pid)


def works(guest: Guest) -> None:
    """A program of the guest computes, and leaves nothing."""
    take_channel(guest)
    program = GuestProgram(guest)
    assert program.ask("compute") == RIGHT
    program.quit()
    wait_for(lambda: slot_states(guest) == [FREE] * SLOTS, LIMIT, "the slot to be free")


def test_saved_and_restored_it_has_its_channel_again(
    plane: ControlPlane, fleet: Fleet, mover: Guest
) -> None:
    program = GuestProgram(mover)
    refused = fleet.vm_says("save", mover.name)
    assert refused.returncode == 1
    assert "has a session" in refused.stderr
    assert "--end-sessions" in refused.stderr
    assert program.ask("compute") == RIGHT, "nobody was disturbed"
    traces = Traces.of(plane)
    before = generation(region_file(mover))
    assert fleet.vm("save", mover.name, "--end-sessions") == 0
    assert not mover.active
    traces.wait_gone("save with --end-sessions", time.monotonic())
    wait_for(lambda: slot_states(mover) == [FREE] * SLOTS, LIMIT, "the slots to be free")
    assert fleet.vm("save", mover.name) == 1, "it is off"
    assert fleet.vm("restore", mover.name) == 0
    assert plugged(mover)
    mover.wait_ready()
    assert is_cuda_error(program.ask("compute")), "the session of before is gone"
    program.quit()
    works(mover)
    assert generation(region_file(mover)) != before
    assert fleet.vm("restore", mover.name) == 1, "it runs"


def test_a_suspended_host_is_a_long_pause_and_a_clock_that_jumps(
    plane: ControlPlane, mover: Guest
) -> None:
    program = GuestProgram(mover)
    traces = Traces.of(plane)
    mover.pause()
    time.sleep(15)  # longer than the silence that ends a session of this plane
    mover.resume()
    mover.check("date -s @$(($(date +%s) + 28800))")
    assert program.ask("compute") == RIGHT
    mover.check("date -s @$(($(date +%s) - 172800))")
    assert program.ask("compute") == RIGHT
    assert {g["id"] for g in plane.grants()} == traces.grants
    program.quit()
    traces.wait_gone("exit after a long pause", time.monotonic())


def test_with_virsh_alone_it_is_unplugged_saved_and_plugged_in_again(
    fleet: Fleet, mover: Guest
) -> None:
    command = ["virsh", "-c", fleet.rig.uri, "managedsave", mover.name]
    refused = subprocess.run(command, check=False, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "ivshmem" in refused.stderr
    # what docs/libvirt.md tells a user of virsh
    fleet.virsh("detach-device-alias", mover.name, "ua-sluice-region", "--live")
    wait_for(lambda: not plugged(mover), LIMIT, "the channel to be out")
    wait_for(lambda: not maps_region(mover), LIMIT, "QEMU to let its memory go")
    fleet.virsh("managedsave", mover.name)
    fleet.virsh("start", mover.name)
    wait_for(lambda: plugged(mover), LIMIT, "the channel to be back")
    mover.wait_ready()
    works(mover)


def test_a_snapshot_leaves_the_channel_out_and_the_way_back_puts_it_in(
    plane: ControlPlane, fleet: Fleet, mover: Guest
) -> None:
    assert fleet.vm("snapshot", mover.name, "with-a-request") == 0
    assert plugged(mover), "what went on has its channel again"
    works(mover)
    program = GuestProgram(mover)
    traces = Traces.of(plane)
    fleet.virsh("snapshot-revert", mover.name, "with-a-request")
    traces.wait_gone("revert to a snapshot", time.monotonic())
    wait_for(lambda: plugged(mover), LIMIT, "the channel to be back")
    mover.wait_ready()
    assert mover.run(f"kill -0 {program.pid}")[0] != 0, "it was not there yet"
    works(mover)
    fleet.virsh("snapshot-delete", mover.name, "with-a-request")


def test_back_before_the_channel_there_is_none(
    plane: ControlPlane, fleet: Fleet, tmp_path: Path
) -> None:
    guest = boot_alone(fleet, "earlier", tmp_path)
    fleet.virsh("snapshot-create-as", guest.name, "bare")
    fleet.attach(guest)
    take_channel(guest)
    GuestProgram(guest)
    traces = Traces.of(plane)
    fleet.virsh("snapshot-revert", guest.name, "bare")
    traces.wait_gone("revert to before the channel", time.monotonic())
    wait_for(lambda: not region_file(guest).exists(), LIMIT, "the region to be deleted")
    assert persistent_document(guest.domain).request is None
    assert not plugged(guest)
    guest.destroy()
    fleet.virsh("snapshot-delete", guest.name, "bare")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Fleet]:
    """Another host: its libvirt, its /dev/shm, its server."""
    with (
        Rig("tests-withstand-b", own_shm=True) as rig,
        running(tmp_path, server=serving(rig, silent_seconds=10)) as plane,
    ):
        fleet = Fleet(rig, plane)
        yield fleet
        fleet.close()


def test_it_migrates_and_has_a_channel_there(
    plane: ControlPlane, fleet: Fleet, mover: Guest, elsewhere: Fleet
) -> None:
    there = elsewhere.rig.uri
    plain = ["virsh", "-c", fleet.rig.uri, "migrate", "--live", mover.name, there]
    refused = subprocess.run(plain, check=False, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "ivshmem" in refused.stderr
    program = GuestProgram(mover)
    incoming = f"tcp://127.0.0.1:{free_port()}"
    words = ("migrate", mover.name, there, "--unsafe", "--migrate-uri", incoming)
    kept = fleet.vm_says(*words)
    assert kept.returncode == 1
    assert "has a session" in kept.stderr
    assert program.ask("compute") == RIGHT
    program.quit()
    # a destination that is not there: it stays, and has its channel again
    wait_for(lambda: slot_states(mover) == [FREE] * SLOTS, LIMIT, "the slot to be free")
    failed = fleet.vm_says("migrate", mover.name, there, "--migrate-uri", "tcp://127.0.0.1:1")
    assert failed.returncode == 1
    assert plugged(mover)
    works(mover)

    moved = fleet.vm_says(*words)
    assert moved.returncode == 0, moved.stderr
    region = region_file(mover)
    wait_for(lambda: not region.exists(), LIMIT, "the region here to be deleted")
    assert mover.uuid not in {d.UUIDString() for d in fleet.rig.connection.listAllDomains()}
    wait_for(lambda: not plane.grants(), LIMIT, "nothing to be held here")
    arrived = elsewhere.rig.find_guest(mover.name)
    elsewhere.adopt(arrived)
    assert plugged(arrived), "the command waited for it"
    assert persistent_document(arrived.domain).request is not None
    arrived.wait_ready()
    take_channel(arrived)
    program = GuestProgram(arrived)
    assert program.ask("compute") == RIGHT
    assert [s["domain_name"] for s in elsewhere.plane.sessions()] == [arrived.name]
    program.quit()
