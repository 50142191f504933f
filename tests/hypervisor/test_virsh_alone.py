# SPDX-License-Identifier: Apache-2.0
"""A `virsh` user needs no Sluice command: the server follows the metadata, with real guests."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable

import pytest

from sluice.hypervisor.domain_document import DomainDocument
from sluice.hypervisor.libvirt_host import live_document, persistent_document
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import NAMESPACE
from tests.rigs.kvm.rig import Guest, Rig

from .guest_devices import DEVICES, PLUGGED
from .region_service import FakeRegions, do, serving, until

pytestmark = pytest.mark.vm

VGPU = "<vgpu memory-mib='1024' compute='25' region-mib='32'/>"


class Virsh:
    """The program itself, on the rig's libvirt."""

    def __init__(self, uri: str) -> None:
        self._command = ["virsh", "-q", "-c", uri]

    async def __call__(self, *arguments: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run,
            [*self._command, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    async def ask(self, guest: Guest, xml: str, *where: str) -> None:
        """Set the metadata; `where` are --live and --config."""
        key = ("--key", "sluice", "--set", xml) if xml else ("--remove",)
        await self("metadata", guest.name, NAMESPACE, *where, *key)


@pytest.fixture
def virsh(rig: Rig) -> Virsh:
    return Virsh(rig.uri)


def live(guest: Guest) -> DomainDocument:
    document = live_document(guest.domain)
    assert document is not None
    return document


def defined(guest: Guest) -> DomainDocument:
    return persistent_document(guest.domain)


async def test_metadata_is_a_channel_and_its_removal_the_end_of_it(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest, virsh: Virsh
) -> None:
    async with serving(rig, regions, files) as service:
        await virsh.ask(running, VGPU, "--live", "--config")
        await regions.told("add", running.uuid)
        plugged, kept = live(running).region, defined(running).region
        assert plugged is not None
        assert kept is not None
        assert plugged.address == kept.address, "the next start finds it where it is now"
        found = await do(running.check, f"{PLUGGED}; {DEVICES}")
        assert found.strip(), "the guest sees an ivshmem device"
        # other figures: nothing is plugged, the server is told
        await virsh.ask(running, VGPU.replace("25", "50"), "--live", "--config")
        assert (await regions.told("add", running.uuid))[3] == "50"
        await virsh.ask(running, "", "--live", "--config")
        assert (await regions.told("remove", running.uuid))[2] == "the vGPU was detached"
        await until(lambda: live(running).region is None and defined(running).region is None)
        await until(lambda: not files.path(running.uuid).exists())
        assert service.problems == []
        # and back, in the same run of the guest
        await virsh.ask(running, VGPU, "--live", "--config")
        await regions.told("add", running.uuid)
        await until(lambda: live(running).region is not None)


async def test_virsh_edit_counts_from_the_next_start(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest, virsh: Virsh
) -> None:
    async with serving(rig, regions, files):
        await virsh.ask(running, VGPU, "--config")
        await until(lambda: defined(running).region is not None)
        assert live(running).region is None
        await do(running.destroy)
        await do(running.start)
        await regions.told("add", running.uuid)
        assert live(running).region is not None


async def test_an_edited_size_waits_until_the_guest_is_off(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest, virsh: Virsh
) -> None:
    async with serving(rig, regions, files) as service:
        await virsh.ask(running, VGPU, "--live", "--config")
        await regions.told("add", running.uuid)
        larger = VGPU.replace("'32'", "'64'")
        await virsh.ask(running, larger, "--live", "--config")
        await until(lambda: any("region-mib=64" in line for line in service.problems))
        assert all(call[0] != "remove" for call in regions.calls), "nobody is thrown out"
        await do(running.destroy)
        await until(lambda: (r := defined(running).region) is not None and r.size_bytes == 64 << 20)
        await until(lambda: files.path(running.uuid).stat().st_size == 64 << 20)
        await until(lambda: service.problems == [])
        await do(running.start)
        region = live(running).region
        assert region is not None
        assert region.size_bytes == 64 << 20


async def test_what_was_unplugged_by_hand_stays_out_until_the_next_start(
    rig: Rig,
    regions: FakeRegions,
    files: RegionFiles,
    running: Guest,
    virsh: Virsh,
) -> None:
    async with serving(rig, regions, files, reconcile_seconds=0.2):
        await virsh.ask(running, VGPU, "--live", "--config")
        await regions.told("add", running.uuid)
        await virsh("detach-device-alias", running.name, "ua-sluice-region", "--live")
        await regions.told("stopped", running.uuid)
        await asyncio.sleep(1)
        assert live(running).region is None
        await do(running.destroy)
        await do(running.start)
        await until(lambda: live(running).region is not None)


async def test_a_running_guest_without_a_free_port_gets_it_at_its_next_start(
    rig: Rig,
    regions: FakeRegions,
    files: RegionFiles,
    make_guest: Callable[..., Guest],
    virsh: Virsh,
) -> None:
    guest = make_guest(spare_ports=0)
    await do(guest.start)
    await do(guest.wait_ready)
    async with serving(rig, regions, files) as service:
        await virsh.ask(guest, VGPU, "--live", "--config")
        await until(lambda: any("next start" in line for line in service.problems))
        assert "pcie-root-port" in service.problems[0]
        assert defined(guest).region is not None
        await do(guest.destroy)
        await do(guest.start)
        await until(lambda: live(guest).region is not None)
        await until(lambda: service.problems == [])


async def test_what_cannot_be_read_changes_nothing(
    rig: Rig, regions: FakeRegions, files: RegionFiles, running: Guest, virsh: Virsh
) -> None:
    async with serving(rig, regions, files) as service:
        for xml, field in (
            ("<vgpu memory-mib='-1' compute='25'/>", "memory-mib"),
            ("<vgpu memory-mib='1024' compute='101'/>", "compute"),
            ("<vgpu memory-mib='1024' compute='25' region-mib='33'/>", "region-mib"),
            ("<vgpu memory-mib='1024'/>", "compute"),
            ("<gpu/>", "vgpu"),
        ):
            await virsh.ask(running, xml, "--live", "--config")
            await until(lambda field=field: any(field in line for line in service.problems))  # type: ignore[misc]
            assert live(running).region is None
        assert regions.calls == []


async def test_a_round_over_unchanged_domains_is_one_call(
    rig: Rig,
    regions: FakeRegions,
    files: RegionFiles,
    make_guest: Callable[..., Guest],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sluice.hypervisor import service as module

    guests = [make_guest(f"-{number}") for number in range(3)]
    looked: list[str] = []
    real = module.observe_domain
    monkeypatch.setattr(
        module, "observe_domain", lambda *where: (looked.append(where[1]), real(*where))[1]
    )
    async with serving(rig, regions, files, reconcile_seconds=0.1):
        looked.clear()
        await asyncio.sleep(0.5)
        assert looked == []
        await do(guests[1].start)
        await until(lambda: guests[1].uuid in looked)
        assert set(looked) <= {guests[1].uuid}
