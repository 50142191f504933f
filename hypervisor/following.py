# SPDX-License-Identifier: Apache-2.0
"""Brings a domain's devices in line with its metadata, whoever wrote that: `virsh` is enough.

Called by service.py for every look at a domain; blocking. What runs follows the metadata of what
runs, the definition its own, as libvirt keeps them apart: `virsh metadata` on a running domain
hot-plugs, `virsh edit` counts from the next start. The decision is `wishes_of`, pure. Doing it
again changes nothing, and what cannot be done is said and tried again at the next look. It shares a
lock with `sluice vm attach|detach`, whose steps it must not see half done.
"""

from __future__ import annotations

from dataclasses import dataclass

import libvirt

from sluice.hypervisor.device_xml import region_device, vsock_device
from sluice.hypervisor.domain_document import DomainDocument, PciAddress, ShmemDevice
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.libvirt_host import (
    VHOST_VSOCK,
    call,
    live_document,
    persistent_document,
    qemu_account,
)
from sluice.hypervisor.pci_slots import check_hot_plug, choose_place
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import VgpuRequest

_LIVE = int(libvirt.VIR_DOMAIN_AFFECT_LIVE)
_CONFIG = int(libvirt.VIR_DOMAIN_AFFECT_CONFIG)


@dataclass(frozen=True)
class Wish:
    """What one side of a domain, what runs or the definition, lacks or has too much of."""

    put: VgpuRequest | None = None  # the channel that is missing
    take: ShmemDevice | None = None  # the channel that has to go, before another is put


@dataclass(frozen=True)
class Wishes:
    """Both sides."""

    live: Wish = Wish()
    config: Wish = Wish()

    @property
    def any(self) -> bool:
        """Whether anything is to be done."""
        return self != Wishes()


def wishes_of(
    persistent: DomainDocument | None, live: DomainDocument | None, *, may_plug: bool = True
) -> Wishes:
    """What to do; `persistent` is None for a transient domain.

    `may_plug` is False where the device was unplugged from this run of the domain, by the guest or
    with `virsh detach-device`: it comes back with the next start. A request that cannot be read
    moves nothing, and neither does a region of another domain: service.py reports both.
    """
    running, defined = _wish(live, keep_size=True), _wish(persistent, keep_size=False)
    if not may_plug and running.put is not None:
        running = Wish()
    return Wishes(running, defined)


def _wish(side: DomainDocument | None, *, keep_size: bool) -> Wish:
    if side is None or side.problem is not None or side.foreign_regions:
        return Wish()
    if side.request is None:
        return Wish(take=side.region)
    if side.region is None:
        return Wish(put=side.request)
    if keep_size or side.region.size_bytes == side.request.region_bytes:
        return Wish()
    return Wish(put=side.request, take=side.region)


def follow(domain: libvirt.virDomain, files: RegionFiles, *, may_plug: bool = True) -> list[str]:
    """Does what the metadata asks for; returns what could not be done, a line each.

    A device that a running guest has to release goes when it does: libvirt says so by an event.
    """
    with files.locked():
        live = live_document(domain)
        definition = persistent_document(domain)
        defined = bool(domain.isPersistent())
        wishes = wishes_of(definition if defined else None, live, may_plug=may_plug)
        problems: list[str] = []
        if not wishes.any:
            return problems
        for wish, flag in ((wishes.config, _CONFIG), (wishes.live, _LIVE)):
            side = live if flag == _LIVE else definition
            if side is None:
                continue
            try:
                if wish.take is not None:
                    _take(domain, side, wish.take, flag)
                if wish.put is not None:
                    _put(domain, definition, live, wish.put, flag, files)
            except HypervisorError as error:
                why = str(error).removeprefix(f"{definition.name}: ")
                later = flag == _LIVE and wish.put is not None and definition.region is not None
                when = "its channel comes with the next start: " if later else ""
                problems.append(f"{definition.name}: {when}{why}")
            if flag == _CONFIG:
                definition = persistent_document(domain)  # the live device takes the same place
        return problems


def _take(domain: libvirt.virDomain, side: DomainDocument, region: ShmemDevice, flag: int) -> None:
    xml = region_device(region.name, region.size_bytes >> 20, region.address)
    call(lambda: domain.detachDeviceFlags(xml, flag))
    if side.vsock is not None and side.vsock.ours and side.request is None:
        vsock_xml = vsock_device(side.vsock.address)
        call(lambda: domain.detachDeviceFlags(vsock_xml, flag))


def _put(
    domain: libvirt.virDomain,
    definition: DomainDocument,
    live: DomainDocument | None,
    request: VgpuRequest,
    flag: int,
    files: RegionFiles,
) -> None:
    if live is None and domain.hasManagedSaveImage():
        raise HypervisorError(
            "its managed save image would start without the channel: start it, or drop the image "
            f"(virsh managedsave-remove {definition.name})"
        )
    if flag == _LIVE and live is not None:
        check_hot_plug(live)
    uuid, size = definition.uuid, request.region_bytes
    plugged = live.region if live is not None else None
    if plugged is not None and plugged.size_bytes != size:
        raise HypervisorError(
            f"it runs with a channel of {plugged.size_bytes >> 20} MiB: region-mib="
            f"{request.region_mib} comes with the first start after it was powered off"
        )
    other = plugged if flag == _CONFIG else definition.region
    address = other.address if other is not None else None
    if address is not None and (flag == _CONFIG or _is_free(live, address)):
        place: PciAddress | None = address
    else:
        place = _place(definition, live, frozenset(), flag)
    created = files.renew(uuid, size, qemu_account(domain), in_use=live is not None)
    xml = region_device(definition.region_name, request.region_mib, place)
    try:
        call(lambda: domain.attachDeviceFlags(xml, flag))
    except HypervisorError:
        if created:
            files.remove(uuid)
        raise
    side = live if flag == _LIVE else definition
    if request.vsock and side is not None and side.vsock is None:
        if not VHOST_VSOCK.exists():
            raise HypervisorError(f"no vsock device: this host has no {VHOST_VSOCK}")
        free = _place(definition, live, frozenset([place] if place else []), flag)
        call(lambda: domain.attachDeviceFlags(vsock_device(free), flag))


def _is_free(live: DomainDocument | None, address: PciAddress) -> bool:
    """Whether what runs has that bus, and nothing there."""
    return live is not None and address.bus in live.controllers and address not in live.used


def _place(
    definition: DomainDocument, live: DomainDocument | None, taken: frozenset[PciAddress], flag: int
) -> PciAddress | None:
    """A place that is free now and at the next start; at the next start libvirt can add one."""
    try:
        return choose_place(definition, live, taken)
    except HypervisorError:
        if flag == _LIVE:
            raise
        return choose_place(definition, None, taken)
