# SPDX-License-Identifier: Apache-2.0
"""Brings a domain's devices in line with its metadata, whoever wrote that: `virsh` is enough.

The one place that puts a channel's devices in and takes them out. Called by service.py for every
look at a domain, by channel_devices.py once it has written metadata (`sluice vm attach|detach` need
no server), and by moving.py; blocking. What runs follows the metadata of what runs, the definition
its own, as libvirt keeps them apart: `virsh metadata` on a running domain hot-plugs, `virsh edit`
counts from the next start. The decision is `plan_of`, pure. Doing it again changes nothing, and
what cannot be done is said and tried again at the next look.
"""

from __future__ import annotations

import enum
import errno
import time
from dataclasses import dataclass, replace

import libvirt

from sluice.hypervisor.device_xml import device_again, region_device, root_port, vsock_device
from sluice.hypervisor.domain_document import (
    DomainDocument,
    PciAddress,
    ShmemDevice,
    VsockDevice,
)
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.libvirt_host import (
    call,
    live_document,
    persistent_document,
    qemu_account,
    system_errno,
)
from sluice.hypervisor.pci_slots import check_hot_plug, choose_place, wants_port
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import DomainRequest
from sluice.hypervisor.vsock_devices import (
    VHOST_VSOCK,
    UserSockets,
    VsockHost,
    cids_for,
    with_user_device,
    without_user_device,
)

_LIVE = int(libvirt.VIR_DOMAIN_AFFECT_LIVE)
_CONFIG = int(libvirt.VIR_DOMAIN_AFFECT_CONFIG)

#: A guest releases a device within a second; one that is booting or paused may never.
RELEASE_SECONDS = 15.0
#: QEMU frees a region's memory a moment after it has said that the device is gone. Before that a
#: save or a migration counts on the memory and never ends, and the same device plugged in again
#: aborts QEMU ("RAMBlock already registered").
SETTLE_SECONDS = 1.0
_POLL_SECONDS = 0.05


class Device(enum.Enum):
    """What a channel is made of."""

    REGION = "region"
    VSOCK = "vsock"


@dataclass(frozen=True)
class Refusal:
    """A change that could not be made: of which device, and why, with the domain's name."""

    device: Device
    why: str
    line: str  # `why`, and when the device comes all the same


@dataclass(frozen=True)
class DeviceChange:
    """What one side of a domain, what runs or the definition, lacks or has too much of."""

    put: DomainRequest | None = None  # the channel that is missing
    take: ShmemDevice | None = None  # the channel that has to go, before another is put
    take_vsock: VsockDevice | None = None  # likewise
    put_vsock: bool = False  # the vsock device that is to be beside a region


@dataclass(frozen=True)
class Plan:
    """Both sides."""

    live: DeviceChange = DeviceChange()
    config: DeviceChange = DeviceChange()

    @property
    def any(self) -> bool:
        """Whether anything is to be done."""
        return self != Plan()


def plan_of(
    persistent: DomainDocument | None, live: DomainDocument | None, *, may_plug: bool = True
) -> Plan:
    """What to do; `persistent` is None for a transient domain.

    `may_plug` is False where the device was unplugged from this run of the domain, by the guest or
    with `virsh detach-device`: it comes back with the next start. A request that cannot be read
    moves nothing, and beside a region of another domain none is put in: service.py reports both.
    """
    running, defined = _change(live, keep_size=True), _change(persistent, keep_size=False)
    if running.take_vsock is not None and running.take_vsock.user:
        # it stays until the VM is off, and nobody serves it
        running = replace(running, take_vsock=None)
    if not may_plug and running.put is not None:
        running = replace(running, put=None)
    return Plan(running, defined)


def lacking(definition: DomainDocument) -> str | None:
    """Why a start would be without the channel; None where the definition has what it asks for."""
    if definition.request is None:
        return definition.problem or "its metadata asks for no vGPU"
    if definition.foreign_regions:
        return f"it uses {definition.foreign_regions[0]}, the channel of another domain"
    if plan_of(definition, None).any:
        return "its channel is not in its definition"
    return None


def _change(side: DomainDocument | None, *, keep_size: bool) -> DeviceChange:
    if side is None or side.problem is not None:
        return DeviceChange()
    request, region = side.request, side.region
    ours = side.vsock if side.vsock is not None and side.vsock.ours else None
    if request is None:
        return DeviceChange(take=region, take_vsock=ours)
    if side.foreign_regions:
        return DeviceChange()
    if not request.has_region:
        return DeviceChange(put=request if side.vsock is None else None, take=region)
    if request.vsock:
        ours = None
    if region is None:
        return DeviceChange(put=request, take_vsock=ours)
    same = region.size_bytes == request.region_bytes and (
        (region.server is not None) == request.has_doorbell
    )
    if keep_size or same:
        return DeviceChange(take_vsock=ours, put_vsock=request.vsock and side.vsock is None)
    return DeviceChange(put=request, take=region, take_vsock=ours)


