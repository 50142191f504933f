# SPDX-License-Identifier: Apache-2.0
"""Writes a request into a domain's metadata, running or not, and has following.py see to the rest.

Called by cli.py; blocking. Metadata is all that it writes; what that would come to is checked first
(`--dry-run` shows it), and where libvirt refuses the channel all the same, the metadata is put back
as it was. It holds the lock from the metadata to the last device, so that a server which looks
meanwhile finds both. Doing a thing twice changes nothing.
"""

from __future__ import annotations

import contextlib
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
from sluice.hypervisor.following import RELEASE_SECONDS, Device
from sluice.hypervisor.libvirt_host import (
    call,
    live_document,
    persistent_document,
    qemu_account,
)
from sluice.hypervisor.pci_slots import check_hot_plug, choose_place
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import NAMESPACE, NAMESPACE_KEY, DomainRequest
from sluice.hypervisor.vsock_devices import VHOST_VSOCK, cids_for

_SIDES = (libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirt.VIR_DOMAIN_AFFECT_CONFIG)


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
    def sides(self) -> list[DomainDocument]:
        """The definition, and what runs."""
        return [side for side in (self.persistent, self.live) if side is not None]

    @property
    def both(self) -> int:
        """The flags of an operation on the definition and on what runs."""
        live = libvirt.VIR_DOMAIN_AFFECT_LIVE if self.live is not None else 0
        return int(libvirt.VIR_DOMAIN_AFFECT_CONFIG | live)


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
    is_file = request.has_region and not request.has_doorbell
    served = any(side.region is not None and side.region.server for side in state.sides)
    must = is_file and not served
    if must:
        _refuse_other_size(state, request)
        wanted, outcome.documents = _checked(state, request, outcome, vsock=vsock)
    else:
        wanted = replace(request, vsock=False)
        if request.has_doorbell and state.persistent.region is None:
            server = str(files.server_socket(state.persistent.uuid))
            name = state.persistent.region_name
            outcome.documents.append(region_device(name, request.region_mib, None, server))
    if any(side.request != wanted for side in state.sides):
        outcome.documents.append(request_metadata(wanted, with_namespace=True))
    outcome.changed = bool(outcome.documents) or following.plan_of(state.persistent, state.live).any
    if must:
        files.check_room(state.persistent.uuid, wanted.region_bytes)
    if not dry_run:
        with files.locked():
            _write_and_follow(state, wanted, files, outcome, must=must)
        live = live_document(domain)
        if request.has_doorbell and live is not None and live.region is None:
            outcome.notes.append("sluice-server plugs the device in once it listens for it")
    return outcome


def request_of(domain: libvirt.virDomain) -> DomainRequest:
    """What a domain asks for; raises HypervisorError where it asks for nothing."""
    documents = (live_document(domain), persistent_document(domain))
    found = next((d.request for d in documents if d is not None and d.request), None)
    if found is None:
        name = domain.name()
        raise HypervisorError(f"{name} asks for nothing yet: `sluice vm attach {name}`")
    return found


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
    with files.locked():
        if has_metadata:
            _set_metadata(state, None)
        refused = following.carry_out(domain, files)
    if refused:
        why = refused[0].why.removeprefix(f"{name}: ")
        raise HypervisorError(f"{name}: the grant is ended, but a device stays: {why}")
    plugged = any(flags & libvirt.VIR_DOMAIN_AFFECT_LIVE for _, flags in removals)
    if plugged and not following.await_release(domain, release_seconds):
        raise HypervisorError(
            f"{name}: the guest has not released the device within {release_seconds:.0f} s (is it "
            "paused, or still booting?); it is out of the definition, its grant is ended, and it "
            "goes when the guest releases it or is powered off"
        )
    outcome.changed = files.remove(state.persistent.uuid) or outcome.changed
    return outcome


def _checked(
    state: _State, request: DomainRequest, outcome: Outcome, *, vsock: bool
) -> tuple[DomainRequest, list[str]]:
    """The request with what the host has for it, and the devices that are missing for it.

    Raises HypervisorError where a region has no place; without a place, a vsock device is left out.
    """
    region_xml, place = _missing_region(state, request)
    vsock_xml = _missing_vsock(state, place, outcome) if vsock else None
    had_vsock = state.persistent.request is not None and state.persistent.request.vsock
    wanted = replace(request, vsock=had_vsock or vsock_xml is not None)
    return wanted, [xml for xml in (region_xml, vsock_xml) if xml is not None]


