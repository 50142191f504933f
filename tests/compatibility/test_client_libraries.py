# SPDX-License-Identifier: Apache-2.0
"""Programs run with a release's client libraries against today's server and worker, as they ran.

Over shared memory, TCP and a relay through whole servers; over a guest's region and vsock through
the parts of a server that serve guests, with programs of this host as the guest's. Skipped where
the native part or the programs are not built.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, native_worker, wait_for
from guest_host import GuestHost, guest_host
from relay_host import RelayHost, relay_host

from sluice.config.native_files import NativeFileMissing, find_native
from sluice.hypervisor.ports import RegionOwner, VsockPlace
from sluice.hypervisor.request import DomainRequest
from sluice.hypervisor.vsock_devices import UserSockets
from sluice.server.guests.vsock import VsockGuests
from tests.demo.programs import PROGRAMS, Program, Run, load_programs, run_on_host

from .recording.record_frames import BROAD, NARROW
from .recording.stand_ins import has_compiler, stand_in_libraries, vsock_preload
from .releases import HERE, NAMES, RELEASES
from .unpacked import unpacked

LIBRARY_CALLS = HERE / "library_calls.py"
ALL = {program.name: program for program in load_programs(milestone_only=False)}
OWNER = RegionOwner("11111111-2222-3333-4444-555555555555", "guest")
REQUEST = DomainRequest(memory_mib=1024, compute_percent=25, region_mib=64, slots=2)
IN_GUESTS = ("vector_add", "streams_events", "host_callback")


def built() -> bool:
    try:
        for name in ("sluice-doorbell", "sluice-relay"):
            find_native(name)
    except NativeFileMissing:
        return False
    return native_worker() is not None and (PROGRAMS / "vector_add").exists()


pytestmark = [
    pytest.mark.skipif(not built(), reason="the native part or the programs are not built"),
    pytest.mark.control_plane(shared=True),
]


def names(recorded: tuple[tuple[str, ...], ...]) -> list[str]:
    return [program[0] for program in recorded if program[0] in ALL]


@pytest.fixture(scope="module", params=RELEASES, ids=NAMES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release's guest bundle, unpacked."""
    archive = request.param / "guest-bundle.tar.xz"
    bundle = unpacked(archive, tmp_path_factory.mktemp("bundle"))
    assert (bundle / "VERSION").read_text().strip() == request.param.name
    return bundle


@pytest.fixture(scope="module")
def libraries() -> Iterator[str]:
    """What stands in for NVIDIA's on the node, where workers' users can read it."""
    if not has_compiler():
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        Path(folder).chmod(0o755)
        yield stand_in_libraries(Path(folder))


@pytest.fixture(scope="module")
def plane_options(libraries: str) -> dict[str, Any]:
    return {"server": {"cuda_libraries": libraries}}


@pytest.fixture(scope="module")
def far(
    shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RelayHost]:
    """A host without a GPU."""
    with relay_host(shared_plane, tmp_path_factory.mktemp("far")) as host:
        yield host


def variables(environment: dict[str, str], bundle: Path, **more: str) -> dict[str, str]:
    """Of a program that uses a release's libraries."""
    release = {"LD_LIBRARY_PATH": str(bundle / "lib"), "SLUICE_GMEM": "256"}
    return {**environment, **release, **more}


def check(plane: ControlPlane, program: str, environment: dict[str, str]) -> None:
    """Runs a program, which has to do what it always did and to leave nothing behind."""
    assert run_on_host(ALL[program], environment).problem() == ""
    wait_for(lambda: not plane.grants(), message="the grant to return")


@pytest.mark.parametrize("program", names(BROAD))
def test_over_shared_memory(plane: ControlPlane, bundle: Path, program: str) -> None:
    check(plane, program, variables(plane.program_environment(SLUICE_CHANNEL="shm"), bundle))


@pytest.mark.parametrize("program", names(NARROW))
def test_over_tcp(plane: ControlPlane, bundle: Path, program: str) -> None:
    check(plane, program, variables(plane.program_environment(SLUICE_CHANNEL="tcp"), bundle))


