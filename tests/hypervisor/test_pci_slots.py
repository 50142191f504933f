# SPDX-License-Identifier: Apache-2.0
"""A channel gets a place that is free in the definition and in what runs."""

from __future__ import annotations

import pytest

from sluice.hypervisor.domain_document import PciAddress, parse_domain
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.pci_slots import check_hot_plug, choose_place, wants_port

from .domain_texts import microvm, pc, q35

NONE: frozenset[PciAddress] = frozenset()


def disk(bus: int, slot: int = 0) -> str:
    return (
        "<disk type='file' device='disk'><source file='/y'/><target dev='vdb' bus='virtio'/>"
        f"<address type='pci' domain='0x0000' bus='{bus:#x}' slot='{slot:#x}' function='0x0'/>"
        "</disk>"
    )


def test_the_first_free_root_port() -> None:
    assert choose_place(parse_domain(q35()), None, NONE) == PciAddress(bus=2, slot=0)


def test_a_port_that_is_used_only_in_what_runs_is_not_free() -> None:
    persistent, live = parse_domain(q35()), parse_domain(q35(devices=disk(2)))
    assert choose_place(persistent, live, NONE) == PciAddress(bus=3, slot=0)
    assert choose_place(live, persistent, NONE) == PciAddress(bus=3, slot=0)


def test_a_port_that_does_not_exist_yet_in_what_runs_is_not_free() -> None:
    persistent, live = parse_domain(q35(ports=3)), parse_domain(q35(ports=1))
    with pytest.raises(HypervisorError, match="pcie-root-port"):
        choose_place(persistent, live, NONE)


def test_a_place_given_away_a_moment_ago_is_not_free() -> None:
    taken = frozenset({PciAddress(bus=2, slot=0)})
    assert choose_place(parse_domain(q35()), None, taken) == PciAddress(bus=3, slot=0)


def test_a_running_domain_without_a_free_port_is_told_what_to_do() -> None:
    full = parse_domain(q35(ports=1))
    with pytest.raises(HypervisorError, match="virsh edit"):
        choose_place(full, full, NONE)


def test_a_domain_that_is_off_leaves_the_choice_to_libvirt() -> None:
    assert choose_place(parse_domain(q35(ports=1)), None, NONE) is None


def test_a_domain_that_is_off_keeps_a_port_for_what_is_plugged_in_later() -> None:
    assert not wants_port(parse_domain(q35(ports=3)), NONE)
    assert wants_port(parse_domain(q35(ports=2)), NONE)
    assert wants_port(parse_domain(q35(ports=3)), frozenset({PciAddress(bus=2, slot=0)}))
    assert not wants_port(parse_domain(pc()), NONE)
    assert not wants_port(parse_domain(microvm()), NONE), "it plugs nothing in"


def test_the_classic_machine_gets_a_slot_of_bus_0() -> None:
    assert choose_place(parse_domain(pc()), None, NONE) == PciAddress(bus=0, slot=4)
    full = parse_domain(pc("".join(disk(0, slot) for slot in range(4, 32))))
    with pytest.raises(HypervisorError, match="every slot"):
        choose_place(full, full, NONE)


def test_a_machine_without_pci_is_refused() -> None:
    text = q35().replace("<controller type='pci' index='0' model='pcie-root'/>", "")
    with pytest.raises(HypervisorError, match="q35 or pc"):
        choose_place(parse_domain(text.replace("type='pci' index", "type='usb' index")), None, NONE)


def test_a_microvm_has_ports_only_where_it_is_told_to_have_a_bus() -> None:
    assert choose_place(parse_domain(microvm()), None, NONE) == PciAddress(bus=1, slot=0)
    with pytest.raises(HypervisorError, match="pcie=on"):
        choose_place(parse_domain(microvm(pcie=False)), None, NONE)
    check_hot_plug(parse_domain(q35()))
    with pytest.raises(HypervisorError, match="while it runs"):
        check_hot_plug(parse_domain(microvm()))
