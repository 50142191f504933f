# SPDX-License-Identifier: Apache-2.0
"""Real sessions of a real guest, over ivshmem to a real server and worker: they work, and they end.

Nothing of the stack is replaced: `sluice vm attach`, the bundle, controller, server, doorbell,
worker and the software GPU. Skipped where the native part or the test programs are not built.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, native_worker
from folders import let_everybody_in

from .conftest import CHECKOUT, Guest, Rig, install_bundle

pytestmark = [pytest.mark.slow, pytest.mark.vm]

PROGRAMS = CHECKOUT / "build/programs"
HOLD = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64 << 20)) == 0
open("/tmp/holding", "w").close()
while cuda.cuCtxSynchronize() == 0:
    time.sleep(0.2)
sys.exit(41)
"""
#: Within this many seconds of an end nothing may be left.
SOON = 5.0


@pytest.fixture(scope="module")
def plane(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if native_worker() is None:
        pytest.skip("the native part is not built (make native)")
    # Socket paths are short, and workers of another account have to reach the folder.
    folder = tmp_path_factory.mktemp("pool")
    let_everybody_in(folder)
    running = ControlPlane(
        folder,
        server={"enable_kvm": "true", "libvirt_uri": rig.uri, "region_dir": "/dev/shm"},
    )
    try:
        running.start_controller()
        running.start_server()
        yield running
    finally:
        running.close()


class Guests:
    """Guests with the bundle installed and a vGPU of 1024 MiB attached while they run."""

    def __init__(self, rig: Rig, plane: ControlPlane, bundle: Path) -> None:
        self._rig, self._plane, self._bundle = rig, plane, bundle
        self._made: list[Guest] = []

    def make(self, name: str) -> Guest:
        guest = self._rig.define_guest(name, mem_mib=384, vcpus=1)
        self._made.append(guest)
        guest.start()
        guest.wait_ready()
        prepare(guest, self._bundle)
        figures = ("--memory-mib", "1024", "--compute", "50")
        assert vm(self._rig, self._plane, "attach", name, *figures) == 0
        wait_usable(guest)
        return guest

    def close(self) -> None:
        defined = {domain.UUIDString() for domain in self._rig.connection.listAllDomains()}
        for guest in self._made:
            if guest.uuid in defined:
                guest.undefine()
        regions = [Path(f"/dev/shm/sluice-{guest.uuid}") for guest in self._made]
        until(lambda: not any(region.exists() for region in regions), say=lambda: regions)


@pytest.fixture
def make_guest(rig: Rig, plane: ControlPlane, bundle: Path) -> Iterator[Callable[[str], Guest]]:
    """A guest of a test's own, for a test that ends it."""
    guests = Guests(rig, plane, bundle)
    yield guests.make
    guests.close()


@pytest.fixture(scope="module")
def guest(rig: Rig, plane: ControlPlane, bundle: Path) -> Iterator[Guest]:
    """One guest for the tests that leave it as they found it."""
    guests = Guests(rig, plane, bundle)
    yield guests.make("shared")
    guests.close()


def vm(rig: Rig, plane: ControlPlane, *words: str) -> int:
    environment = dict(
        os.environ,
        PYTHONPATH=str(CHECKOUT / "build/python"),
        LIBVIRT_DEFAULT_URI=rig.uri,
        SLUICE_RUN_DIR=str(plane.folder / "run"),
    )
    command = [sys.executable, "-m", "sluice.hypervisor.cli", *words]
    return subprocess.run(command, env=environment, check=False).returncode


def prepare(guest: Guest, bundle: Path) -> None:
    """The root of a guest is gone with each boot, the bundle with it."""
    install_bundle(guest, bundle, "--no-ldconfig")
    guest.write("/root/hold.py", HOLD.encode())


def wait_usable(guest: Guest) -> None:
    until(lambda: guest.run("sluice check")[0] == 0, 60, lambda: guest.run("sluice check")[1])


def until(
    condition: Callable[[], bool], seconds: float = SOON, say: Callable[[], object] = str
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {say()}"
        time.sleep(0.05)


def hold(guest: Guest, plane: ControlPlane, mib: int = 512) -> int:
    """Starts a program that keeps a session; returns its process id in the guest."""
    before = len(plane.sessions())
    started = guest.spawn(f"SLUICE_GMEM={mib} sluice run python3 /root/hold.py >/tmp/hold.out 2>&1")
    until(
        lambda: guest.run("test -e /tmp/holding")[0] == 0,
        20,
        lambda: guest.run("cat /tmp/hold.out")[1],
    )
    guest.check("rm /tmp/holding")
    until(lambda: len(plane.sessions()) == before + 1, say=plane.sessions)
    return started.pid


def assert_nothing_is_left(plane: ControlPlane) -> None:
    """No session, no grant, no worker that serves one."""
    until(lambda: not plane.sessions(), say=plane.sessions)
    until(lambda: not plane.grants(), say=plane.grants)
    until(lambda: not plane.session_worker_pids(), say=plane.session_worker_pids)


def test_a_cuda_program_runs_unchanged(plane: ControlPlane, guest: Guest) -> None:
    if not (PROGRAMS / "vector_add").exists():
        pytest.skip("the test programs are not built")
    code, out, err = guest.run(f"SLUICE_GMEM=512 sluice run /host{PROGRAMS}/vector_add", 60)
    assert code == 0, out + err
    assert "wrong 0" in out
    assert_nothing_is_left(plane)


def test_a_killed_program_gives_everything_back(plane: ControlPlane, guest: Guest) -> None:
    pid = hold(guest, plane)
    guest.check(f"kill -9 -- -{pid}")
    assert_nothing_is_left(plane)


def test_a_destroyed_guest_gives_everything_back_and_starts_again(
    plane: ControlPlane, make_guest: Callable[..., Guest], bundle: Path
) -> None:
    guest = make_guest("destroyed")
    hold(guest, plane)
    guest.destroy()
    assert_nothing_is_left(plane)
    guest.start()
    guest.wait_ready()
    prepare(guest, bundle)
    wait_usable(guest)
    hold(guest, plane)


def test_a_rebooted_guest_gives_everything_back(
    plane: ControlPlane, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest("rebooted")
    hold(guest, plane)
    guest.spawn("busybox reboot -f")
    assert_nothing_is_left(plane)


def test_an_undefined_guest_leaves_no_region(
    plane: ControlPlane, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest("undefined")
    hold(guest, plane)
    guest.undefine()
    assert_nothing_is_left(plane)
    until(lambda: not Path(f"/dev/shm/sluice-{guest.uuid}").exists())


def test_a_detached_guest_gets_an_error_and_not_a_hang(
    rig: Rig, plane: ControlPlane, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest("detached")
    hold(guest, plane)
    assert vm(rig, plane, "detach", "detached") == 0
    assert_nothing_is_left(plane)
    until(lambda: guest.run("pgrep -f hold.py")[0] != 0, 15)


def test_a_paused_guest_keeps_its_session(plane: ControlPlane, guest: Guest) -> None:
    pid = hold(guest, plane)
    guest.pause()
    time.sleep(8)
    assert len(plane.sessions()) == 1
    guest.resume()
    time.sleep(1)
    assert guest.run("pgrep -f hold.py")[0] == 0
    assert len(plane.sessions()) == 1
    guest.check(f"kill -9 -- -{pid}")
    assert_nothing_is_left(plane)


def test_two_guests_at_once_and_the_end_of_one_is_not_the_others(
    plane: ControlPlane, make_guest: Callable[..., Guest]
) -> None:
    one, other = make_guest("one"), make_guest("other")
    hold(one, plane)
    hold(other, plane)
    domains = {session["domain_name"] for session in plane.sessions()}
    assert domains == {"one", "other"}
    one.destroy()
    until(lambda: len(plane.sessions()) == 1, say=plane.sessions)
    assert plane.sessions()[0]["domain_name"] == "other"
    assert other.run("pgrep -f hold.py")[0] == 0


def test_a_guest_cannot_take_more_than_its_domain_has(plane: ControlPlane, guest: Guest) -> None:
    code, out, err = guest.run("SLUICE_GMEM=2048 sluice run python3 /root/hold.py", 30)
    assert code != 0
    assert "2048" in out + err
    assert_nothing_is_left(plane)
