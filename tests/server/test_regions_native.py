# SPDX-License-Identifier: Apache-2.0
"""A guest's region with the real doorbell, the real worker and an unmodified CUDA program.

The program runs on this host and maps the region's file as a guest maps its PCI BAR; everything on
the server's side is as it is for a guest. Skipped where the native part or the programs are not
built.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from control_plane import native_worker
from fake_controller_link import FakeControllerLink
from guest_host import GuestHost, guest_host
from region_slots import FREE, slot_states

from sluice.config.native_files import NativeFileMissing, find_native
from sluice.hypervisor.ports import RegionOwner
from sluice.hypervisor.request import DomainRequest
from sluice.rpc import pool_pb2 as rpc
from sluice.server.guests.regions import Regions
from sluice.server.sessions.lifecycle import SessionLifecycle

PROGRAMS = Path(__file__).resolve().parent.parent.parent / "build" / "programs"
OWNER = RegionOwner("11111111-2222-3333-4444-555555555555", "guest")
REQUEST = DomainRequest(memory_mib=1024, compute_percent=25, region_mib=64, slots=2)


def built() -> bool:
    try:
        find_native("sluice-doorbell")
        find_native("libcuda.so.1")
    except NativeFileMissing:
        return False
    return native_worker() is not None and (PROGRAMS / "vector_add").exists()


pytestmark = pytest.mark.skipif(not built(), reason="the native part or the programs are not built")


@dataclass
class Guest:
    """A region and what runs for it; programs are started as a guest's processes would be."""

    path: Path
    host: GuestHost

    @property
    def regions(self) -> Regions:
        return self.host.regions

    @property
    def lifecycle(self) -> SessionLifecycle:
        return self.host.lifecycle

    @property
    def controller(self) -> FakeControllerLink:
        return self.host.controller

    @property
    def doorbell_pid(self) -> int:
        return self.host.doorbell.pid

    async def start(self, program: str, **environment: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            str(PROGRAMS / program),
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
                "SLUICE_CHANNEL": "ivshmem",
                "SLUICE_IVSHMEM": str(self.path),
                **environment,
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def quiet(self) -> None:
        await self.host.quiet()


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[Guest]:
    async with guest_host(tmp_path) as host, host.region(OWNER, REQUEST) as path:
        yield Guest(path, host)


async def test_a_program_runs_over_the_region(guest: Guest) -> None:
    for _ in range(3):
        program = await guest.start("vector_add")
        out, error = await asyncio.wait_for(program.communicate(), 60)
        assert program.returncode == 0, error.decode()
        assert b"wrong 0" in out
    await guest.quiet()
    asked = guest.controller.asked
    assert [(a.memory_mib, a.domain_name, a.channel) for a in asked] == [
        (1024, "guest", "ivshmem")
    ] * 3


async def test_two_programs_of_a_guest_run_at_once_and_a_third_is_told_why_not(
    guest: Guest,
) -> None:
    programs = [await guest.start("vector_add", SLUICE_STATS="1") for _ in range(2)]
    for program in programs:
        out, error = await asyncio.wait_for(program.communicate(), 60)
        assert program.returncode == 0, error.decode()
        assert b"wrong 0" in out
    await guest.quiet()


async def test_a_guest_that_asks_for_more_than_its_domain_has_is_refused(guest: Guest) -> None:
    program = await guest.start("vector_add", SLUICE_GMEM="2048")
    out, error = await asyncio.wait_for(program.communicate(), 60)
    assert program.returncode != 0
    assert "domain guest was given 1024" in (out + error).decode()
    assert guest.lifecycle.sessions == {}


async def test_the_vms_end_ends_its_programs_session(guest: Guest) -> None:
    program = await guest.start("hold_vgpu")
    async with asyncio.timeout(10):
        while not guest.lifecycle.sessions:
            assert program.returncode is None, await program.communicate()
            await asyncio.sleep(0.005)
    await guest.regions.domain_stopped(OWNER.uuid, "the VM was destroyed")
    assert guest.lifecycle.sessions == {}
    await asyncio.wait_for(program.wait(), 10)
    async with asyncio.timeout(60):  # a VM takes longer to start than the doorbell to set it up
        while guest.path.open("rb").read(8) == bytes(8):
            await asyncio.sleep(0.005)
    again = await guest.start("vector_add")
    out, error = await asyncio.wait_for(again.communicate(), 60)
    assert again.returncode == 0, (out + error).decode()


async def test_a_killed_doorbell_is_replaced_and_the_region_serves_on(guest: Guest) -> None:
    os.kill(guest.doorbell_pid, signal.SIGKILL)
    program = await guest.start("vector_add")
    out, error = await asyncio.wait_for(program.communicate(), 60)
    assert program.returncode == 0, (out + error).decode()
    await guest.quiet()


HOLD = "import ctypes; ctypes.CDLL('libcuda.so.1').sluice_job_hold(None, 0)"


async def test_a_guests_job_is_its_vms_and_its_launchers_end_is_seen(guest: Guest) -> None:
    token = "0123456789abcdef" * 2
    variables = {
        **os.environ,
        "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
        "SLUICE_CHANNEL": "ivshmem",
        "SLUICE_IVSHMEM": str(guest.path),
        "SLUICE_JOB": token,
    }
    launcher = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLD, env=variables)

    async def told(kind: str) -> rpc.JobHold:
        async with asyncio.timeout(60):
            while True:
                for report in guest.controller.reports:
                    if report.WhichOneof("report") == kind:
                        hold: rpc.JobHold = getattr(report, kind)
                        return hold
                await asyncio.sleep(0.02)

    held = await told("job_held")
    assert held.domain == f"vm {OWNER.uuid}"
    program = await guest.start("vector_add", SLUICE_JOB=token)
    out, error = await asyncio.wait_for(program.communicate(), 60)
    assert program.returncode == 0, error.decode()
    assert b"wrong 0" in out
    await guest.quiet()
    [asked] = guest.controller.asked
    assert (asked.job, asked.job_domain) == (held.job, held.domain)
    assert launcher.returncode is None
    launcher.kill()
    assert await told("job_released") == held
    await launcher.wait()
    while slot_states(guest.path, REQUEST.slots) != [FREE] * REQUEST.slots:
        await asyncio.sleep(0.02)
    # its slot is free again: both of them serve
    programs = [await guest.start("vector_add") for _ in range(2)]
    for program in programs:
        out, error = await asyncio.wait_for(program.communicate(), 60)
        assert program.returncode == 0, error.decode()
