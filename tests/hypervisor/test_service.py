# SPDX-License-Identifier: Apache-2.0
"""The server learns a guest's whole life from libvirt, also what it did not see happen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from sluice.hypervisor import channel_devices
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import NAMESPACE
from sluice.hypervisor.service import HypervisorService
from tests.rigs.kvm.rig import Guest, Rig

from .region_service import REQUEST, FakeRegions, do, serving, until

pytestmark = pytest.mark.vm


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
