# SPDX-License-Identifier: Apache-2.0
"""Gives a whole GPU to a domain by `<hostdev>`, running or not, and takes it back.

Called by server.gpus.native when the controller says so; blocking. Doing a thing twice changes
nothing; what fails is undone or named. It promises that a card is given with all its functions, to
a domain that no other one's definition contests, and that a card which is taken back is bound to a
driver of the host again before anybody is told so.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from enum import StrEnum

import libvirt

from sluice.hypervisor.device_xml import native_gpu_device
from sluice.hypervisor.domain_document import DomainDocument, HostDevice, PciAddress
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.libvirt_host import call, live_document, persistent_document, words
from sluice.hypervisor.passthrough import GIVEN_DRIVERS, Card
from sluice.hypervisor.pci_devices import HostAddress, SysfsPci
from sluice.hypervisor.pci_slots import choose_place

#: A guest's driver lets go within seconds; one that is booting or paused may never.
RELEASE_SECONDS = 20.0
REBIND_SECONDS = 20.0
_POLL_SECONDS = 0.05
#: What a root port of libvirt's has for 64-bit BARs unless the firmware is told otherwise.
_SMALL_WINDOW_MIB = 2
_PCI_HOLE_GIB = 32


class When(StrEnum):
    """Into what a card is put: what runs, what the next start uses, or both."""

    BOTH = "both"
    NOW = "now"
    NEXT_START = "next-start"


@dataclass(frozen=True)
class Holding:
    """A domain and what it has of a card."""

    uuid: str
    name: str
    live: bool
    config: bool

    @property
    def holds(self) -> bool:
        """Whether it has it at all."""
        return self.live or self.config


@dataclass
class Given:
    """What attach did."""

    holding: Holding
    notes: list[str] = field(default_factory=list)


def holding_of(domain: libvirt.virDomain, addresses: tuple[HostAddress, ...]) -> Holding:
    """What a domain has of a card, by libvirt."""
    live = live_document(domain)
    persistent = persistent_document(domain) if domain.isPersistent() else None
    return Holding(
        domain.UUIDString(),
        domain.name(),
        live=live is not None and bool(_of_card(live, addresses)),
        config=persistent is not None and bool(_of_card(persistent, addresses)),
    )


def holders(
    connection: libvirt.virConnect, addresses: tuple[HostAddress, ...], *, but: str = ""
) -> list[Holding]:
    """The domains that have any function of a card, but for one."""
    found = []
    for domain in call(connection.listAllDomains):
        try:
            holding = holding_of(domain, addresses)
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                continue  # it went while they were looked through
            raise HypervisorError(words(error)) from error
        if holding.holds and holding.uuid != but:
            found.append(holding)
    return found


def attach(domain: libvirt.virDomain, card: Card, when: When, *, rom_bar: bool = True) -> Given:
    """Puts every function of the card into the domain; all or none of them."""
    name, live = domain.name(), live_document(domain)
    persistent = persistent_document(domain) if domain.isPersistent() else None
    _refuse_impossible(domain, when, live, persistent)
    others = holders(domain.connect(), card.addresses, but=domain.UUIDString())
    if others:
        raise HypervisorError(
            f"{card.gpu.address} is in domain {others[0].name} already: take it out of that "
            "definition first (virsh edit)"
        )
    given = Given(holding_of(domain, card.addresses))
    done: list[tuple[str, int]] = []
    for xml, flags in _missing(card, when, live, persistent, rom_bar):
        try:
            domain.attachDeviceFlags(xml, flags)
        except libvirt.libvirtError as error:
            _undo(domain, done)
            raise HypervisorError(f"{name}: {words(error)}") from error
        done.append((xml, flags))
    if any(flags & libvirt.VIR_DOMAIN_AFFECT_LIVE for _, flags in done):
        given.notes += _window_note(card, persistent or live)
    given.holding = holding_of(domain, card.addresses)
    return given


def detach(
    domain: libvirt.virDomain,
    addresses: tuple[HostAddress, ...],
    sysfs: SysfsPci,
    *,
    release_seconds: float = RELEASE_SECONDS,
    rebind_seconds: float = REBIND_SECONDS,
) -> bool:
    """Takes the card out of what runs and of the definition; whether it had been there."""
    live = live_document(domain)
    persistent = persistent_document(domain) if domain.isPersistent() else None
    was_there = False
    for document, flag in (
        (persistent, libvirt.VIR_DOMAIN_AFFECT_CONFIG),
        (live, libvirt.VIR_DOMAIN_AFFECT_LIVE),
    ):
        # the GPU itself last: its other functions mean nothing to the guest without it
        for device in reversed(_of_card(document, addresses) if document else []):
            xml = native_gpu_device(device.source, device.address, rom_bar=True)
            call(lambda xml=xml, flag=flag: domain.detachDeviceFlags(xml, flag))  # type: ignore[misc]
            was_there = True
    if live is not None and _of_card(live, addresses):
        _await_release(domain, addresses, release_seconds)
        await_driver(sysfs, addresses[0], rebind_seconds)
    return was_there


def take_back(
    connection: libvirt.virConnect,
    addresses: tuple[HostAddress, ...],
    sysfs: SysfsPci,
    *,
    rebind_seconds: float = REBIND_SECONDS,
) -> None:
    """Makes sure that no domain has the card and that the host's driver does."""
    others = holders(connection, addresses)
    if others:
        raise HypervisorError(f"{addresses[0]} is in domain {others[0].name} still: detach it")
    for address in addresses:
        if sysfs.driver(address) in GIVEN_DRIVERS:
            # whatever kept libvirt from it then may be over: it knows which driver comes next
            with contextlib.suppress(libvirt.libvirtError):
                connection.nodeDeviceLookupByName(_node_device(address)).reAttach()
    await_driver(sysfs, addresses[0], rebind_seconds)


