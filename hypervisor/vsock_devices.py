# SPDX-License-Identifier: Apache-2.0
"""Vsock devices of domains: their CIDs, and those that libvirt cannot describe.

Used by following.py and channel_devices.py; the client library knows the CIDs and the port too
(native/client/core/open_vsock.cc). Where the host's kernel has vhost-vsock, libvirt's `<vsock>` is
all that is needed. Where it has not, QEMU's vhost-user device does the same through a process
beside it (server/guests/vsock_backends.py): libvirt 9 has no XML for that, so it stands among
QEMU's own arguments, and the guest's memory has to be shared with that process.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sluice.hypervisor.domain_document import (
    QEMU_ARG,
    QEMU_COMMANDLINE,
    QEMU_NAMESPACE,
    USER_VSOCK,
    DomainDocument,
)
from sluice.hypervisor.errors import HypervisorError

#: A guest that has one of these knows that its host is ours, and speaks to no other.
FIRST_CID = 0x53400000
CIDS = 1 << 20
#: Where the host listens. No guest knows another one.
PORT = 9960
#: Where a guest that has a region, too, wakes its host.
BELL_PORT = 9961
VHOST_VSOCK = Path("/dev/vhost-vsock")
BACKEND = "vhost-device-vsock"

_CHARDEV = "socket,id=sluice-vsock,"
_BUSES = {"pcie-root": "pcie.0", "pci-root": "pci.0"}
#: libvirt fills bus 0 from below.
_SLOTS = range(0x1C, 0x10, -1)


@dataclass(frozen=True)
class VsockHost:
    """What this host has for vsock: its kernel's device, or the program that stands in for it."""

    vhost: bool
    program: str | None

    @classmethod
    def found(cls, program: str = BACKEND) -> VsockHost:
        """What there is now; `program` is a path or a name to look for."""
        return cls(VHOST_VSOCK.exists(), shutil.which(program) if program else None)


@dataclass(frozen=True)
class UserSockets:
    """The sockets of one vhost-user device, in a folder of its own."""

    folder: Path

    @classmethod
    def of(cls, run_folder: Path, uuid: str) -> UserSockets:
        """A domain's; `run_folder` is the server's."""
        return cls(run_folder / "vsock" / uuid)

    @property
    def device(self) -> Path:
        """Where QEMU finds the device."""
        return self.folder / "device"

    @property
    def guest(self) -> Path:
        """Where the host would find the guest's ports; nobody asks there."""
        return self.folder / "guest"

    @property
    def session_port(self) -> Path:
        """Where the device connects to when the guest connects to our port."""
        return self.folder / f"guest_{PORT}"

    @property
    def bell(self) -> Path:
        """The same for the port of a guest's bell."""
        return self.folder / f"guest_{BELL_PORT}"


def cids_for(uuid: str, taken: frozenset[int] = frozenset()) -> Iterator[int]:
    """CIDs to try for a domain, the same ones each time; those in `taken` are left out."""
    for number in range(64):
        digest = hashlib.sha256(f"{uuid} {number}".encode()).digest()
        cid = FIRST_CID + int.from_bytes(digest[:4], "big") % CIDS
        if cid not in taken:
            yield cid


def with_user_device(xml: str, document: DomainDocument, device: Path) -> str:
    """The definition with a vhost-user vsock device whose process listens at `device`."""
    model = document.controllers.get(0, "")
    if model not in _BUSES or document.machine.startswith("microvm"):
        raise HypervisorError(
            f"a vhost-user vsock device needs machine type q35 or pc, not "
            f"{document.machine or 'unknown'}"
        )
    busy = {address.slot for address in document.used if address.bus == 0}
    slot = next((slot for slot in _SLOTS if slot not in busy), None)
    if slot is None:
        raise HypervisorError("every slot of PCI bus 0 from 0x11 to 0x1c is used")
    root = _read(xml)
    _share_memory(root)
    arguments = root.find(QEMU_COMMANDLINE)
    if arguments is None:
        arguments = ElementTree.SubElement(root, QEMU_COMMANDLINE)
    place = f"bus={_BUSES[model]},addr={slot:#x}"
    for value in (
        *("-chardev", _CHARDEV + "path=" + str(device).replace(",", ",,")),
        *("-device", f"{USER_VSOCK}chardev=sluice-vsock,{place}"),
    ):
        ElementTree.SubElement(arguments, QEMU_ARG, value=value)
    return ElementTree.tostring(root, encoding="unicode")


def without_user_device(xml: str) -> str:
    """The definition without it. The memory stays shared: others may have come to need that."""
    root = _read(xml)
    arguments = root.find(QEMU_COMMANDLINE)
    if arguments is not None:
        found = arguments.findall(QEMU_ARG)
        for option, value in itertools.pairwise(found):
            if value.get("value", "").startswith((USER_VSOCK, _CHARDEV)):
                arguments.remove(option)
                arguments.remove(value)
        if not len(arguments):
            root.remove(arguments)
    return ElementTree.tostring(root, encoding="unicode")


def _share_memory(root: ElementTree.Element) -> None:
    backing = root.find("memoryBacking")
    if backing is None:
        backing = ElementTree.SubElement(root, "memoryBacking")
    access = backing.find("access")
    if access is None:
        access = ElementTree.SubElement(backing, "access")
    access.set("mode", "shared")
    source = backing.find("source")
    if source is None:
        source = ElementTree.SubElement(backing, "source")
    if source.get("type", "anonymous") == "anonymous":
        source.set("type", "memfd")


def _read(xml: str) -> ElementTree.Element:
    """The tree; the prefixes of others' elements are kept as they are."""
    for _, (prefix, namespace) in ElementTree.iterparse(io.StringIO(xml), events=["start-ns"]):
        ElementTree.register_namespace(str(prefix), str(namespace))
    ElementTree.register_namespace("qemu", QEMU_NAMESPACE)
    return ElementTree.fromstring(xml)