@pytest.mark.parametrize("program", IN_GUESTS)
def test_through_a_relay(plane: ControlPlane, far: RelayHost, bundle: Path, program: str) -> None:
    check(plane, program, variables(far.environment(), bundle))
    newest = max(plane.sessions("ended"), key=lambda each: str(each["started"]))
    assert newest["channel"] == "relay"


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_libraries_are_called(
    plane: ControlPlane, bundle: Path, libraries: str, channel: str
) -> None:
    if not libraries:
        pytest.skip("there is no C compiler for what stands in for cuBLAS")
    done = subprocess.run(
        [sys.executable, LIBRARY_CALLS],
        env=variables(plane.program_environment(SLUICE_CHANNEL=channel), bundle),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "two handles took 64 MiB",
        "the library answers 19200256",
        "all of it is back: True",
    ]


def test_its_own_launcher_runs_a_program(plane: ControlPlane, bundle: Path) -> None:
    """`sluice run` of the release, with its loader hook."""
    program = replace(ALL["vector_add"], name="sluice")
    command = [str(bundle / "bin" / "sluice"), "run", *ALL["vector_add"].command()]
    clean = plane.program_environment(SLUICE_CHANNEL="shm", SLUICE_GMEM="256")
    clean.pop("LD_LIBRARY_PATH")
    done = subprocess.run(
        command, env=clean, capture_output=True, text=True, timeout=60, check=False
    )
    run = Run(program, done.returncode, done.stdout, done.stderr, 0)
    assert run.problem() == "", done.stderr
    wait_for(lambda: not plane.grants(), message="the grant to return")


# guests

MakeGuest = Callable[[GuestHost, Path], AbstractAsyncContextManager[dict[str, str]]]


@asynccontextmanager
async def region_guest(host: GuestHost, _: Path) -> AsyncIterator[dict[str, str]]:
    """What a program of a guest with a region finds."""
    async with host.region(OWNER, REQUEST) as path:
        yield {"SLUICE_CHANNEL": "ivshmem", "SLUICE_IVSHMEM": str(path)}


@asynccontextmanager
async def vsock_guest(host: GuestHost, folder: Path) -> AsyncIterator[dict[str, str]]:
    """What a program of a guest with a vsock device finds."""
    device = HERE / "vsock_device.py"
    guests = VsockGuests(
        host.lifecycle,
        host.folder / "run",
        host.folder / "log",
        str(device),
        add_bell=lambda *_: None,
    )
    request = DomainRequest(memory_mib=1024, compute_percent=25, channel="vsock")
    await guests.add(OWNER, VsockPlace(), request)
    try:
        sockets = UserSockets.of(host.folder / "run", OWNER.uuid)
        said = {"SLUICE_CHANNEL": "vsock", "SLUICE_TEST_VSOCK": str(sockets.device)}
        yield {**said, "LD_PRELOAD": vsock_preload(folder)}
    finally:
        await guests.remove(OWNER.uuid, "the test is over")


@pytest.mark.parametrize("guest", [region_guest, vsock_guest])
async def test_in_a_guest(guest: MakeGuest, bundle: Path, short_path: Path, tmp_path: Path) -> None:
    if guest is vsock_guest and not has_compiler():
        pytest.skip("there is no C compiler for what stands in for the guest's device")
    async with guest_host(short_path) as host, guest(host, tmp_path) as said:
        for name in IN_GUESTS:
            program: Program = ALL[name]
            process = await asyncio.create_subprocess_exec(
                *program.command(),
                env=variables({**os.environ, "HOME": str(tmp_path)}, bundle, **said),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, error = await asyncio.wait_for(process.communicate(), 60)
            code = process.returncode if process.returncode is not None else -1
            run = Run(program, code, out.decode(), error.decode(), 0)
            assert run.problem() == "", error.decode()
            await host.quiet()
        assert {each.channel for each in host.controller.asked} == {said["SLUICE_CHANNEL"]}
        assert len(host.controller.asked) == len(IN_GUESTS)