def follow(
    domain: libvirt.virDomain,
    files: RegionFiles,
    *,
    may_plug: bool = True,
    vsock: VsockHost | None = None,
    taken: frozenset[int] = frozenset(),
) -> list[str]:
    """Does what the metadata asks for; returns what could not be done, a line each.

    A device that a running guest has to release goes when it does: libvirt says so by an event.
    `vsock` is what the host has for it (None: look), `taken` are CIDs of other domains.
    """
    with files.locked():
        done = carry_out(domain, files, may_plug=may_plug, vsock=vsock, taken=taken)
    return [refusal.line for refusal in done]


def carry_out(
    domain: libvirt.virDomain,
    files: RegionFiles,
    *,
    may_plug: bool = True,
    vsock: VsockHost | None = None,
    taken: frozenset[int] = frozenset(),
) -> list[Refusal]:
    """As `follow`, for who holds the lock: whoever has just written the metadata."""
    host = vsock or VsockHost.found()
    live = live_document(domain)
    definition = persistent_document(domain)
    defined = bool(domain.isPersistent())
    plan = plan_of(definition if defined else None, live, may_plug=may_plug)
    refused: list[Refusal] = []
    for change, flag in ((plan.config, _CONFIG), (plan.live, _LIVE)):
        if change == DeviceChange():
            continue
        plug = _Plug(domain, definition, live, flag)
        refused += _carry_out(plug, change, files, host, taken)
        if flag == _CONFIG:
            definition = persistent_document(domain)  # the live device takes the same place
    return refused


def _carry_out(
    plug: _Plug, change: DeviceChange, files: RegionFiles, host: VsockHost, taken: frozenset[int]
) -> list[Refusal]:
    """One side's change; what cannot be done ends it."""
    name, put, flag = plug.definition.name, change.put, plug.flag
    device = Device.REGION
    try:
        if change.take is not None:
            xml = device_again(change.take)
            call(lambda: plug.domain.detachDeviceFlags(xml, flag))
        device = Device.VSOCK
        if change.take_vsock is not None:
            _take_vsock(plug.domain, change.take_vsock, flag)
        if flag == _CONFIG and (change.take is not None or change.take_vsock is not None):
            # the place taken away is free
            plug = replace(plug, definition=persistent_document(plug.domain))
        if put is not None and not (flag == _LIVE and _waits(put, plug.definition.uuid, files)):
            place = None
            if put.has_region:
                device = Device.REGION
                former = change.take.address if change.take is not None else None
                place = _put(plug, put, files, former)
                device = Device.VSOCK
            if not put.has_region or (put.vsock and plug.side.vsock is None):
                _put_vsock(plug, files, host, taken, place)
        elif change.put_vsock:
            _put_vsock(plug, files, host, taken, None)
    except HypervisorError as error:
        why = str(error).removeprefix(f"{name}: ")
        defined_too = plug.definition.region is not None or plug.definition.vsock is not None
        later = flag == _LIVE and put is not None and defined_too
        when = "its channel comes with the next start: " if later else ""
        return [Refusal(device, f"{name}: {why}", f"{name}: {when}{why}")]
    return []


def take_out(domain: libvirt.virDomain, region: ShmemDevice, files: RegionFiles) -> None:
    """Takes the channel out of what runs, though the metadata asks for it: it is to be saved.

    It stays out until `follow` is called for this run of the domain with `may_plug`, or the domain
    starts anew: a server takes what has gone for unplugged.
    """
    xml = device_again(region)
    with files.locked():
        call(lambda: domain.detachDeviceFlags(xml, _LIVE))


def await_release(domain: libvirt.virDomain, seconds: float) -> bool:
    """Whether the guest has let the channel go that was taken out, or is off, by then."""
    deadline = time.monotonic() + seconds
    while (live := live_document(domain)) is not None and live.region is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    if live is not None:
        time.sleep(SETTLE_SECONDS)
    return True


@dataclass(frozen=True)
class _Plug:
    """Where something is put in: what runs or the definition (`flag`), and both as they are."""

    domain: libvirt.virDomain
    definition: DomainDocument
    live: DomainDocument | None
    flag: int

    @property
    def side(self) -> DomainDocument:
        """The one of the two that is changed."""
        return self.live if self.flag == _LIVE and self.live is not None else self.definition

    def attach(self, xml: str) -> None:
        call(lambda: self.domain.attachDeviceFlags(xml, self.flag))


