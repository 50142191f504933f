# SPDX-License-Identifier: Apache-2.0
"""Real guests whose only channel is vsock: sessions, their ends, and who may not come in.

The device is QEMU's vhost-user one with rust-vmm's vhost-device-vsock behind it, as on any host
whose kernel has no vhost-vsock; the listener for those that have it is tried inside a guest.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libvirt
import pytest
from control_plane import ControlPlane, wait_for
from folders import let_everybody_in

from sluice.hypervisor.domain_document import parse_domain
from sluice.hypervisor.vsock_devices import UserSockets
from sluice.server.guests.vsock_backends import RECORDS

from .conftest import doorbell_pid
from .guests import Fleet, Guest, GuestProgram, Rig, install, prepare, region_file, serving
from .prompted import CHECKOUT, ENDLESS, is_cuda_error
from .traces import LIMIT, wait_nothing_left

BACKEND = CHECKOUT / "build/tools/bin/vhost-device-vsock"
FIGURES = {"memory_mib": 64, "compute": 10}
PYTHON = {"PYTHONPATH": str(CHECKOUT / "python")}
RIGHT = "compute: wrong 0 of 1000"

pytestmark = [
    pytest.mark.vm,
    pytest.mark.slow,
    pytest.mark.skipif(not BACKEND.exists(), reason="no vhost-device-vsock: it needs cargo"),
    pytest.mark.control_plane(shared=True),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A short one: a Unix socket's path has at most 107 characters."""
    path = Path("/run") / f"sluice-vsock-{os.getpid()}"
    path.mkdir()
    let_everybody_in(path)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def plane_options(guests_rig: Rig, built: None, folder: Path) -> dict[str, Any]:
    return {"folder": folder, "server": serving(guests_rig, vsock_backend=BACKEND)}


@pytest.fixture(scope="module")
def fleet(guests_rig: Rig, shared_plane: ControlPlane) -> Iterator[Fleet]:
    guests = Fleet(guests_rig, shared_plane)
    yield guests
    guests.close()
    wait_for(lambda: not backends(shared_plane), LIMIT, "the devices' processes to end")
    folders = shared_plane.folder / "run" / "vsock"
    wait_for(lambda: not list(folders.glob("[!.]*")), LIMIT, "their folders to go")


def sockets_of(plane: ControlPlane, guest: Guest) -> UserSockets:
    return UserSockets.of(plane.folder / "run", guest.uuid)