def _write_and_follow(
    state: _State, wanted: DomainRequest, files: RegionFiles, outcome: Outcome, *, must: bool
) -> None:
    """Under the lock. Where the region `must` come and is refused, all is as before."""
    domain, uuid = state.domain, state.persistent.uuid
    before = _metadata(state)
    if must and all(_has_region(side, wanted) for side in state.sides):
        # nothing is to be put in, and the file may be gone
        in_use = state.live is not None
        files.ensure(uuid, wanted.region_bytes, qemu_account(domain), in_use=in_use)
    if any(side.request != wanted for side in state.sides):
        _set_metadata(state, request_metadata(wanted))
    refused = following.carry_out(domain, files)
    if not must:
        outcome.notes += [refusal.line for refusal in refused]
        return
    for refusal in refused:
        if refusal.device is Device.REGION:
            _put_back(state, before)
            following.carry_out(domain, files)
            if all(side.region is None for side in state.sides):
                files.remove(uuid)
            raise HypervisorError(refusal.why)
    if refused:
        outcome.notes.append(f"no vsock device, the guest does without: {refused[0].why}")
        if state.persistent.vsock is None:
            _set_metadata(state, request_metadata(replace(wanted, vsock=False)))
            following.carry_out(domain, files)


def _has_region(side: DomainDocument, request: DomainRequest) -> bool:
    return side.region is not None and side.region.size_bytes == request.region_bytes


def _refuse_foreign(state: _State) -> None:
    for document in (state.persistent, state.live):
        if document is not None and document.foreign_regions:
            raise HypervisorError(
                f"{document.name} carries the channel of another domain "
                f"({document.foreign_regions[0]}), as a "
                "copied definition does: remove that <shmem> with `virsh edit` first"
            )


def _refuse_other_size(state: _State, request: DomainRequest) -> None:
    """What runs keeps its region; of a domain that is off, following.py replaces it."""
    name = state.persistent.name
    for side in state.sides if state.live is not None else ():
        region = side.region
        if region is not None and region.size_bytes != request.region_bytes:
            raise HypervisorError(
                f"{name} runs with a region of {region.size_bytes >> 20} MiB: `sluice vm detach "
                f"{name}` before attaching one of {request.region_mib} MiB"
            )


def _missing_region(state: _State, request: DomainRequest) -> tuple[str | None, PciAddress | None]:
    """The region's device where it is missing, and the place that it has or will have."""
    defined = state.persistent.region
    plugged = state.live.region if state.live is not None else None
    lacks_plug = state.live is not None and plugged is None
    if state.live is not None and lacks_plug:
        check_hot_plug(state.live)
    there = plugged or defined
    place = there.address if there is not None else None
    if _has_region(state.persistent, request) and not lacks_plug:
        return None, place
    if place is None:
        place = choose_place(state.persistent, state.live, frozenset())
    return region_device(state.persistent.region_name, request.region_mib, place), place


def _missing_vsock(state: _State, taken: PciAddress | None, outcome: Outcome) -> str | None:
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


def _metadata(state: _State) -> dict[int, str | None]:
    """Our element of each side as it stands there; None: there is none."""
    found: dict[int, str | None] = {}
    for flag in _SIDES:
        if state.both & flag:
            found[flag] = None
            with contextlib.suppress(libvirt.libvirtError):
                kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
                found[flag] = state.domain.metadata(kind, NAMESPACE, flag)
    return found


def _put_back(state: _State, before: dict[int, str | None]) -> None:
    kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    for flag, xml in before.items():
        with contextlib.suppress(libvirt.libvirtError):
            key = NAMESPACE_KEY if xml is not None else None
            state.domain.setMetadata(kind, xml, key, NAMESPACE, flag)


def _set_metadata(state: _State, xml: str | None) -> None:
    key = NAMESPACE_KEY if xml is not None else None
    kind = libvirt.VIR_DOMAIN_METADATA_ELEMENT
    if xml is not None:
        call(lambda: state.domain.setMetadata(kind, xml, key, NAMESPACE, state.both))
        return
    for flag in _SIDES:
        if state.both & flag:
            # Removing what one side never had is an error to libvirt and none to us.
            with contextlib.suppress(libvirt.libvirtError):
                state.domain.setMetadata(kind, None, None, NAMESPACE, flag)
