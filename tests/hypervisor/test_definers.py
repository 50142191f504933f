# SPDX-License-Identifier: Apache-2.0
"""Who defines a domain and starts it at once, as Nova does: the channel is there from the start."""

from __future__ import annotations

from collections.abc import Callable

import libvirt
import pytest

from sluice.hypervisor.domain_document import DomainDocument
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.libvirt_host import live_document, persistent_document
from sluice.hypervisor.pci_slots import wants_port
from sluice.hypervisor.region_file import RegionFiles
from sluice.server.listeners.vm_socket import make_ready, make_regions, render
from tests.rigs.kvm.rig import Guest, Rig

from .guest_devices import DEVICES, PLUGGED
from .region_service import REQUEST, FakeRegions, do, serving

pytestmark = pytest.mark.vm


def defined(guest: Guest) -> DomainDocument:
    return persistent_document(guest.domain)


def with_metadata(guest: Guest, request: str) -> str:
    """Its definition as Nova writes one: what is asked for, no device, no places."""
    inactive = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
    text: str = guest.domain.XMLDesc(inactive)
    return text.replace("<memory ", f"<metadata>{request}</metadata><memory ", 1)


async def test_the_definition_is_complete_before_the_start(
    rig: Rig, files: RegionFiles, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest()
    xml = with_metadata(guest, render(guest.uuid, REQUEST)[1])
    guest.domain.undefine()
    make_regions(rig.uri, files)(guest.uuid, REQUEST)
    rig.connection.defineXML(xml)
    assert defined(guest).region is None
    ready = make_ready(rig.uri, files)
    ready(guest.uuid)
    once = defined(guest)
    assert once.region is not None
    assert once.region.size_bytes == REQUEST.region_bytes
    assert files.path(guest.uuid).stat().st_size == REQUEST.region_bytes
    ready(guest.uuid)
    assert defined(guest) == once, "again changes nothing"
    await do(guest.start)
    await do(guest.wait_ready)
    live = live_document(guest.domain)
    assert live is not None
    assert live.region == once.region
    assert (await do(guest.check, f"{PLUGGED}; {DEVICES}")).strip()


async def test_beside_a_server_that_sees_the_definition_too(
    rig: Rig, regions: FakeRegions, files: RegionFiles, make_guest: Callable[..., Guest]
) -> None:
    """Defined, ready and started in one go, again and again, as hard reboots are."""
    guest = make_guest()
    xml = with_metadata(guest, render(guest.uuid, REQUEST)[1])
    ready, prepare = make_ready(rig.uri, files), make_regions(rig.uri, files)

    def reboot() -> None:
        domain = rig.connection.lookupByUUIDString(guest.uuid)
        if domain.isActive():
            domain.destroy()
        domain.undefine()
        prepare(guest.uuid, REQUEST)
        domain = rig.connection.defineXML(xml)
        ready(guest.uuid)
        domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED)

    async with serving(rig, regions, files):
        for _ in range(5):
            await do(reboot)
            live = live_document(guest.domain)
            assert live is not None
            assert live.region is not None, "it was there when the domain started"
            assert defined(guest).region == live.region
        await regions.told("add", guest.uuid)


def test_a_port_stays_for_what_is_plugged_in_later(
    rig: Rig, files: RegionFiles, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest(spare_ports=1)
    assert wants_port(defined(guest), frozenset())
    xml = with_metadata(guest, render(guest.uuid, REQUEST)[1])
    ready = make_ready(rig.uri, files)
    before = len(defined(guest).controllers)
    for _ in range(2):
        rig.connection.defineXML(xml)
        ready(guest.uuid)
        definition = defined(guest)
        assert definition.region is not None
        assert definition.region.address is not None
        port = definition.controllers[definition.region.address.bus]
        assert port == "pcie-root-port"
        used = {address.bus for address in definition.used}
        free = [
            index
            for index, model in definition.controllers.items()
            if model == "pcie-root-port" and index not in used
        ]
        assert len(free) == 1
        assert len(definition.controllers) == before + 1


def test_what_cannot_be_is_said_and_nothing_is_started_without(
    rig: Rig, files: RegionFiles, make_guest: Callable[..., Guest]
) -> None:
    guest = make_guest()
    ready = make_ready(rig.uri, files)
    with pytest.raises(HypervisorError, match="asks for no vGPU"):
        ready(guest.uuid)
    wrong = render(guest.uuid, REQUEST)[1].replace("memory-mib='1024'", "memory-mib='many'")
    rig.connection.defineXML(with_metadata(guest, wrong))
    with pytest.raises(HypervisorError, match="memory-mib"):
        ready(guest.uuid)
    with pytest.raises(HypervisorError, match="no domain"):
        ready(guest.uuid.translate(str.maketrans("0123456789abcdef", "123456789abcdef0")))