def await_driver(sysfs: SysfsPci, gpu: HostAddress, seconds: float) -> str:
    """The host's driver that has the GPU; HypervisorError if none has it in time."""
    deadline = time.monotonic() + seconds
    while True:
        driver = sysfs.driver(gpu)
        if driver and driver not in GIVEN_DRIVERS:
            return driver
        if time.monotonic() > deadline:
            bound = f"bound to {driver}" if driver else "bound to no driver"
            raise HypervisorError(
                f"{gpu} is {bound}, not to the host's driver: see `dmesg`, then `virsh "
                f"nodedev-reattach {_node_device(gpu)}`, or reset the card or the host"
            )
        time.sleep(_POLL_SECONDS)


def _node_device(address: HostAddress) -> str:
    return "pci_" + str(address).replace(":", "_").replace(".", "_")


def _of_card(document: DomainDocument, addresses: tuple[HostAddress, ...]) -> list[HostDevice]:
    found = {device.source: device for device in document.host_devices}
    return [found[address] for address in addresses if address in found]


def _refuse_impossible(
    domain: libvirt.virDomain,
    when: When,
    live: DomainDocument | None,
    persistent: DomainDocument | None,
) -> None:
    name = domain.name()
    if when is When.NOW and live is None:
        raise HypervisorError(f"{name} does not run: start it, or attach for the next start")
    if when is When.NEXT_START and persistent is None:
        raise HypervisorError(
            f"{name} is transient and has no next start: attach it now, or define it first"
        )
    if live is None and domain.hasManagedSaveImage():
        raise HypervisorError(
            f"{name} has a managed save image, which would start without the GPU: start it, or "
            f"drop the image (virsh managedsave-remove {name})"
        )


def _missing(
    card: Card,
    when: When,
    live: DomainDocument | None,
    persistent: DomainDocument | None,
    rom_bar: bool,
) -> list[tuple[str, int]]:
    """The XML of each function that is missing somewhere, with the flags of where."""
    base = persistent or live
    assert base is not None  # a domain runs or is defined
    missing: list[tuple[str, int]] = []
    taken: set[PciAddress] = set()
    for function in card.functions:
        flags, place = 0, None
        for document, flag, wanted in (
            (live, libvirt.VIR_DOMAIN_AFFECT_LIVE, when is not When.NEXT_START),
            (persistent, libvirt.VIR_DOMAIN_AFFECT_CONFIG, when is not When.NOW),
        ):
            if document is None:
                continue
            there = {device.source: device for device in document.host_devices}
            if function.address in there:
                place = place or there[function.address].address
            elif wanted:
                flags |= flag
        if not flags:
            continue
        if place is None:
            # each function has a place of its own: libvirt plugs function 0 only
            running = live if when is not When.NEXT_START else None
            place = choose_place(base, running, frozenset(taken))
        if place is not None:
            taken.add(place)
        missing.append((native_gpu_device(function.address, place, rom_bar=rom_bar), flags))
    return missing


def _undo(domain: libvirt.virDomain, done: list[tuple[str, int]]) -> None:
    for xml, flags in reversed(done):
        for flag in (libvirt.VIR_DOMAIN_AFFECT_CONFIG, libvirt.VIR_DOMAIN_AFFECT_LIVE):
            if flags & flag:
                with contextlib.suppress(libvirt.libvirtError):
                    domain.detachDeviceFlags(xml, flag)


def _window_note(card: Card, document: DomainDocument | None) -> list[str]:
    """Where the guest's address space may be too small, and what makes it larger."""
    need = card.mmio64_mib
    if document is None or not document.is_q35 or need <= _SMALL_WINDOW_MIB:
        return []
    hole_gib = 2 * max(_PCI_HOLE_GIB, (1 << (need - 1).bit_length()) >> 10)
    return [
        (
            f"its BARs take {need} MiB of 64-bit address space, for which the guest's root port "
            "was not laid out at boot: if the guest's driver finds no memory, restart it; if it "
            f"still does not, give its pcie-root controller <pcihole64 unit='GiB'>{hole_gib}"
            "</pcihole64>, and its OVMF the same by opt/ovmf/X-PciMmio64Mb"
        )
    ]


def _await_release(
    domain: libvirt.virDomain, addresses: tuple[HostAddress, ...], seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while (live := _live(domain)) is not None and _of_card(live, addresses):
        if time.monotonic() > deadline:
            raise HypervisorError(
                f"{domain.name()}: the guest has not released the GPU within {seconds:.0f} s (is "
                "it paused, still booting, or does a program use it?); it is out of the "
                "definition, and comes back when the guest releases it or is powered off"
            )
        time.sleep(_POLL_SECONDS)


def _live(domain: libvirt.virDomain) -> DomainDocument | None:
    """What runs now; None also where the domain went meanwhile."""
    try:
        return live_document(domain)
    except HypervisorError:
        return None
