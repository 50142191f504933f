# SPDX-License-Identifier: Apache-2.0
"""Domain XML as libvirt formats it, for tests without a libvirt."""

from __future__ import annotations

from sluice.hypervisor.device_xml import region_device, request_metadata
from sluice.hypervisor.domain_document import PciAddress
from sluice.hypervisor.request import DomainRequest

UUID = "606ef660-97e7-4293-92c4-c8b7480e0c99"
OTHER_UUID = "11111111-2222-3333-4444-555555555555"
REQUEST = DomainRequest(memory_mib=1024, compute_percent=25, region_mib=64)


def q35(
    *,
    ports: int = 3,
    metadata: str = "",
    devices: str = "",
    uuid: str = UUID,
    name: str = "guest",
) -> str:
    """A q35 domain; root port 1 holds a disk, the others are free."""
    controllers = "".join(
        f"<controller type='pci' index='{index}' model='pcie-root-port'>"
        f"<address type='pci' domain='0x0000' bus='0x00' slot='0x01' function='{index - 1:#x}'/>"
        "</controller>"
        for index in range(1, ports + 1)
    )
    return f"""
    <domain type='kvm'>
      <name>{name}</name><uuid>{uuid}</uuid>
      <metadata>{metadata}</metadata>
      <memory unit='KiB'>524288</memory><vcpu>1</vcpu>
      <os><type arch='x86_64' machine='pc-q35-7.2'>hvm</type></os>
      <devices>
        <controller type='pci' index='0' model='pcie-root'/>{controllers}
        <disk type='file' device='disk'>
          <source file='/x'/><target dev='vda' bus='virtio'/>
          <address type='pci' domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
        </disk>{devices}
      </devices>
    </domain>"""


def pc(devices: str = "") -> str:
    """An i440fx domain with the usual devices in slots 1 to 3."""
    return f"""
    <domain type='kvm'>
      <name>guest</name><uuid>{UUID}</uuid>
      <memory unit='KiB'>524288</memory><vcpu>1</vcpu>
      <os><type arch='x86_64' machine='pc-i440fx-7.2'>hvm</type></os>
      <devices>
        <controller type='pci' index='0' model='pci-root'/>
        <controller type='ide' index='0'>
          <address type='pci' domain='0x0000' bus='0x00' slot='0x01' function='0x1'/>
        </controller>
        <interface type='user'>
          <address type='pci' domain='0x0000' bus='0x00' slot='0x03' function='0x0'/>
        </interface>{devices}
      </devices>
    </domain>"""


def microvm(devices: str = "", *, pcie: bool = True) -> str:
    """A microvm, with the PCI bus that it has only where it is told to."""
    bus = """
        <controller type='pci' index='0' model='pcie-root'/>
        <controller type='pci' index='1' model='pcie-root-port'>
          <address type='pci' domain='0x0000' bus='0x00' slot='0x01' function='0x0'/>
        </controller>
        <controller type='pci' index='2' model='pcie-root-port'>
          <address type='pci' domain='0x0000' bus='0x00' slot='0x01' function='0x1'/>
        </controller>"""
    switch = """
      <qemu:commandline>
        <qemu:arg value='-machine'/><qemu:arg value='pcie=on'/>
      </qemu:commandline>"""
    return f"""
    <domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
      <name>guest</name><uuid>{UUID}</uuid>
      <memory unit='KiB'>524288</memory><vcpu>1</vcpu>
      <os>
        <type arch='x86_64' machine='microvm'>hvm</type>
        <kernel>/vmlinux</kernel><cmdline>console=ttyS0</cmdline>
      </os>
      <features><acpi/></features>
      <devices>
        <emulator>/usr/bin/qemu-system-x86_64</emulator>{bus if pcie else ""}
        <controller type='usb' index='0' model='none'/>{devices}
      </devices>{switch if pcie else ""}
    </domain>"""


def ours(request: DomainRequest = REQUEST) -> str:
    """The metadata of a request."""
    return request_metadata(request, with_namespace=True)


def region(uuid: str = UUID, size_mib: int = 64, bus: int = 2, *, served: str | None = None) -> str:
    """The channel device of a domain, plugged into a root port.

    `served` is the domain whose server it asks, if it has a doorbell.
    """
    server = f"/run/sluice/ivshmem/{served}/server" if served else None
    return region_device(f"sluice-{uuid}", size_mib, PciAddress(bus=bus, slot=0), server)
