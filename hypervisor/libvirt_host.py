# SPDX-License-Identifier: Apache-2.0
"""The libvirt connection as this package uses it: domains by name, their documents, QEMU's account.

Blocking calls only; service.py runs them in threads. Errors come out as HypervisorError with
libvirt's own words, and nothing is printed by libvirt itself.
"""

from __future__ import annotations

import fnmatch
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import libvirt

from sluice.hypervisor.domain_document import DomainDocument, parse_domain
from sluice.hypervisor.errors import HypervisorError

DEFAULT_URI = "qemu:///system"

_Result = TypeVar("_Result")


def silence_libvirt() -> None:
    """libvirt prints every error on standard error unless a handler takes it."""
    libvirt.registerErrorHandler(lambda *_: None, None)


def default_uri() -> str:
    """`LIBVIRT_DEFAULT_URI` as virsh reads it, else the system's QEMU."""
    return os.environ.get("LIBVIRT_DEFAULT_URI") or DEFAULT_URI


def libvirt_identity(uri: str) -> str:
    """Names one libvirt on this host: the same for every way of writing a connection to it."""
    socket = re.search(r"[?&]socket=([^&]+)", uri)
    return socket.group(1) if socket else "system"


@contextmanager
def connected(uri: str) -> Iterator[libvirt.virConnect]:
    """A connection for the time of a command."""
    silence_libvirt()
    try:
        connection = libvirt.open(uri)
    except libvirt.libvirtError as error:
        raise HypervisorError(
            f"no connection to libvirt at {uri}: {words(error)}; is libvirtd running, and may you "
            "use it?"
        ) from error
    try:
        yield connection
    finally:
        connection.close()


def find_domain(connection: libvirt.virConnect, name: str) -> libvirt.virDomain:
    """The domain of that name, UUID or number."""
    attempts: list[Callable[[], libvirt.virDomain]] = [lambda: connection.lookupByName(name)]
    if re.fullmatch(r"[0-9a-fA-F-]{36}", name):
        attempts.insert(0, lambda: connection.lookupByUUIDString(name))
    if name.isdecimal():
        attempts.append(lambda: connection.lookupByID(int(name)))
    for attempt in attempts:
        try:
            return attempt()
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise HypervisorError(f"{name}: {words(error)}") from error
    raise HypervisorError(f"no domain {name!r}: `virsh list --all` shows those there are")


def find_domains(
    connection: libvirt.virConnect, names: Sequence[str]
) -> list[tuple[str, libvirt.virDomain]]:
    """Each domain once, under its name, as names, UUIDs, numbers and patterns (`web-*`) say."""
    found: dict[str, tuple[str, libvirt.virDomain]] = {}
    for name in names:
        if not re.search(r"[*?\[]", name):
            matching = [find_domain(connection, name)]
        else:
            every = call(connection.listAllDomains)
            matching = [domain for domain in every if fnmatch.fnmatchcase(domain.name(), name)]
            if not matching:
                raise HypervisorError(f"no domain matches {name!r}: `virsh list --all` shows all")
        for domain in matching:
            found.setdefault(domain.UUIDString(), (domain.name(), domain))
    return sorted(found.values(), key=lambda pair: pair[0])


def persistent_document(domain: libvirt.virDomain) -> DomainDocument:
    """The definition that the next start uses."""
    flags = libvirt.VIR_DOMAIN_XML_INACTIVE if domain.isPersistent() else 0
    return parse_domain(call(lambda: domain.XMLDesc(flags)))


def live_document(domain: libvirt.virDomain) -> DomainDocument | None:
    """What runs now, or None where the domain is off."""
    document = parse_domain(call(lambda: domain.XMLDesc(0)))
    return document if document.number != -1 else None


def qemu_account(domain: libvirt.virDomain) -> tuple[int, int] | None:
    """The uid and gid that QEMU runs this domain as, or None where that is root or unknown."""
    labels = ElementTree.fromstring(domain.XMLDesc(0)).findall("seclabel[@model='dac']")
    found = next((text for label in labels if (text := label.findtext("label"))), None)
    return _account(found) if found is not None else host_account(domain.connect())


def host_account(connection: libvirt.virConnect) -> tuple[int, int] | None:
    """The same for a domain whose definition names no account."""
    found = None
    capabilities = ElementTree.fromstring(call(connection.getCapabilities))
    for model in capabilities.findall("host/secmodel"):
        if model.findtext("model") == "dac":
            found = next(
                (b.text for b in model.findall("baselabel") if b.get("type") == "qemu"), None
            )
    return _account(found)


def is_active(connection: libvirt.virConnect, uuid: str) -> bool:
    """Whether a domain of that UUID runs."""
    try:
        return bool(connection.lookupByUUIDString(uuid).isActive())
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return False
        raise HypervisorError(words(error)) from error


def _account(found: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"\+?([0-9]{1,10}):\+?([0-9]{1,10})", found or "")
    if match is None or match.group(1) == "0":
        return None
    return int(match.group(1)), int(match.group(2))


def call(action: Callable[[], _Result]) -> _Result:
    """Runs a libvirt call; its error becomes a HypervisorError."""
    try:
        return action()
    except libvirt.libvirtError as error:
        raise HypervisorError(words(error)) from error


def system_errno(error: HypervisorError) -> int | None:
    """The errno of a system call that failed under libvirt's hands, None where it was none."""
    cause = error.__cause__
    if not isinstance(cause, libvirt.libvirtError):
        return None
    if cause.get_error_code() != libvirt.VIR_ERR_SYSTEM_ERROR:
        return None
    return int(cause.get_int1())


def words(error: libvirt.libvirtError) -> str:
    """libvirt's message on one line."""
    return " ".join(str(error.get_error_message() or error).split())
