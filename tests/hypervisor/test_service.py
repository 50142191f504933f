# SPDX-License-Identifier: Apache-2.0
"""The server learns a guest's whole life from libvirt, also what it did not see happen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.hypervisor import channel_devices
from sluice.hypervisor.ports import RegionOwner
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import NAMESPACE, DomainRequest
from sluice.hypervisor.service import HypervisorService
from tests.rigs.kvm.rig import Guest, Rig

from .conftest import VmCommand

pytestmark = pytest.mark.vm

REQUEST = DomainRequest(memory_mib=1024, compute_percent=25, region_mib=32)


class FakeRegions:
    """Writes down what a server would be told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []
        self.broken = self.deaf = False

    async def add_region(
        self, region_id: str, path: Path, owner: RegionOwner, request: DomainRequest
    ) -> None:
        if self.broken:
            raise RuntimeError("the doorbell does not answer")
        size = await asyncio.to_thread(lambda: path.stat().st_size)
        assert size == request.region_bytes, "the file is whole before it is told of"
        self.calls.append(("add", region_id, owner.name, str(request.compute_percent)))

    async def remove_region(self, region_id: str, reason: str) -> None:
        self.calls.append(("remove", region_id, reason))

    async def domain_paused(self, region_id: str) -> None:
        self.calls.append(("paused", region_id))

    async def domain_resumed(self, region_id: str) -> None:
        self.calls.append(("resumed", region_id))

    async def domain_stopped(self, region_id: str, reason: str) -> None:
        if self.deaf:
            self.deaf = False
            raise RuntimeError("the session manager does not answer")
        self.calls.append(("stopped", region_id, reason))

    async def told(self, *expected: str, within: float = 60) -> tuple[str, ...]:
        """Waits for a call that begins so, and forgets it and all before it."""
        async with asyncio.timeout(within):
            while True:
                for index, call in enumerate(self.calls):
                    if call[: len(expected)] == expected:
                        del self.calls[: index + 1]
                        return call
                await asyncio.sleep(0.02)


@pytest.fixture
def regions() -> FakeRegions:
    return FakeRegions()


@pytest.fixture
def files(vm: VmCommand) -> RegionFiles:
    return vm.files


