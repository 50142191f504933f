# SPDX-License-Identifier: Apache-2.0
"""What `sluice vm list` and `sluice vm show` say about a domain, as plain data.

Called by cli.py; blocking, changes nothing. Says what is wrong with a request or a device and what
to do.
"""

from __future__ import annotations

from typing import Any

import libvirt

from sluice.hypervisor.domain_document import DomainDocument
from sluice.hypervisor.libvirt_host import live_document, persistent_document
from sluice.hypervisor.region_file import RegionFiles

STATES = {
    libvirt.VIR_DOMAIN_NOSTATE: "unknown",
    libvirt.VIR_DOMAIN_RUNNING: "running",
    libvirt.VIR_DOMAIN_BLOCKED: "running",
    libvirt.VIR_DOMAIN_PAUSED: "paused",
    libvirt.VIR_DOMAIN_SHUTDOWN: "shutting down",
    libvirt.VIR_DOMAIN_SHUTOFF: "shut off",
    libvirt.VIR_DOMAIN_CRASHED: "crashed",
    libvirt.VIR_DOMAIN_PMSUSPENDED: "suspended",
}


def inspect(domain: libvirt.virDomain, files: RegionFiles) -> dict[str, Any] | None:
    """A domain with a request or a channel of ours; None for any other."""
    persistent, live = persistent_document(domain), live_document(domain)
    documents = [document for document in (live, persistent) if document is not None]
    native = _native_gpus(persistent if domain.isPersistent() else None, live)
    ours = any(
        d.request or d.problem or d.region or d.foreign_regions or (d.vsock and d.vsock.ours)
        for d in documents
    )
    if not ours and not native:
        return None
    request = next((d.request for d in documents if d.request), None)
    region = next((d.region for d in documents if d.region), None)
    path = files.path(persistent.uuid)
    return {
        "domain": persistent.name,
        "uuid": persistent.uuid,
        "state": STATES.get(domain.state()[0], "unknown"),
        "machine": persistent.machine,
        "request": request.attributes() if request else None,
        "region": {
            "file": str(path),
            "present": path.exists(),
            "mib": region.size_bytes >> 20 if region else None,
            "address": str(region.address) if region and region.address else None,
            "in_definition": persistent.region is not None,
            "plugged": live is not None and live.region is not None,
        },
        "vsock": _vsock(persistent, live),
        "native_gpus": native,
        "problems": _problems(persistent, live, path.exists()),
    }


def _vsock(persistent: DomainDocument, live: DomainDocument | None) -> dict[str, Any] | None:
    """The vsock device; `cid` is None of a vhost-user one."""
    device = (live.vsock if live is not None else None) or persistent.vsock
    if device is None:
        return None
    return {
        "cid": device.cid,
        "vhost_user": device.user,
        "address": str(device.address) if device.address else None,
        "in_definition": persistent.vsock is not None,
        "plugged": live is not None and live.vsock is not None,
    }


def _native_gpus(
    persistent: DomainDocument | None, live: DomainDocument | None
) -> list[dict[str, Any]]:
    """The functions of whole GPUs that Sluice gave it."""
    sides = {"in_definition": persistent, "plugged": live}
    found: dict[str, dict[str, Any]] = {}
    for side, document in sides.items():
        for device in document.host_devices if document is not None else ():
            if device.ours:
                entry = found.setdefault(
                    str(device.source),
                    {"host": str(device.source), "guest": None, **dict.fromkeys(sides, False)},
                )
                entry["guest"] = str(device.address) if device.address else entry["guest"]
                entry[side] = True
    return [found[address] for address in sorted(found)]


def _problems(
    persistent: DomainDocument, live: DomainDocument | None, file_present: bool
) -> list[str]:
    found = []
    for document in (persistent, live):
        if document is None:
            continue
        if document.problem and document.problem not in found:
            found.append(document.problem)
        for name in document.foreign_regions:
            text = f"{name} is another domain's channel: remove that <shmem> with `virsh edit`"
            if text not in found:
                found.append(text)
    by_vsock = persistent.request is not None and not persistent.request.has_region
    if by_vsock and persistent.vsock is None:
        found.append("a request but no vsock device: sluice-server puts it in when it runs")
    if by_vsock:
        return found
    if persistent.request and persistent.region is None:
        found.append("a request but no device: sluice-server puts it in when it runs")
    if persistent.region and persistent.request is None and persistent.problem is None:
        found.append("a device but no request: sluice-server takes it out when it runs")
    if persistent.request and persistent.region:
        if persistent.region.size_bytes != persistent.request.region_bytes:
            found.append(
                "the device's size is not the request's region-mib: detach and attach again"
            )
        if not file_present:
            found.append("the region's file is missing: sluice-server makes it when it runs")
    if live is not None and persistent.region and live.region is None:
        found.append("in the definition but not plugged: `sluice vm attach` again, or restart it")
    return found