def backends(plane: ControlPlane) -> list[int]:
    """The processes of this plane's vhost-user devices."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            of_ours = len(words) > 2 and str(plane.folder).encode() in words[2]
            if words[0].endswith(b"vhost-device-vsock") and of_ours:
                found.append(int(process.name))
    return found


def has_device(guest: Guest) -> bool:
    document = parse_domain(guest.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE))
    return document.vsock is not None and document.vsock.user


def make(fleet: Fleet, name: str, channel: str = "vsock", **figures: object) -> Guest:
    """A guest that got its request by virsh while it was off, and was then started."""
    guest = fleet.rig.define_guest(name, mem_mib=384, vcpus=1)
    fleet.adopt(guest)
    asked = {**FIGURES, **figures, "channel": channel}
    written = " ".join(f"{key.replace('_', '-')}='{value}'" for key, value in asked.items())
    fleet.virsh(
        *("metadata", guest.name, "https://sluice.dev/xmlns/libvirt/1", "--config"),
        *("--key", "sluice", "--set", f"<vgpu {written}/>"),
    )
    wait_for(lambda: has_device(guest), LIMIT, "the device in the definition")
    wait_for(lambda: sockets_of(fleet.plane, guest).device.exists(), LIMIT, "its process")
    boot(guest)
    return guest


def boot(guest: Guest) -> None:
    guest.start()
    guest.wait_ready()
    guest.check("modprobe vmw_vsock_virtio_transport")  # as udev does in a whole system
    prepare(guest)


@pytest.fixture(scope="module")
def guest(fleet: Fleet) -> Guest:
    return make(fleet, "vsocked")


def waiting_in(plane: ControlPlane) -> list[object]:
    """The queue."""
    found: list[object] = plane.rest.get("/queue").json()["waiting"]
    return found


def test_a_program_finds_its_host_by_itself_and_computes(
    plane: ControlPlane, fleet: Fleet, guest: Guest
) -> None:
    program = GuestProgram(guest)
    assert program.ask("compute") == RIGHT
    [session] = plane.sessions()
    told = {"channel": "vsock", "domain_uuid": guest.uuid, "domain_name": guest.name}
    assert {key: session[key] for key in told} == told
    shown = guest.check("sluice smi -L")
    assert shown.startswith("GPU 0: Sluice software GPU (CPU) (UUID: GPU-")
    assert plane.sessions() == [session], "looking opens none"
    program.quit()
    wait_nothing_left(plane)
    assert not region_file(guest).exists()
    assert re.search(r"ok +vsock: the host answers", guest.check("sluice check"))
    assert "by vhost-user, plugged in" in fleet.vm_says("show", guest.name).stdout


def test_of_a_killed_program_nothing_remains(plane: ControlPlane, guest: Guest) -> None:
    program = GuestProgram(guest)
    assert program.ask(f"launch {ENDLESS}") == "launch: ok"
    program.signal("KILL")
    wait_nothing_left(plane)


def test_a_killed_worker_is_a_cuda_error(plane: ControlPlane, guest: Guest) -> None:
    program = GuestProgram(guest)
    assert program.ask(f"launch {ENDLESS}") == "launch: ok"
    program.say("wait")
    assert program.is_silent(0.5)
    [worker] = plane.session_worker_pids()
    os.kill(worker, signal.SIGKILL)
    assert is_cuda_error(program.answer(LIMIT))
    wait_nothing_left(plane)


def test_more_than_the_vm_was_given_is_refused(plane: ControlPlane, guest: Guest) -> None:
    program = GuestProgram(guest, opened=False, SLUICE_GMEM="65")
    assert is_cuda_error(program.ask("open"))
    assert f"domain {guest.name} was given 64" in program.errors()
    assert not plane.grants()


def test_a_program_waits_its_turn_and_is_told(plane: ControlPlane, guest: Guest) -> None:
    plane.rest.put(f"/nodes/{plane.node}/drain").raise_for_status()
    waiting = GuestProgram(guest, opened=False)
    waiting.say("open")
    wait_for(lambda: "sluice: " in waiting.errors(), message="a line about the queue")
    assert waiting.is_silent(0.5)
    plane.rest.delete(f"/nodes/{plane.node}/drain").raise_for_status()
    assert waiting.answer() == "open: ok"
    waiting.quit()
    wait_nothing_left(plane)


def test_a_program_that_dies_waiting_leaves_the_queue(plane: ControlPlane, guest: Guest) -> None:
    plane.rest.put(f"/nodes/{plane.node}/drain").raise_for_status()
    waiting = GuestProgram(guest, opened=False)
    waiting.say("open")
    wait_for(lambda: waiting_in(plane), message="the request")
    waiting.signal("KILL")
    wait_for(lambda: not waiting_in(plane), message="it to leave")
    plane.rest.delete(f"/nodes/{plane.node}/drain").raise_for_status()


def test_nobody_else_is_heard_on_a_guests_socket(plane: ControlPlane, guest: Guest) -> None:
    """Root of the host apart, nobody gets so far."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.settimeout(10)
        stranger.connect(str(sockets_of(plane, guest).session_port))
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            stranger.sendall(bytes(512))
            assert stranger.recv(1) == b""
    assert sockets_of(plane, guest).folder.stat().st_mode & 0o077 == 0


def test_rubbish_is_answered_and_hurts_nobody(plane: ControlPlane, guest: Guest) -> None:
    program = GuestProgram(guest)
    send = (
        "import socket; s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM); "
        "s.settimeout(20); s.connect((2, 9960)); s.sendall(bytes({n})); "
        "print(s.recv(512)[48:].split(b'\\0')[0].decode() if {n} else 'silent')"
    )
    said = guest.check('python3 -c "' + send.format(n=600) + '"')
    assert "a session begins with OpenSession" in said
    guest.check('python3 -c "' + send.format(n=0) + '"')
    assert program.ask("compute") == RIGHT
    program.quit()
    wait_nothing_left(plane)


def test_sessions_and_devices_outlive_the_server(plane: ControlPlane, guest: Guest) -> None:
    program = GuestProgram(guest)
    before, listening = backends(plane), sockets_of(plane, guest).session_port
    plane.stop("server", signal.SIGKILL)
    plane.start_server()
    wait_for(lambda: is_open(listening), LIMIT, "its listening to be opened anew")
    assert program.ask("compute") == RIGHT
    assert backends(plane) == before
    second = GuestProgram(guest)
    assert second.ask("compute") == RIGHT
    for each in (program, second):
        each.quit()
    wait_nothing_left(plane)


