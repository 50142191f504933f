# SPDX-License-Identifier: Apache-2.0
"""What of a domain's XML matters to Sluice, read once into plain values.

Used by channel_devices.py, service.py and cli.py on the persistent and on the live XML. Pure: it
knows no libvirt connection. It promises never to believe a region that carries another domain's
name.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

from sluice.hypervisor.errors import HypervisorError, InvalidRequest
from sluice.hypervisor.pci_devices import HostAddress
from sluice.hypervisor.request import NAMESPACE, DomainRequest, parse_request

REGION_PREFIX = "sluice-"
REGION_ALIAS = "ua-sluice-region"
NATIVE_ALIAS = "ua-sluice-gpu-"
VSOCK_ALIAS = "ua-sluice-vsock"
#: A vhost-user vsock device of ours, and where libvirt keeps QEMU's own arguments.
USER_VSOCK = "vhost-user-vsock-pci,id=sluice-vsock,"
QEMU_NAMESPACE = "http://libvirt.org/schemas/domain/qemu/1.0"
QEMU_COMMANDLINE = f"{{{QEMU_NAMESPACE}}}commandline"
QEMU_ARG = f"{{{QEMU_NAMESPACE}}}arg"

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True, order=True)
class PciAddress:
    """Where a device sits, as libvirt counts it: `bus` is the index of a PCI controller."""

    bus: int
    slot: int
    domain: int = 0
    function: int = 0

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function:x}"


@dataclass(frozen=True)
class ShmemDevice:
    """A `<shmem>` device; one with a doorbell has the socket of its server."""

    name: str
    model: str
    size_bytes: int
    address: PciAddress | None
    server: str | None = None


@dataclass(frozen=True)
class VsockDevice:
    """A vsock device; `ours` if Sluice put it.

    `cid` is None until libvirt has chosen one, and of a vhost-user device (`user`), which another
    process serves and libvirt does not know.
    """

    cid: int | None
    address: PciAddress | None
    ours: bool = False
    user: bool = False


@dataclass(frozen=True)
class HostDevice:
    """A PCI device of the host that the domain has; `ours` if Sluice put it there."""

    source: HostAddress
    address: PciAddress | None
    ours: bool


@dataclass(frozen=True)
class DomainDocument:
    """One domain's XML, persistent or live."""

    uuid: str
    name: str
    machine: str
    shmems: tuple[ShmemDevice, ...]
    vsock: VsockDevice | None
    #: PCI controllers by index with their model.
    controllers: dict[int, str] = field(default_factory=dict)
    used: frozenset[PciAddress] = frozenset()
    #: The request, or None where there is none or it is not valid: then `problem` says so.
    request: DomainRequest | None = None
    problem: str | None = None
    host_devices: tuple[HostDevice, ...] = ()
    #: libvirt's number of this run; -1 of what does not run.
    number: int = -1

    @property
    def region_name(self) -> str:
        """The only shared memory object that this domain may use as its channel."""
        return REGION_PREFIX + self.uuid

    @property
    def region(self) -> ShmemDevice | None:
        """The domain's own channel device."""
        return next((shmem for shmem in self.shmems if self._is_own(shmem)), None)

    @property
    def foreign_regions(self) -> tuple[str, ...]:
        """Names of our kind that belong to other domains; a copied definition carries them."""
        return tuple(
            shmem.name
            for shmem in self.shmems
            if shmem.name.startswith(REGION_PREFIX) and not self._is_own(shmem)
        )

    def _is_own(self, shmem: ShmemDevice) -> bool:
        """A server gives the memory away: the name of the device says nothing then."""
        served = shmem.server is None or Path(shmem.server).parent.name == self.uuid
        return shmem.name == self.region_name and served

    @property
    def is_q35(self) -> bool:
        """Whether devices are plugged into PCI Express root ports."""
        return self.controllers.get(0) == "pcie-root"


