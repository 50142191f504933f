# SPDX-License-Identifier: Apache-2.0
"""Chooses where a device is plugged, so that it keeps its place over every restart.

Called by channel_devices.py and native_gpu.py with the persistent and the live document. Pure. A
place has to be free in both: libvirt would otherwise move the device at the next start.
"""

from __future__ import annotations

from sluice.hypervisor.domain_document import DomainDocument, PciAddress
from sluice.hypervisor.errors import HypervisorError

_ROOT_PORTS = ("pcie-root-port", "pcie-switch-downstream-port")
_ADD_PORTS = (
    "shut the guest down and attach again (a port is then added by itself), or add some for later "
    "with "
    "`virsh edit`: <controller type='pci' model='pcie-root-port'/>"
)


def check_hot_plug(live: DomainDocument) -> None:
    """HypervisorError where a running domain never sees what is plugged in."""
    if live.machine.startswith("microvm"):
        raise HypervisorError(
            f"{live.name}: a microvm's firmware tells its guest of no device that is plugged in "
            "while it runs: shut it down, and attach again if the channel is not in its definition"
        )


def choose_place(
    persistent: DomainDocument, live: DomainDocument | None, taken: frozenset[PciAddress]
) -> PciAddress | None:
    """A free place; None where libvirt may choose, as the domain is off and it can add a port.

    `taken` are places given away in the same operation. HypervisorError where a running domain has
    nothing free.
    """
    used = persistent.used | taken | (live.used if live is not None else frozenset())
    if persistent.is_q35:
        place = next(iter(_free_root_ports(persistent, live, used)), None)
    elif persistent.controllers.get(0) == "pci-root":
        place = _free_slot(persistent, used)
    else:
        raise HypervisorError(f"{persistent.name}: {_no_bus(persistent)}")
    if place is None and live is not None:
        if persistent.is_q35:
            raise HypervisorError(
                f"{persistent.name}: no free pcie-root-port to hot-plug into: {_ADD_PORTS}"
            )
        raise HypervisorError(
            f"{persistent.name}: every slot of PCI bus 0 is used: detach a device, or add a "
            "pci-bridge with `virsh edit`"
        )
    return place


def wants_port(persistent: DomainDocument, taken: frozenset[PciAddress]) -> bool:
    """Whether a device would take the last port of a domain that is off.

    libvirt leaves one free when it defines a domain, for whatever is plugged in later: a disk, a
    network card. A microvm's guest is told of nothing that is.
    """
    if not persistent.is_q35 or persistent.machine.startswith("microvm"):
        return False
    return len(_free_root_ports(persistent, None, persistent.used | taken)) < 2


def _no_bus(persistent: DomainDocument) -> str:
    if persistent.machine.startswith("microvm"):
        return (
            "machine type microvm has no PCI bus unless it is told to: add with `virsh edit` "
            "<controller type='pci' index='0' model='pcie-root'/>, a few <controller type='pci' "
            "model='pcie-root-port'/>, and <qemu:commandline> with -machine pcie=on (docs/"
            "libvirt.md, Machine types), or use q35"
        )
    model = persistent.controllers.get(0, "none")
    return (
        f"machine type {persistent.machine or 'unknown'} has no PCI bus that takes a device (bus 0 "
        f"is {model}): use q35 or pc"
    )


def _free_root_ports(
    persistent: DomainDocument, live: DomainDocument | None, used: frozenset[PciAddress]
) -> list[PciAddress]:
    busy = {address.bus for address in used}
    return [
        PciAddress(bus=index, slot=0)
        for index, model in sorted(persistent.controllers.items())
        if model in _ROOT_PORTS
        and index not in busy
        and (live is None or live.controllers.get(index) == model)
    ]


def _free_slot(persistent: DomainDocument, used: frozenset[PciAddress]) -> PciAddress | None:
    buses = [
        index for index, model in sorted(persistent.controllers.items()) if model == "pci-root"
    ]
    # Slots 0 to 2 of the classic machine are the host bridge, the PIIX and the display's by custom.
    busy = {(address.bus, address.slot) for address in used}
    for bus in buses:
        for slot in range(3, 32):
            if (bus, slot) not in busy:
                return PciAddress(bus=bus, slot=slot)
    return None