def _take_vsock(domain: libvirt.virDomain, device: VsockDevice, flag: int) -> None:
    if device.user:
        inactive = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
        xml = without_user_device(call(lambda: domain.XMLDesc(inactive)))
        call(lambda: domain.connect().defineXML(xml))
    elif device.cid is not None:
        xml = vsock_device(device.cid, device.address)
        call(lambda: domain.detachDeviceFlags(xml, flag))


def _put(
    plug: _Plug, request: DomainRequest, files: RegionFiles, former: PciAddress | None
) -> PciAddress | None:
    """Puts a region in; where one was taken out for it, `former` is that one's place."""
    domain, definition, live, flag = plug.domain, plug.definition, plug.live, plug.flag
    _refuse_saved(plug)
    uuid, size = definition.uuid, request.region_bytes
    plugged = live.region if live is not None else None
    if plugged is not None and plugged.size_bytes != size:
        raise HypervisorError(
            f"it runs with a channel of {plugged.size_bytes >> 20} MiB: region-mib="
            f"{request.region_mib} comes with the first start after it was powered off"
        )
    other = plugged if flag == _CONFIG else definition.region
    there = other.address if other is not None else former
    place = _same_place(plug, there, frozenset())
    created = files.renew(uuid, size, qemu_account(domain), in_use=live is not None)
    server = str(files.server_socket(uuid)) if request.has_doorbell else None
    try:
        plug.attach(region_device(definition.region_name, request.region_mib, place, server))
    except HypervisorError:
        if created:
            files.remove(uuid)
        raise
    return place


def _waits(request: DomainRequest, uuid: str, files: RegionFiles) -> bool:
    """Whether it is too early: a running QEMU asks for its region at once.

    The server listens once it has seen the device in the definition, and looks again then.
    """
    return request.has_doorbell and not files.server_socket(uuid).exists()


def _put_vsock(
    plug: _Plug,
    files: RegionFiles,
    host: VsockHost,
    taken: frozenset[int],
    beside: PciAddress | None,
) -> None:
    """Puts a vsock device in, of the kernel's or of a process; `beside` is just given away."""
    _refuse_saved(plug)
    definition = plug.definition
    if not host.vhost and host.program is None:
        raise HypervisorError(
            f"no vsock device: this host has no {VHOST_VSOCK} (modprobe vhost_vsock) and no "
            "vhost-device-vsock ([server] vsock_backend)"
        )
    if not host.vhost:
        if plug.flag == _LIVE:
            raise HypervisorError("a vhost-user vsock device cannot be plugged into what runs")
        inactive = libvirt.VIR_DOMAIN_XML_INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE
        sockets = UserSockets.of(files.run_folder, definition.uuid)
        xml = call(lambda: plug.domain.XMLDesc(inactive))
        with_device = with_user_device(xml, definition, sockets.device)
        call(lambda: plug.domain.connect().defineXML(with_device))
        return
    other = (plug.live if plug.flag == _CONFIG else definition) or definition
    there = other.vsock if other.vsock is not None and other.vsock.cid is not None else None
    given = frozenset([beside] if beside else [])
    place = _same_place(plug, there.address if there is not None else None, given)
    if there is not None and there.cid is not None:
        plug.attach(vsock_device(there.cid, place))
        return
    # the kernel knows CIDs of which libvirt does not
    candidates = list(cids_for(definition.uuid, taken))[:3]
    for cid in candidates:
        try:
            plug.attach(vsock_device(cid, place))
            return
        except HypervisorError as error:
            if cid == candidates[-1] or system_errno(error) != errno.EADDRINUSE:
                raise


def _refuse_saved(plug: _Plug) -> None:
    if plug.live is None and plug.domain.hasManagedSaveImage():
        raise HypervisorError(
            "its managed save image would start without the channel: start it, or drop the image "
            f"(virsh managedsave-remove {plug.definition.name})"
        )
    if plug.flag == _LIVE and plug.live is not None:
        check_hot_plug(plug.live)


def _same_place(
    plug: _Plug, address: PciAddress | None, taken: frozenset[PciAddress]
) -> PciAddress | None:
    """The device's place on the other side if it is free here, else another."""
    if address is not None and (plug.flag == _CONFIG or _is_free(plug.live, address)):
        return address
    definition = plug.definition
    if plug.live is None and wants_port(definition, taken):
        plug.attach(root_port(max(definition.controllers) + 1))
        definition = persistent_document(plug.domain)
    return _place(definition, plug.live, taken, plug.flag)


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