def test_a_move_that_qemu_cannot_make_is_refused_with_the_reason(
    fleet: Fleet, guest: Guest
) -> None:
    done = fleet.vm_says("save", guest.name)
    assert done.returncode == 1
    assert "served by a process of this host" in done.stderr
    assert guest.active


def test_two_guests_have_each_their_own(plane: ControlPlane, fleet: Fleet, guest: Guest) -> None:
    other = make(fleet, "vsocked-too", memory_mib=32)
    programs = [GuestProgram(guest), GuestProgram(other)]
    sizes = {grant["id"]: grant["vgpus"][0]["memory_mib"] for grant in plane.grants()}
    found = {s["domain_name"]: sizes[s["grant_id"]] for s in plane.sessions()}
    assert found == {guest.name: 64, other.name: 32}
    for program in programs:
        program.quit()
    wait_nothing_left(plane)
    fleet.virsh("destroy", other.name)


def test_a_guest_destroyed_in_mid_call_leaves_nothing(
    plane: ControlPlane, fleet: Fleet, guest: Guest
) -> None:
    program = GuestProgram(guest)
    assert program.ask(f"launch {ENDLESS}") == "launch: ok"
    program.say("wait")
    fleet.virsh("destroy", guest.name)
    wait_nothing_left(plane)
    boot(guest)
    following = GuestProgram(guest)
    assert following.ask("compute") == RIGHT
    following.quit()
    wait_nothing_left(plane)


def test_without_its_request_a_guest_is_served_no_more(
    plane: ControlPlane, fleet: Fleet, guest: Guest
) -> None:
    """Its programs hear so, however slow the device's process is to pass that on."""
    program = GuestProgram(guest)
    record = plane.folder / "run" / RECORDS / guest.uuid
    device = int(record.read_text().split()[0])
    os.kill(device, signal.SIGSTOP)
    fleet.ask(guest)
    wait_nothing_left(plane)
    os.kill(device, signal.SIGCONT)
    assert is_cuda_error(program.ask("compute", LIMIT))
    wait_for(lambda: not has_device(guest), LIMIT, "the device to leave the definition")
    refused = GuestProgram(guest, opened=False, SLUICE_CHANNEL="vsock")
    assert is_cuda_error(refused.ask("open", LIMIT))


def test_beside_a_region_it_is_the_bell(plane: ControlPlane, fleet: Fleet) -> None:
    both = make(fleet, "with-both", channel="ivshmem", vsock="yes", region_mib=64)
    assert has_device(both)
    program = GuestProgram(both)
    [session] = plane.sessions()
    assert session["channel"] == "ivshmem"
    doorbell = doorbell_pid(plane)
    bells = len(wait_for(lambda: unix_streams_of(doorbell), LIMIT, "the bell"))
    for _ in range(3):
        time.sleep(0.3)  # the worker sleeps, and the doorbell looks seldom
        assert program.ask("compute") == RIGHT
    program.quit()
    wait_nothing_left(plane)
    wait_for(lambda: len(unix_streams_of(doorbell)) < bells, LIMIT, "the bell to go")
    aside = GuestProgram(both, SLUICE_CHANNEL="vsock")
    assert [each["channel"] for each in plane.sessions()] == ["vsock"]
    aside.quit()
    wait_nothing_left(plane)
    fleet.virsh("destroy", both.name)


def is_open(listening: Path) -> bool:
    """Whether somebody listens on that Unix socket."""
    with socket.socket(socket.AF_UNIX) as caller:
        try:
            caller.connect(str(listening))
        except OSError:
            return False
    return True


def unix_streams_of(pid: int) -> list[str]:
    """The process's Unix sockets of type SOCK_STREAM."""
    streams = {
        line.split()[6]
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]
        if line.split()[4] == "0001"
    }
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            name = str(descriptor.readlink())
            if name.startswith("socket:[") and name[8:-1] in streams:
                found.append(name)
    return found


def test_the_kernels_door_tells_guests_apart_by_their_cid(fleet: Fleet) -> None:
    """In a guest whose kernel has vhost-vsock; its loopback stands in for a guest of its own."""
    machine = fleet.boot("with-vhost-vsock")
    machine.check("modprobe vhost_vsock && modprobe vsock_loopback && test -e /dev/vhost-vsock")
    install(machine)
    script = Path(__file__).with_name("vsock_in_kernel.py")
    said = machine.check(f"{sys.executable} {script} /root/prompted", environment=PYTHON)
    first, second, bells = said.strip().splitlines()
    assert "web over vsock wants 1 of 64 MiB for prompted" in first
    assert "this VM was given no vGPU" in second
    assert bells == "bells of ['1']"
    fleet.virsh("destroy", machine.name)
