# SPDX-License-Identifier: Apache-2.0
"""Runs in a guest with an emulated IOMMU: gives its display controller to a guest of its own.

Called by test_native_vfio.py, with a kernel and an initramfs if that guest is to boot, so that it
releases the card when it is asked to. Everything is real but the card: sysfs, IOMMU groups,
vfio-pci, libvirt, QEMU. Prints a line of JSON for each step.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import libvirt

from sluice.hypervisor import native_gpu
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.libvirt_host import silence_libvirt
from sluice.hypervisor.native_gpu import When
from sluice.hypervisor.passthrough import Card, card_at
from sluice.hypervisor.pci_devices import HostAddress, SysfsPci
from tests.rigs.kvm.private_libvirt import PrivateLibvirt

CONSOLE = Path("/run/inner.log")
DOMAIN = """
<domain type='qemu'>
  <name>inner</name><memory unit='MiB'>160</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='q35'>hvm</type>{boot}</os>
  <features><acpi/><apic/></features>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-root-port'/>
    <controller type='pci' index='2' model='pcie-root-port'/>
    <controller type='usb' model='none'/>
    <serial type='file'><source path='{console}'/><target port='0'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>"""


BOOT = """
<kernel>{}</kernel><initrd>{}</initrd>
<cmdline>console=ttyS0 quiet loglevel=1 mitigations=off nokaslr tsc=reliable panic=-1 audit=0
 apparmor=0 cryptomgr.notests random.trust_cpu=on 8250.nr_uarts=1 lpj=4000000</cmdline>
"""


def say(step: str, **what: Any) -> None:
    """One step, for the test."""
    print(json.dumps({"step": step, **what}), flush=True)


def refused(action: Callable[[], Any]) -> str:
    """What a call that must not succeed says."""
    try:
        action()
    except HypervisorError as error:
        return str(error)
    return ""


def state(domain: libvirt.virDomain, card: Card, sysfs: SysfsPci) -> dict[str, Any]:
    """Where the card is, by libvirt and by sysfs."""
    holding = native_gpu.holding_of(domain, card.addresses)
    driver = sysfs.driver(card.gpu.address)
    return {"live": holding.live, "config": holding.config, "driver": driver}


def booted() -> None:
    """Waits until the inner guest has come up: it is emulated by what is emulated itself."""
    deadline = time.monotonic() + 1800
    while not CONSOLE.exists() or "inner is up" not in CONSOLE.read_text(errors="replace"):
        if time.monotonic() > deadline:
            raise TimeoutError(CONSOLE.read_text(errors="replace")[-2000:])
        time.sleep(0.2)


def main() -> None:
    """Every step in its order."""
    boots = len(sys.argv) > 1
    silence_libvirt()
    sysfs = SysfsPci()
    displays = [
        address
        for entry in sorted(Path("/sys/bus/pci/devices").iterdir())
        if (device := sysfs.device(address := HostAddress.parse(entry.name)))
        and device.class_code >> 8 == 0x0380
    ]
    card = card_at(sysfs, displays[0])
    say("card", address=str(card.gpu.address), group=card.gpu.iommu_group, driver=card.gpu.driver)
    say("disk", refused=refused(lambda: card_at(sysfs, HostAddress.parse("0000:00:1f.2"))))
    libvirt_here = PrivateLibvirt(Path("/run/lv"))
    libvirt_here.start(timeout=120)
    connection = libvirt.open(libvirt_here.uri)
    text = DOMAIN.format(boot=BOOT.format(*sys.argv[1:3]) if boots else "", console=CONSOLE)
    domain = connection.defineXML(text)
    domain.create()
    if boots:
        booted()

    native_gpu.attach(domain, card, When.BOTH)
    say("attached", **state(domain, card, sysfs))
    missing = refused(lambda: native_gpu.await_driver(sysfs, card.gpu.address, 0))
    groups = sorted(path.name for path in Path("/dev/vfio").iterdir())
    say("given", groups=groups, missing=missing)
    other = connection.defineXML(text.replace("<name>inner", "<name>other"))
    say("other", refused=refused(lambda: native_gpu.attach(other, card, When.BOTH)))

    def take_back() -> None:
        native_gpu.take_back(connection, card.addresses, sysfs, rebind_seconds=0)

    say("held", refused=refused(take_back))
    if not boots:
        domain.destroy()
    native_gpu.detach(domain, card.addresses, sysfs, release_seconds=120)
    say("detached", **state(domain, card, sysfs))

    native_gpu.attach(domain, card, When.NEXT_START)
    say("next start", **state(domain, card, sysfs))
    if boots:
        domain.destroy()
    domain.create()
    say("started with it", **state(domain, card, sysfs))
    domain.suspend()
    said = refused(lambda: native_gpu.detach(domain, card.addresses, sysfs, release_seconds=2))
    say("paused", refused=said, **state(domain, card, sysfs))
    domain.destroy()
    native_gpu.take_back(connection, card.addresses, sysfs)
    say("destroyed", **state(domain, card, sysfs))

    name = "pci_" + str(card.gpu.address).replace(":", "_").replace(".", "_")
    connection.nodeDeviceLookupByName(name).dettach()
    say("left behind", driver=sysfs.driver(card.gpu.address))
    native_gpu.take_back(connection, card.addresses, sysfs)
    say("taken back", driver=sysfs.driver(card.gpu.address))


if __name__ == "__main__":
    main()