@contextlib.asynccontextmanager
async def serving(
    rig: Rig, regions: FakeRegions, files: RegionFiles, **how: float
) -> AsyncIterator[HypervisorService]:
    service = HypervisorService(
        regions, uri=rig.uri, files=files, reconnect_seconds=0.1, **{"reconcile_seconds": 60, **how}
    )
    task = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(60):
            await service.connected.wait()
        yield service
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def do(action: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.to_thread(action, *arguments)


async def until(condition: Callable[[], bool], within: float = 60) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_whole_life(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest
) -> None:
    uuid = running.uuid
    async with serving(rig, regions, files):
        await do(channel_devices.attach, running.domain, REQUEST, files)
        assert await regions.told("add", uuid) == ("add", uuid, running.name, "25")
        await do(running.pause)
        await regions.told("paused", uuid)
        await do(running.resume)
        await regions.told("resumed", uuid)
        await do(running.destroy)
        assert (await regions.told("stopped", uuid))[2] == "the VM was destroyed"
        await do(running.start)
        await do(running.wait_ready)
        await do(running.reboot)
        assert (await regions.told("stopped", uuid))[2] == "the VM rebooted"
        await do(running.wait_ready)
        await do(channel_devices.detach, running.domain, files)
        assert (await regions.told("remove", uuid))[2] == "the vGPU was detached"
    assert not files.path(uuid).exists()


async def test_an_undefined_domain_leaves_nothing(
    rig: Rig, regions: FakeRegions, files: RegionFiles, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest()
    async with serving(rig, regions, files):
        await do(channel_devices.attach, guest.domain, REQUEST, files)
        await regions.told("add", guest.uuid)
        await do(guest.domain.undefine)
        assert (await regions.told("remove", guest.uuid))[2] == "the domain was undefined"
        await until(lambda: not files.path(guest.uuid).exists() and not files.recorded())


async def test_undefined_while_it_runs_it_is_served_until_it_ends(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest
) -> None:
    async with serving(rig, regions, files):
        await do(channel_devices.attach, running.domain, REQUEST, files)
        await regions.told("add", running.uuid)
        await do(running.domain.undefine)
        await asyncio.sleep(0.3)
        assert regions.calls == []
        assert files.path(running.uuid).exists()
        await do(running.destroy)
        await regions.told("remove", running.uuid)
        await until(lambda: not files.path(running.uuid).exists())


async def test_what_happened_while_it_was_away_is_caught_up(
    rig: Rig, regions: FakeRegions, files: RegionFiles, make_guest: Callable[..., Guest]
) -> None:
    gone, came = make_guest("-gone"), make_guest("-came")
    await do(channel_devices.attach, gone.domain, REQUEST, files)
    async with serving(rig, regions, files):
        await regions.told("add", gone.uuid)
    await do(gone.domain.undefine)
    await do(channel_devices.attach, came.domain, REQUEST, files)
    files.path(came.uuid).unlink()  # the host was rebooted meanwhile
    async with serving(rig, regions, files):
        await regions.told("add", came.uuid)
        assert files.path(came.uuid).exists()
        assert not files.path(gone.uuid).exists()
        assert files.recorded() == {came.uuid}


async def test_libvirt_may_be_restarted_and_no_guest_is_thought_dead(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest
) -> None:
    async with serving(rig, regions, files) as service:
        await do(channel_devices.attach, running.domain, REQUEST, files)
        await regions.told("add", running.uuid)
        await do(rig.stop_daemon)
        await until(lambda: not service.connected.is_set())
        await do(rig.restart_daemon)
        await until(service.connected.is_set)
        assert regions.calls == []
        await do(running.pause)
        await regions.told("paused", running.uuid)
        await do(running.resume)


async def test_it_waits_for_a_libvirt_that_comes_later(
    rig: Rig, regions: FakeRegions, files: RegionFiles, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest()
    await do(channel_devices.attach, guest.domain, REQUEST, files)
    rig.stop_daemon()
    service = HypervisorService(regions, uri=rig.uri, files=files, reconnect_seconds=0.1)
    task = asyncio.create_task(service.run())
    try:
        await asyncio.sleep(0.5)
        assert not service.connected.is_set()
        await do(rig.restart_daemon)
        await regions.told("add", guest.uuid)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_metadata_that_turns_bad_is_reported_and_what_runs_goes_on(
    rig: Rig, regions: FakeRegions, files: RegionFiles, make_guest: Callable[..., Guest]
) -> None:
    import libvirt

    guest = make_guest()
    async with serving(rig, regions, files) as service:
        await do(channel_devices.attach, guest.domain, REQUEST, files)
        await regions.told("add", guest.uuid)

        def set_metadata(xml: str) -> None:
            guest.domain.setMetadata(
                libvirt.VIR_DOMAIN_METADATA_ELEMENT,
                xml,
                "sluice",
                NAMESPACE,
                libvirt.VIR_DOMAIN_AFFECT_CONFIG,
            )

        await do(set_metadata, "<vgpu memory-mib='99999999999' compute='25'/>")
        await until(lambda: bool(service.problems))
        assert "memory-mib" in service.problems[0]
        assert guest.name in service.problems[0]
        assert regions.calls == []
        assert files.path(guest.uuid).exists()
        await do(set_metadata, "<vgpu memory-mib='2048' compute='50' region-mib='32'/>")
        assert (await regions.told("add", guest.uuid))[3] == "50"
        await until(lambda: service.problems == [])
    # a server that starts knows nothing of before
    await do(set_metadata, "<vgpu memory-mib='none' compute='25'/>")
    async with serving(rig, regions, files) as service:
        assert regions.calls == []
        assert service.problems


async def test_a_restart_whose_telling_failed_is_told_again(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest
) -> None:
    async with serving(rig, regions, files, reconcile_seconds=0.3):
        await do(channel_devices.attach, running.domain, REQUEST, files)
        await regions.told("add", running.uuid)
        regions.deaf = True
        await do(running.domain.reset)
        assert (await regions.told("stopped", running.uuid))[2] == "the VM rebooted"
        await do(running.wait_ready)


async def test_a_server_that_fails_is_asked_again(
    rig: Rig, regions: FakeRegions, files: RegionFiles, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest()
    await do(channel_devices.attach, guest.domain, REQUEST, files)
    regions.broken = True
    async with serving(rig, regions, files, reconcile_seconds=0.3):
        assert regions.calls == []
        regions.broken = False
        await regions.told("add", guest.uuid)
