# SPDX-License-Identifier: Apache-2.0
"""Real sessions of a real guest, over ivshmem to a real server and worker: they work, and they end.

All the other ways in which a guest or its programs end are in tests/withstand/test_guests.py.

Nothing of the stack is replaced: `sluice vm attach`, the bundle, controller, server, doorbell,
worker and the software GPU. Skipped where the native part or the test programs are not built.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, native_worker
from folders import let_everybody_in
from runtimes_inside import archives, build_inside, facts_of, natively

from tests.withstand.guests import serving

from .conftest import CHECKOUT, Guest, Rig, install_bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vm,
    pytest.mark.control_plane(shared=True),
]

PROGRAMS = CHECKOUT / "build/programs"
#: Run with the runtime of each CUDA version, in each of the ways in which a program has it.
INSIDE = ("vector_add", "graphs", "managed")
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
#: Bounds for a guest whose every instruction is emulated: of what follows an end, and of a start.
LIMIT, START = 60.0, 120.0


@pytest.fixture(scope="module")
def plane_options(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if native_worker() is None:
        pytest.skip("the native part is not built (make native)")
    # Socket paths are short, and workers of another account have to reach the folder.
    folder = tmp_path_factory.mktemp("pool")
    let_everybody_in(folder)
    return {"folder": folder, "server": serving(rig)}


@pytest.fixture(scope="module")
def guest(rig: Rig, shared_plane: ControlPlane, bundle: Path) -> Iterator[Guest]:
    """With the bundle installed and a vGPU of 1024 MiB attached while it runs."""
    guest = rig.define_guest("shared", mem_mib=384, vcpus=1)
    guest.start()
    guest.wait_ready()
    install_bundle(guest, bundle, "--no-ldconfig")
    guest.write("/root/hold.py", HOLD.encode())
    assert (
        vm(rig, shared_plane, "attach", guest.name, "--memory-mib", "1024", "--compute", "50") == 0
    )
    until(lambda: guest.run("sluice check")[0] == 0, START, lambda: guest.run("sluice check")[1])
    yield guest
    guest.undefine()
    region = Path(f"/dev/shm/sluice-{guest.uuid}")
    until(lambda: not region.exists(), say=lambda: region)


def vm(rig: Rig, plane: ControlPlane, *words: str) -> int:
    environment = dict(
        os.environ,
        PYTHONPATH=str(CHECKOUT / "python"),
        LIBVIRT_DEFAULT_URI=rig.uri,
        SLUICE_RUN_DIR=str(plane.folder / "run"),
    )
    command = [sys.executable, "-m", "sluice.hypervisor.cli", *words]
    return subprocess.run(command, env=environment, check=False).returncode


def until(
    condition: Callable[[], bool], seconds: float = LIMIT, say: Callable[[], object] = str
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
        START,
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
    code, out, err = guest.run(f"SLUICE_GMEM=512 sluice run /host{PROGRAMS}/vector_add", START)
    assert code == 0, out + err
    assert "wrong 0" in out
    assert_nothing_is_left(plane)


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Path:
    """Programs with NVIDIA's static runtime of each version inside, and with the bundle's."""
    folder = tmp_path_factory.mktemp("inside")
    with tarfile.open(bundle) as archive:
        archive.extractall(folder, filter="data")
    return build_inside(folder, INSIDE, archives(folder / "sluice-guest" / "lib"))


@pytest.mark.skipif(not PROGRAMS.exists(), reason="the test programs are not built")
@pytest.mark.parametrize("way", ["shared", "relinked", "diverted"])
@pytest.mark.parametrize("major", [12, 13])
def test_programs_of_each_version_run_whichever_way_they_have_their_runtime(
    plane: ControlPlane, guest: Guest, inside: Path, major: int, way: str
) -> None:
    """Over ivshmem; as they are in a process of this host in tests/forwarded."""
    setting = "divert" if way == "diverted" else "leave"
    shared = PROGRAMS / "cuda12" if major == 12 else PROGRAMS
    for name in INSIDE:
        program = shared / name if way == "shared" else inside / f"{name}-{major}-{way}"
        before = len(plane.sessions("all"))
        command = f"SLUICE_GMEM=512 sluice run --static-runtime {setting} /host{program}"
        code, out, err = guest.run(command, START)
        assert (code, facts_of(out)) == (0, natively(name)), err
        assert len(plane.sessions("all")) == before + 1
    assert_nothing_is_left(plane)


def test_a_killed_program_gives_everything_back(plane: ControlPlane, guest: Guest) -> None:
    pid = hold(guest, plane)
    guest.check(f"kill -9 -- -{pid}")
    assert_nothing_is_left(plane)


def test_nvidia_smi_shows_what_the_guest_has(plane: ControlPlane, guest: Guest) -> None:
    smi = "/opt/sluice/bin/nvidia-smi"
    before = len(plane.sessions("all"))
    idle = guest.check(f"{smi} --query-gpu=name,memory.total,memory.used --format=csv,noheader")
    assert idle.strip() == "Sluice software GPU (CPU), 1024 MiB, 0 MiB"
    assert len(plane.sessions("all")) == before, "looking opens none"
    pid = hold(guest, plane)
    asked = "--query-compute-apps=pid,process_name,used_memory --format=csv,noheader,nounits"
    shown, name, used = guest.check(f"{smi} {asked}").strip().split(", ")
    assert "python3" in guest.check(f"cat /proc/{shown}/cmdline")
    assert "python3" in name
    assert int(used) >= 64
    assert "512MiB" in guest.check(smi)
    guest.check(f"kill -9 -- -{pid}")
    assert_nothing_is_left(plane)


def test_a_guest_cannot_take_more_than_its_domain_has(plane: ControlPlane, guest: Guest) -> None:
    code, out, err = guest.run("SLUICE_GMEM=2048 sluice run python3 /root/hold.py", START)
    assert code != 0
    assert "2048" in out + err
    assert_nothing_is_left(plane)


def test_rebooted_it_gives_everything_back(plane: ControlPlane, guest: Guest) -> None:
    hold(guest, plane)
    guest.reboot()
    assert_nothing_is_left(plane)
