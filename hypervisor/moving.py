# SPDX-License-Identifier: Apache-2.0
"""Saves, snapshots and migrates a running domain that has a channel.

Called by moving_commands.py; blocking. libvirt moves no guest with an ivshmem device: its memory is
this host's. So the device leaves what runs, libvirt does its work, and the device comes back: here,
or at the destination by the server there, since the metadata travels with the guest and is what
asks for it. The definition is not touched. Promises that a program with a session is not thrown out
unless that was asked for, and that a domain that stays here has its channel again.
"""

from __future__ import annotations

import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import libvirt

from sluice.hypervisor import following
from sluice.hypervisor.domain_document import DomainDocument
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.following import RELEASE_SECONDS
from sluice.hypervisor.guest_sessions import sessions_of
from sluice.hypervisor.libvirt_host import call, live_document
from sluice.hypervisor.region_file import RegionFiles

_POLL_SECONDS = 0.05
#: After so long without headway such a job is ended, and the guest goes on.
STUCK_SECONDS = 30.0


@dataclass(frozen=True)
class Migration:
    """How a domain is migrated, in virsh's terms."""

    uri: str | None = None
    peer_to_peer: bool = False
    copy_storage: bool = False
    unsafe: bool = False


def save(domain: libvirt.virDomain, files: RegionFiles, *, end_sessions: bool = False) -> None:
    """`virsh managedsave`: the guest goes on where it was at its next start."""
    with _channel_out(domain, files, end_sessions=end_sessions), _watched(domain):
        call(lambda: domain.managedSave(0))


def restore(domain: libvirt.virDomain, files: RegionFiles) -> list[str]:
    """Starts a domain from its managed save image; returns what keeps its channel away."""
    if domain.isActive():
        raise HypervisorError(f"{domain.name()} runs: there is nothing to restore")
    if not domain.hasManagedSaveImage():
        raise HypervisorError(
            f"{domain.name()} has no managed save image: `virsh start` boots it anew"
        )
    call(domain.create)
    return following.follow(domain, files)


def snapshot(
    domain: libvirt.virDomain, files: RegionFiles, name: str, *, end_sessions: bool = False
) -> None:
    """`virsh snapshot-create-as`: disks and memory; the channel is no part of it."""
    root = ElementTree.Element("domainsnapshot")
    ElementTree.SubElement(root, "name").text = name
    xml = ElementTree.tostring(root, encoding="unicode")
    with _channel_out(domain, files, end_sessions=end_sessions), _watched(domain):
        call(lambda: domain.snapshotCreateXML(xml, 0))


def migrate(
    domain: libvirt.virDomain,
    destination: libvirt.virConnect,
    destination_uri: str,
    files: RegionFiles,
    how: Migration,
    *,
    end_sessions: bool = False,
    channel_seconds: float = 30.0,
) -> str | None:
    """`virsh migrate --live`; returns what is wrong with the channel there, None if it is there.

    A persistent domain is defined there and undefined here.
    """
    name = domain.name()
    flags = int(libvirt.VIR_MIGRATE_LIVE)
    if domain.isPersistent():
        flags |= libvirt.VIR_MIGRATE_PERSIST_DEST | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
    if how.copy_storage:
        flags |= libvirt.VIR_MIGRATE_NON_SHARED_DISK
    if how.unsafe:
        flags |= libvirt.VIR_MIGRATE_UNSAFE
    parameters = {libvirt.VIR_MIGRATE_PARAM_URI: how.uri} if how.uri else {}
    uuid = domain.UUIDString()
    out = _channel_out(domain, files, end_sessions=end_sessions)
    with out as had_channel, _watched(domain):
        if how.peer_to_peer:
            flags |= libvirt.VIR_MIGRATE_PEER2PEER
            call(lambda: domain.migrateToURI3(destination_uri, parameters, flags))
        else:
            call(lambda: domain.migrate3(destination, parameters, flags))
    arrived = call(lambda: destination.lookupByUUIDString(uuid))
    if not had_channel or _await_channel(arrived, channel_seconds):
        return None
    return (
        f"{name} has migrated, and its channel is not there after {channel_seconds:.0f} s: does "
        f"sluice-server run at the destination? It plugs it in as soon as it does; "
        f"`sluice vm show {name} -c {destination_uri}` there says what is wrong"
    )


@contextmanager
def _channel_out(
    domain: libvirt.virDomain, files: RegionFiles, *, end_sessions: bool
) -> Iterator[bool]:
    """Takes the channel out of what runs; a domain that still runs here at the end has it again."""
    live = live_document(domain)
    if live is None:
        raise HypervisorError(f"{domain.name()} is off: `virsh` alone does that")
    if live.vsock is not None and live.vsock.user:
        raise HypervisorError(
            f"{live.name}: its vsock device is served by a process of this host, and QEMU neither "
            "saves nor moves such a device while it runs: shut it down first, or let it have a "
            "region (`sluice vm attach --channel ivshmem`)"
        )
    if not end_sessions and (live.region is not None or live.vsock is not None):
        _refuse_sessions(live, files)
    if live.region is None:
        yield False
        return
    try:
        _unplug(domain, live, files)
        yield True
    except HypervisorError as error:
        if problems := _back(domain, files):
            raise HypervisorError(f"{error}; and its channel is not back: {problems[0]}") from error
        raise
    if problems := _back(domain, files):
        raise HypervisorError(problems[0])


def _refuse_sessions(live: DomainDocument, files: RegionFiles) -> None:
    slots = live.request.slots if live.request is not None else 1
    using = sessions_of(files, live.uuid, slots)
    if using:
        shown = ", ".join(using[:3]) + (f" and {len(using) - 3} more" if len(using) > 3 else "")
        raise HypervisorError(
            f"{live.name}: {shown}: a session does not move with its guest; let it end, or end it "
            "with --end-sessions"
        )


def _unplug(domain: libvirt.virDomain, live: DomainDocument, files: RegionFiles) -> None:
    """Until the guest has let the device go."""
    region = live.region
    assert region is not None
    following.take_out(domain, region, files)
    if not following.await_release(domain, RELEASE_SECONDS):
        raise HypervisorError(
            f"{live.name}: the guest has not released the channel within {RELEASE_SECONDS:.0f} s "
            "(is it paused, or still booting?), and with it libvirt moves nothing; it goes when "
            "the guest releases it, and is back at the next start"
        )


@contextmanager
def _watched(domain: libvirt.virDomain) -> Iterator[None]:
    """Ends a job of libvirt that makes no headway; its caller then gets libvirt's error."""
    over = threading.Event()
    watching = threading.Thread(target=_end_if_stuck, args=(domain, over), daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _end_if_stuck(domain: libvirt.virDomain, over: threading.Event) -> None:
    remaining, since = -1, time.monotonic()
    while not over.wait(1.0):
        try:
            _, _, _, total, processed, now, *_ = domain.jobInfo()
        except libvirt.libvirtError:
            return  # it has moved, or is off
        if now != remaining or processed <= total:
            remaining, since = now, time.monotonic()
        elif time.monotonic() - since > STUCK_SECONDS:
            with suppress(libvirt.libvirtError):
                domain.abortJob()
            return


def _back(domain: libvirt.virDomain, files: RegionFiles) -> Sequence[str]:
    """A domain that moved away or was saved needs nothing here."""
    try:
        live = live_document(domain)
    except HypervisorError:
        return ()
    if live is None or live.region is not None:
        return ()
    return following.follow(domain, files)


def _await_channel(domain: libvirt.virDomain, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        live = live_document(domain)
        if live is None or live.request is None or live.region is not None:
            return live is None or live.region is not None
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
