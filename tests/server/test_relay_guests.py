# SPDX-License-Identifier: Apache-2.0
"""Guests on a host without a GPU: a region, the real doorbell, relays to another server's GPU.

Programs run on this host and map the region's file as a guest maps its PCI BAR. What ends a guest's
programs near the GPU ends them here too, and all test programs print what they print everywhere.
Skipped where the native part or the programs are not built.
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
from control_plane import ControlPlane
from gpuless_host import gpuless_host
from network_program import built

from sluice.config.native_files import find_native
from sluice.hypervisor.ports import RegionOwner
from sluice.hypervisor.request import DomainRequest
from sluice.server.guests.doorbell import Doorbell
from sluice.server.guests.regions import Regions
from sluice.server.sessions.lifecycle import SessionLifecycle

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "demo"))

import programs as cuda  # noqa: E402

PROGRAMS = ROOT / "build" / "programs"
OWNER = RegionOwner("11111111-2222-3333-4444-555555555555", "guest")
REQUEST = DomainRequest(memory_mib=1024, compute_percent=25, region_mib=64, slots=2)

pytestmark = [
    pytest.mark.skipif(
        not (built() and (PROGRAMS / "vector_add").exists()),
        reason="the native part or the programs are not built",
    ),
    pytest.mark.control_plane(shared=True),
]


@dataclass
class Guest:
    """A region and what runs for it."""

    path: Path
    regions: Regions
    lifecycle: SessionLifecycle
    doorbell: Doorbell

    def environment(self, **more: str) -> dict[str, str]:
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "CUDA_"))}
        return {
            **mine,
            "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
            "SLUICE_CHANNEL": "ivshmem",
            "SLUICE_IVSHMEM": str(self.path),
            **more,
        }

    async def start(self, program: str, *arguments: str, **more: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            str(PROGRAMS / program),
            *arguments,
            env=self.environment(**more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def opened(self, program: asyncio.subprocess.Process) -> None:
        async with asyncio.timeout(20):
            while not any(not s.opening for s in self.lifecycle.served):
                assert program.returncode is None, await program.communicate()
                await asyncio.sleep(0.01)

    async def quiet(self, plane: ControlPlane) -> None:
        """Waits until nothing is left, here and in the pool."""
        async with asyncio.timeout(10):
            for session in list(self.lifecycle.served):
                await session.gone.wait()
            while plane.grants() or plane.session_worker_pids():
                await asyncio.sleep(0.05)


@pytest.fixture
async def guest(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Guest]:
    async with gpuless_host(plane, tmp_path) as host:
        regions = Regions(host.lifecycle, silent_seconds=300)
        doorbell = Doorbell(
            host.starter, host.run, host.log, regions.doorbell_said, regions.doorbell_connected
        )
        regions.use_doorbell(doorbell)
        watching = asyncio.create_task(doorbell.run())
        async with asyncio.timeout(20):
            while not doorbell.is_connected:
                await asyncio.sleep(0.01)
        path = Path("/dev/shm") / f"sluice-test-{os.getpid()}"
        with path.open("wb") as file:
            file.truncate(REQUEST.region_bytes)
        try:
            await regions.add_region(OWNER.uuid, path, OWNER, REQUEST)
            yield Guest(path, regions, host.lifecycle, doorbell)
            await regions.remove_region(OWNER.uuid, "the test is over")
        finally:
            watching.cancel()
            doorbell.close()
            os.kill(doorbell.pid, signal.SIGKILL)
            path.unlink()


@pytest.mark.parametrize(
    "program",
    [p for p in cuda.load_programs(milestone_only=False) if p.tcp and p.softgpu],
    ids=lambda each: str(each.name),
)
async def test_every_program_prints_what_it_prints_near_its_gpu(
    plane: ControlPlane, guest: Guest, program: cuda.Program
) -> None:
    run = await asyncio.to_thread(cuda.run_on_host, program, guest.environment())
    assert run.problem() == "", run.err
    await guest.quiet(plane)


async def test_the_session_is_the_vms_in_the_pools_books(plane: ControlPlane, guest: Guest) -> None:
    program = await guest.start("hold_vgpu", "60")
    await guest.opened(program)
    async with asyncio.timeout(5):
        while not (live := [s for s in plane.sessions() if s["state"] == "running"]):
            await asyncio.sleep(0.02)
    [session] = live
    assert (session["channel"], session["node"], session["relay"]) == ("relay", "node-a", "node-b")
    assert (session["domain_uuid"], session["domain_name"]) == (OWNER.uuid, OWNER.name)
    [grant] = plane.grants()
    assert [vgpu["memory_mib"] for vgpu in grant["vgpus"]] == [REQUEST.memory_mib]
    program.kill()
    await program.communicate()
    await guest.quiet(plane)


async def test_a_guest_that_asks_for_more_than_its_domain_has_is_refused(
    plane: ControlPlane, guest: Guest
) -> None:
    program = await guest.start("vector_add", SLUICE_GMEM="2048")
    out, error = await asyncio.wait_for(program.communicate(), 30)
    assert program.returncode != 0
    assert "domain guest was given 1024" in (out + error).decode()
    assert not plane.grants()


async def test_the_vms_end_ends_its_programs_session_on_the_gpus_node_too(
    plane: ControlPlane, guest: Guest
) -> None:
    program = await guest.start("hold_vgpu", "60")
    await guest.opened(program)
    await guest.regions.domain_stopped(OWNER.uuid, "the VM was destroyed")
    assert guest.lifecycle.served == []
    await guest.quiet(plane)
    program.kill()  # it sleeps
    await program.communicate()
    again = await guest.start("vector_add")
    out, error = await asyncio.wait_for(again.communicate(), 30)
    assert again.returncode == 0, (out + error).decode()
    await guest.quiet(plane)


async def test_a_killed_doorbell_is_replaced_under_a_relayed_program(
    plane: ControlPlane, guest: Guest
) -> None:
    os.kill(guest.doorbell.pid, signal.SIGKILL)
    program = await guest.start("vector_add")
    out, error = await asyncio.wait_for(program.communicate(), 30)
    assert program.returncode == 0, (out + error).decode()
    await guest.quiet(plane)


@pytest.mark.parametrize(
    ("offset", "value"),
    [(192, 1 << 50), (192, 1), (128, 77)],
    ids=["more than the ring holds", "less than before", "no state of a slot"],
)
async def test_a_guest_that_writes_over_its_counters_loses_its_own_session_only(
    plane: ControlPlane, guest: Guest, offset: int, value: int
) -> None:
    program, other = await guest.start("hold_vgpu", "60"), await guest.start("hold_vgpu", "60")
    for each in (program, other):  # one that still calls would write its own counter over ours
        assert each.stdout is not None
        assert await asyncio.wait_for(each.stdout.readline(), 20) == b"holding\n"
    hit, spared = sorted(guest.lifecycle.served, key=lambda s: s.requester.slot)
    # slot 0 begins behind the region's header; its state lies at 128, the client's counter at 192,
    # the doorbell at 384. What keeps the connection alive is sent with the program's own counter.
    written = value.to_bytes(8 if offset == 192 else 4, "little")
    async with asyncio.timeout(15):
        with guest.path.open("r+b", buffering=0) as region:
            while not hit.gone.is_set():
                os.pwrite(region.fileno(), written, 4096 + offset)
                os.pwrite(region.fileno(), b"\1", 4096 + 384)
                await asyncio.sleep(0.01)
    assert spared in guest.lifecycle.served
    assert not spared.worker.exited
    for each in (program, other):
        if each.returncode is None:
            each.kill()
        await each.communicate()
    await guest.quiet(plane)
