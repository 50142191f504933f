# SPDX-License-Identifier: Apache-2.0
"""Puts a request and its channel devices into a domain, running or not, and takes them out again.

Called by cli.py; blocking. Owns the order of steps: file, device, metadata; backwards for detach,
so that whoever sees the metadata sees a channel that works. Doing a thing twice changes nothing.
What fails is undone or named.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace

import libvirt

from sluice.hypervisor import following
from sluice.hypervisor.device_xml import (
    device_again,
    region_device,
    request_metadata,
    vsock_device,
)
from sluice.hypervisor.domain_document import DomainDocument, PciAddress
from sluice.hypervisor.errors import HypervisorError
from sluice.hypervisor.libvirt_host import (
    call,
    live_document,
    persistent_document,
    qemu_account,
    words,
)
from sluice.hypervisor.pci_slots import check_hot_plug, choose_place
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import NAMESPACE, NAMESPACE_KEY, DomainRequest
from sluice.hypervisor.vsock_devices import VHOST_VSOCK, cids_for

#: A guest releases a device within a second; one that is booting or paused may never.
RELEASE_SECONDS = 15.0
#: QEMU frees a region's memory a moment after it has said that the device is gone. Before that a
#: save or a migration counts on the memory and never ends, and the same device plugged in again
#: aborts QEMU ("RAMBlock already registered").
SETTLE_SECONDS = 1.0


@dataclass
class Outcome:
    """What an operation did, would do or could not do."""

    #: XML that was or would be added or removed, in order.
    documents: list[str] = field(default_factory=list)
    #: Lines for the person at the terminal.
    notes: list[str] = field(default_factory=list)
    changed: bool = False


@dataclass(frozen=True)
class _State:
    domain: libvirt.virDomain
    persistent: DomainDocument
    live: DomainDocument | None

    @property
    def both(self) -> int:
        """The flags of an operation on the definition and on what runs."""
        live = libvirt.VIR_DOMAIN_AFFECT_LIVE if self.live is not None else 0
        return int(libvirt.VIR_DOMAIN_AFFECT_CONFIG | live)


@dataclass(frozen=True)
class _Change:
    """What attach is about to do; None where nothing is missing."""

    request: DomainRequest
    metadata_differs: bool
    #: A device of another size that has to leave an inactive definition first.
    stale_xml: str | None
    region_xml: str | None
    region_flags: int
    vsock_xml: str | None


def _read(domain: libvirt.virDomain) -> _State:
    persistent = persistent_document(domain)
    if not domain.isPersistent():
        raise HypervisorError(
            f"{persistent.name} is transient: nothing put into it would outlive it; define it "
            "first "
            f"(virsh dumpxml {persistent.name} >file; virsh define file)"
        )
    return _State(domain, persistent, live_document(domain))


def attach(
    domain: libvirt.virDomain,
    request: DomainRequest,
    files: RegionFiles,
    *,
    vsock: bool = True,
    dry_run: bool = False,
) -> Outcome:
    """Gives the domain its channel and records the request; `dry_run` only says how."""
    state = _read(domain)
    outcome = Outcome()
    _refuse_foreign(state)
    if state.live is None and domain.hasManagedSaveImage():
        raise HypervisorError(
            f"{state.persistent.name} has a managed save image, which would start without the new "
            "device: "
            f"start it, or drop the image (virsh managedsave-remove {state.persistent.name})"
        )
    served = any(
        side is not None and side.region is not None and side.region.server is not None
        for side in (state.persistent, state.live)
    )
    if not request.has_region or request.has_doorbell or served:
        _attach_followed(state, request, files, outcome, dry_run=dry_run)
        return outcome
    change = _plan(state, request, outcome, vsock=vsock)
    outcome.documents = [xml for xml in (change.region_xml, change.vsock_xml) if xml is not None]
    if change.metadata_differs:
        outcome.documents.append(request_metadata(change.request, with_namespace=True))
    outcome.changed = bool(outcome.documents)
    files.check_room(state.persistent.uuid, request.region_bytes)
    if not dry_run:
        with files.locked():
            _apply(state, change, files, outcome)
    return outcome


def detach(
    domain: libvirt.virDomain,
    files: RegionFiles,
    *,
    dry_run: bool = False,
    release_seconds: float = RELEASE_SECONDS,
) -> Outcome:
    """Takes request, devices and file away; the grant ends with the metadata."""
    state = _read(domain)
    outcome = Outcome()
    name = state.persistent.name
    removals = _removals(state)
    has_metadata = any(
        document is not None and (document.request is not None or document.problem is not None)
        for document in (state.persistent, state.live)
    )
    outcome.documents = [xml for xml, _ in removals]
    outcome.changed = bool(removals) or has_metadata
    if dry_run:
        return outcome
    with files.locked():  # a server that follows the metadata would take them away, too
        if has_metadata:
            _set_metadata(state, None)
        for xml, flags in removals:
            try:
                call(lambda xml=xml, flags=flags: domain.detachDeviceFlags(xml, flags))  # type: ignore[misc]
            except HypervisorError as error:
                raise HypervisorError(
                    f"{name}: the grant is ended, but a device stays: {error}"
                ) from error
    # what libvirt cannot detach: a vhost-user device
    outcome.notes += following.follow(domain, files)
    if any(flags & libvirt.VIR_DOMAIN_AFFECT_LIVE for _, flags in removals):
        _await_release(domain, state.persistent, release_seconds)
    outcome.changed = files.remove(state.persistent.uuid) or outcome.changed
    return outcome


def _attach_followed(
    state: _State, request: DomainRequest, files: RegionFiles, outcome: Outcome, *, dry_run: bool
) -> None:
    """The metadata says it all, and is then followed as if virsh had written it."""
    sides = [side for side in (state.persistent, state.live) if side is not None]
    wanted = replace(request, vsock=False)
    if request.has_doorbell and state.persistent.region is None:
        server = str(files.server_socket(state.persistent.uuid))
        name = state.persistent.region_name
        outcome.documents.append(region_device(name, request.region_mib, None, server))
    if any(side.request != wanted for side in sides):
        outcome.documents.append(request_metadata(wanted, with_namespace=True))
    lacking = following.plan_of(state.persistent, state.live).any
    outcome.changed = bool(outcome.documents) or lacking
    if dry_run or not outcome.changed:
        return
    with files.locked():
        _set_metadata(state, request_metadata(wanted))
    outcome.notes += following.follow(state.domain, files)
    live = live_document(state.domain)
    if request.has_doorbell and live is not None and live.region is None:
        outcome.notes.append("sluice-server plugs the device in once it listens for it")


def _plan(state: _State, request: DomainRequest, outcome: Outcome, *, vsock: bool) -> _Change:
    stale_xml = _stale_region(state, request)
    region_xml, flags, place = _region_change(state, request, replaced=stale_xml is not None)
    vsock_xml = _vsock_change(state, place, outcome) if vsock else None
    had_vsock = state.persistent.request is not None and state.persistent.request.vsock
    wanted = replace(request, vsock=had_vsock or vsock_xml is not None)
    sides = [side for side in (state.persistent, state.live) if side is not None]
    return _Change(
        request=wanted,
        metadata_differs=any(side.request != wanted for side in sides),
        stale_xml=stale_xml,
        region_xml=region_xml,
        region_flags=flags,
        vsock_xml=vsock_xml,
    )


def _apply(state: _State, change: _Change, files: RegionFiles, outcome: Outcome) -> None:
    domain, uuid = state.domain, state.persistent.uuid
    region_xml, vsock_xml, stale_xml = change.region_xml, change.vsock_xml, change.stale_xml
    if stale_xml is not None:
        call(lambda: domain.detachDeviceFlags(stale_xml, libvirt.VIR_DOMAIN_AFFECT_CONFIG))
        files.remove(uuid)
    created = files.ensure(
        uuid, change.request.region_bytes, qemu_account(domain), in_use=state.live is not None
    )
    if region_xml is not None:
        try:
            call(lambda: domain.attachDeviceFlags(region_xml, change.region_flags))
        except HypervisorError as error:
            if created:
                files.remove(uuid)
            raise HypervisorError(f"{state.persistent.name}: {error}") from error
    request, metadata_differs = change.request, change.metadata_differs
    if vsock_xml is not None:
        try:
            domain.attachDeviceFlags(vsock_xml, state.both)
        except libvirt.libvirtError as error:
            outcome.documents.remove(vsock_xml)
            outcome.notes.append(f"no vsock device, the guest does without: {words(error)}")
            request, metadata_differs = replace(request, vsock=False), True
    if metadata_differs:
        _set_metadata(state, request_metadata(request))


def _refuse_foreign(state: _State) -> None:
    for document in (state.persistent, state.live):
        if document is not None and document.foreign_regions:
            raise HypervisorError(
                f"{document.name} carries the channel of another domain "
                f"({document.foreign_regions[0]}), as a "
                "copied definition does: remove that <shmem> with `virsh edit` first"
            )


def _stale_region(state: _State, request: DomainRequest) -> str | None:
    """The device to replace in an inactive definition, because its size changes."""
    name = state.persistent.name
    for document in (state.live, state.persistent):
        region = document.region if document is not None else None
        if region is None or region.size_bytes == request.region_bytes:
            continue
        if state.live is not None:
            raise HypervisorError(
                f"{name} runs with a region of {region.size_bytes >> 20} MiB: `sluice vm detach "
                f"{name}` "
                f"before attaching one of {request.region_mib} MiB"
            )
        return device_again(region)
    return None


def _region_change(
    state: _State, request: DomainRequest, *, replaced: bool
) -> tuple[str | None, int, PciAddress | None]:
    """The region's device, where it is missing (libvirt's flags), and its place."""
    in_config = None if replaced else state.persistent.region
    in_live = state.live.region if state.live is not None else None
    flags = 0 if in_config else libvirt.VIR_DOMAIN_AFFECT_CONFIG
    if state.live is not None and in_live is None:
        check_hot_plug(state.live)
        flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE
    place = next((r.address for r in (in_live, in_config) if r is not None), None)
    if not flags:
        return None, 0, place
    if place is None and replaced and state.persistent.region is not None:
        place = state.persistent.region.address
    if place is None:
        place = choose_place(state.persistent, state.live, frozenset())
    xml = region_device(state.persistent.region_name, request.region_mib, place)
    return xml, flags, place


def _vsock_change(state: _State, taken: PciAddress | None, outcome: Outcome) -> str | None:
    if state.persistent.vsock is not None:
        return None
    if not VHOST_VSOCK.exists():
        outcome.notes.append(
            f"no vsock device: this host has no {VHOST_VSOCK} (modprobe vhost_vsock); the channel "
            "works without"
        )
        return None
    try:
        place = choose_place(state.persistent, state.live, frozenset([taken] if taken else []))
    except HypervisorError as error:
        outcome.notes.append(f"no vsock device, the channel works without: {error}")
        return None
    return vsock_device(next(cids_for(state.persistent.uuid)), place)


def _removals(state: _State) -> list[tuple[str, int]]:
    """Each device of ours with the flags of where it is."""
    found: dict[str, int] = {}
    sides = (
        (state.persistent, libvirt.VIR_DOMAIN_AFFECT_CONFIG),
        (state.live, libvirt.VIR_DOMAIN_AFFECT_LIVE),
    )
    for document, flag in sides:
        if document is None:
            continue
        if document.region is not None:
            xml = device_again(document.region)
            found[xml] = found.get(xml, 0) | flag
        device = document.vsock
        if device is not None and device.ours and device.cid is not None:
            xml = vsock_device(device.cid, device.address)
            found[xml] = found.get(xml, 0) | flag
    return list(found.items())


def _await_release(domain: libvirt.virDomain, before: DomainDocument, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (live := live_document(domain)) is not None and live.region is not None:
        if time.monotonic() > deadline:
            raise HypervisorError(
                f"{before.name}: the guest has not released the device within {seconds:.0f} s (is "
                "it paused, "
                "or still booting?); it is out of the definition, its grant is ended, and it goes "
                "when the "
                "guest releases it or is powered off"
            )
        time.sleep(0.05)
    if live is not None:
        time.sleep(SETTLE_SECONDS)


def _set_metadata(state: _State, xml: str | None) -> None:
    key = NAMESPACE_KEY if xml is not None else None
    kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    if xml is not None:
        call(lambda: state.domain.setMetadata(kind, xml, key, NAMESPACE, state.both))
        return
    for flag in (libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirt.VIR_DOMAIN_AFFECT_CONFIG):
        if state.both & flag:
            # Removing what one side never had is an error to libvirt and none to us.
            with contextlib.suppress(libvirt.libvirtError):
                state.domain.setMetadata(kind, None, None, NAMESPACE, flag)