def parse_domain(xml: str) -> DomainDocument:
    """Reads domain XML as libvirt formats it; HypervisorError where it is no such document."""
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise HypervisorError(f"libvirt's domain XML cannot be read: {error}") from error
    uuid = root.findtext("uuid", "").lower()
    if root.tag != "domain" or not _UUID.fullmatch(uuid):
        raise HypervisorError("libvirt's domain XML has no valid <uuid>")
    request, problem = _request_of(root)
    devices = root.find("devices")
    if devices is None:
        devices = ElementTree.Element("devices")
    machine_type = root.find("os/type")
    return DomainDocument(
        uuid=uuid,
        name=root.findtext("name", ""),
        machine=machine_type.get("machine", "") if machine_type is not None else "",
        shmems=tuple(_shmem(element) for element in devices.findall("shmem")),
        vsock=_vsock(devices.find("vsock")) or _user_vsock(root),
        controllers={
            int(element.get("index", "0")): element.get("model", "")
            for element in devices.findall("controller")
            if element.get("type") == "pci"
        },
        used=frozenset(address for device in devices if (address := _address(device)) is not None),
        request=request,
        problem=problem,
        host_devices=tuple(
            found
            for element in devices.findall("hostdev")
            if (found := _host_device(element)) is not None
        ),
        number=int(root.get("id", "-1")),
    )


def _request_of(root: ElementTree.Element) -> tuple[DomainRequest | None, str | None]:
    metadata = root.find("metadata")
    ours = [
        element
        for element in (metadata if metadata is not None else ())
        if element.tag.startswith(f"{{{NAMESPACE}}}")
    ]
    if not ours:
        return None, None
    if len(ours) > 1:
        return None, f"the metadata has {len(ours)} elements of {NAMESPACE}: keep one"
    try:
        return parse_request(ours[0]), None
    except InvalidRequest as error:
        return None, str(error)


def _shmem(element: ElementTree.Element) -> ShmemDevice:
    model = element.find("model")
    server = element.find("server")
    alias = element.find("alias")
    size = _size(element.find("size"))
    if server is not None:
        noted = alias.get("name", "") if alias is not None else ""
        mib = noted.removeprefix(f"{REGION_ALIAS}-")
        size = int(mib) << 20 if re.fullmatch("[0-9]{1,7}", mib) else 0
    return ShmemDevice(
        name=element.get("name", ""),
        model=model.get("type", "") if model is not None else "",
        size_bytes=size,
        address=_address(element),
        server=server.get("path", "") if server is not None else None,
    )


def _vsock(element: ElementTree.Element | None) -> VsockDevice | None:
    if element is None:
        return None
    cid = element.find("cid")
    text = cid.get("address", "") if cid is not None else ""
    alias = element.find("alias")
    return VsockDevice(
        cid=int(text) if text.isdecimal() else None,
        address=_address(element),
        ours=alias is not None and alias.get("name") == VSOCK_ALIAS,
    )


def _user_vsock(root: ElementTree.Element) -> VsockDevice | None:
    """A device of ours among QEMU's own arguments (vsock_devices.py)."""
    arguments = root.iterfind(f"{QEMU_COMMANDLINE}/{QEMU_ARG}")
    if any(argument.get("value", "").startswith(USER_VSOCK) for argument in arguments):
        return VsockDevice(cid=None, address=None, ours=True, user=True)
    return None


def _host_device(element: ElementTree.Element) -> HostDevice | None:
    source = element.find("source/address")
    if element.get("type") != "pci" or source is None:
        return None
    try:
        address = HostAddress(
            *(int(source.get(part, "0"), 0) for part in ("domain", "bus", "slot", "function"))
        )
    except ValueError:
        return None
    alias = element.find("alias")
    name = alias.get("name", "") if alias is not None else ""
    return HostDevice(address, _address(element), name.startswith(NATIVE_ALIAS))


def _size(element: ElementTree.Element | None) -> int:
    """libvirt formats sizes in M here; other units only stand in XML that it has not seen."""
    if element is None or not (element.text or "").strip().isdecimal():
        return 0
    shifts = {"b": 0, "bytes": 0, "KiB": 10, "K": 10, "MiB": 20, "M": 20, "GiB": 30, "G": 30}
    shift = shifts.get(element.get("unit", "M"))
    return 0 if shift is None else int((element.text or "").strip()) << shift


def _address(device: ElementTree.Element) -> PciAddress | None:
    address = device.find("address")
    if address is None or address.get("type") != "pci":
        return None
    try:
        return PciAddress(
            bus=int(address.get("bus", "0"), 0),
            slot=int(address.get("slot", "0"), 0),
            domain=int(address.get("domain", "0"), 0),
            function=int(address.get("function", "0"), 0),
        )
    except ValueError:
        return None
