# SPDX-License-Identifier: Apache-2.0
"""Whole GPUs in the definitions of a real libvirt's domains; the host that they are of is made up.

What needs a card and an IOMMU (plugging into what runs) is in test_native_vfio.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import libvirt
import pytest

from sluice.hypervisor import native_gpu
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.libvirt_host import persistent_document
from sluice.hypervisor.native_gpu import When
from sluice.hypervisor.passthrough import Card, card_at
from sluice.hypervisor.pci_devices import HostAddress, SysfsPci
from tests.rigs.kvm.rig import Guest, Rig

from .conftest import VmCommand
from .fake_sysfs import AUDIO, FakeSysfs

pytestmark = pytest.mark.vm

ADDRESS = HostAddress.parse("0000:65:00.0")


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    fake = FakeSysfs(tmp_path / "sys")
    fake.add("0000:65:00.0", bar1_mib=262144)
    fake.add("0000:65:00.1", AUDIO, driver="snd_hda_intel")
    return fake


@pytest.fixture
def card(sysfs: FakeSysfs) -> Card:
    return card_at(SysfsPci(sysfs.root), ADDRESS)


def devices_of(guest: Guest) -> dict[str, str]:
    """Host's and guest's addresses."""
    document = persistent_document(guest.domain)
    return {str(device.source): str(device.address) for device in document.host_devices}


@pytest.mark.parametrize("machine", ["q35", "pc"])
def test_every_function_is_put_in_and_taken_out(
    make_guest: Callable[..., Guest], card: Card, sysfs: FakeSysfs, vm: VmCommand, machine: str
) -> None:
    guest = make_guest(machine=machine)
    before = guest.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    given = native_gpu.attach(guest.domain, card, When.BOTH)
    assert (given.holding.live, given.holding.config) == (False, True)
    found = devices_of(guest)
    assert set(found) == {"0000:65:00.0", "0000:65:00.1"}
    assert len(set(found.values())) == 2, "each has a place of its own"
    text = guest.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    assert "managed='yes'" in text
    assert "<alias name='ua-sluice-gpu-0000-65-00-0'/>" in text
    shown = json.loads(vm("show", guest.name, "--json").out)
    assert [gpu["host"] for gpu in shown["native_gpus"]] == ["0000:65:00.0", "0000:65:00.1"]
    assert "0000:65:00.0 of the host at" in vm("show", guest.name).out
    assert "0000:65:00.0" in vm("list").out

    native_gpu.attach(guest.domain, card, When.BOTH)
    assert devices_of(guest) == found, "again changes nothing"
    assert native_gpu.detach(guest.domain, card.addresses, SysfsPci(sysfs.root))
    assert guest.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE).count("<hostdev") == 0
    assert before.count("<controller") == text.count("<controller"), "the ports were there"
    assert not native_gpu.detach(guest.domain, card.addresses, SysfsPci(sysfs.root))


def test_what_another_domain_has_is_not_given(
    make_guest: Callable[..., Guest], card: Card, rig: Rig
) -> None:
    first, second = make_guest("-a"), make_guest("-b")
    native_gpu.attach(first.domain, card, When.BOTH)
    with pytest.raises(HypervisorError, match=f"in domain {first.name} already"):
        native_gpu.attach(second.domain, card, When.BOTH)
    [holder] = native_gpu.holders(rig.connection, card.addresses)
    assert (holder.uuid, holder.config) == (first.uuid, True)
    first.undefine()
    native_gpu.attach(second.domain, card, When.BOTH)


def test_a_card_is_put_in_whole_or_not_at_all(make_guest: Callable[..., Guest], card: Card) -> None:
    guest = make_guest(
        devices="<hostdev mode='subsystem' type='pci'><source>"
        "<address domain='0' bus='0x70' slot='0' function='0'/></source>"
        "<alias name='ua-sluice-gpu-0000-65-00-1'/></hostdev>"
    )
    with pytest.raises(HypervisorError):
        native_gpu.attach(guest.domain, card, When.BOTH)  # the second alias is taken
    assert set(devices_of(guest)) == {"0000:70:00.0"}


def test_when_it_cannot_be_is_said(make_guest: Callable[..., Guest], card: Card, rig: Rig) -> None:
    guest = make_guest()
    with pytest.raises(HypervisorError, match="does not run"):
        native_gpu.attach(guest.domain, card, When.NOW)
    transient = rig.connection.createXML(rig.guest_xml("transient-gpu", mem_mib=128, vcpus=1))
    try:
        with pytest.raises(HypervisorError, match="transient and has no next start"):
            native_gpu.attach(transient, card, When.NEXT_START)
    finally:
        transient.destroy()


def test_what_libvirt_cannot_plug_in_is_taken_out_of_the_definition_again(
    make_guest: Callable[..., Guest], card: Card
) -> None:
    running = make_guest()
    running.start()  # that QEMU runs is enough
    with pytest.raises(HypervisorError):
        native_gpu.attach(running.domain, card, When.BOTH)  # there is no such device
    assert devices_of(running) == {}
    native_gpu.attach(running.domain, card, When.NEXT_START)
    assert set(devices_of(running)) == {"0000:65:00.0", "0000:65:00.1"}


def test_a_card_that_is_not_back_at_its_driver_is_not_taken_back(
    sysfs: FakeSysfs, card: Card, rig: Rig
) -> None:
    pci = SysfsPci(sysfs.root)
    native_gpu.take_back(rig.connection, card.addresses, pci, rebind_seconds=0)
    sysfs.bind("0000:65:00.0", "vfio-pci")
    with pytest.raises(HypervisorError, match=r"bound to vfio-pci.*nodedev-reattach pci_0000_65"):
        native_gpu.take_back(rig.connection, card.addresses, pci, rebind_seconds=0)
    sysfs.bind("0000:65:00.0", "")
    with pytest.raises(HypervisorError, match="bound to no driver"):
        native_gpu.take_back(rig.connection, card.addresses, pci, rebind_seconds=0)
