# SPDX-License-Identifier: Apache-2.0
"""What has to happen to a region, given what was known of its domain and what libvirt says now.

Called by service.py for every event and at every reconcile. Pure, so that every history of a domain
can be tested without one: the same steps come out whether an event told of a change or a later look
found it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from sluice.hypervisor.domain_document import DomainDocument, ShmemDevice, VsockDevice
from sluice.hypervisor.errors import InvalidRequest
from sluice.hypervisor.pci_devices import HostAddress
from sluice.hypervisor.ports import VsockPlace
from sluice.hypervisor.request import DomainRequest


class Life(enum.Enum):
    """Whether the guest can use its channel."""

    OFF = "off"  # the domain is off, or the device is not plugged in
    RUNNING = "running"
    PAUSED = "paused"


@dataclass(frozen=True)
class Observed:
    """A domain as libvirt has it now."""

    uuid: str
    name: str
    life: Life
    #: libvirt's number of this run of the domain; -1 while off.
    boot: int
    #: The request that counts, or None where there is none or it cannot be served.
    request: DomainRequest | None
    #: A region is in the definition or plugged in: the file has to stay.
    has_device: bool
    #: Its vsock device, in the definition or plugged in.
    vsock: VsockPlace | None = None
    #: The uid and gid of its QEMU, where that is not root.
    account: tuple[int, int] | None = None
    #: How it went off, for people; "" while it runs, and where libvirt does not say.
    went_off: str = ""
    problems: tuple[str, ...] = ()
    #: There is a request and it cannot be read: what was known of it before counts on.
    unreadable: bool = False
    #: Its devices are not what its metadata asks for (following.py).
    out_of_line: bool = False
    #: The host's PCI devices that its QEMU has, and that its definition names.
    live_devices: frozenset[HostAddress] = frozenset()
    config_devices: frozenset[HostAddress] = frozenset()


@dataclass(frozen=True)
class Known:
    """What the server was told of a domain's region."""

    name: str
    request: DomainRequest
    life: Life
    boot: int
    vsock: VsockPlace | None = None


class Step(enum.Enum):
    """One call to the server's regions."""

    STOP = "stop"
    REMOVE = "remove"
    ADD = "add"
    PAUSE = "pause"
    RESUME = "resume"


def observe(
    persistent: DomainDocument,
    live: DomainDocument | None,
    *,
    paused: bool,
    boot: int,
    crashed: bool = False,
    defined: bool = True,
    account: tuple[int, int] | None = None,
    went_off: str = "",
) -> Observed:
    """Puts the two documents together; what runs counts before what is defined.

    `defined` is False for a transient domain, whose `persistent` is what runs. Of one that
    `crashed`, QEMU is kept for whoever looks into it; no program of it runs again.
    """
    current = live if live is not None else persistent
    region = current.region or persistent.region
    problems = [f"{persistent.name}: {current.problem}"] if current.problem else []
    problems += [
        f"{persistent.name}: uses {name}, the channel of another domain; remove it from the "
        "definition"
        for name in sorted({*persistent.foreign_regions, *current.foreign_regions})
    ]
    request = current.request
    vsock = current.vsock or persistent.vsock
    by_vsock = request is not None and not request.has_region
    if by_vsock:
        region = None
    elif request is not None and region is not None and region.size_bytes != request.region_bytes:
        problems.append(
            f"{persistent.name}: the device has {region.size_bytes >> 20} MiB, the request says "
            f"region-mib={request.region_mib}: that comes with the first start after it was "
            "powered off"
        )
        request = _of_size(request, region.size_bytes >> 20)
    elif request is not None and region is not None and _other_kind(request, region):
        problems.append(
            f"{persistent.name}: it runs with another kind of device; channel={request.channel} "
            "comes with the first start after it was powered off"
        )
    if region is None and not (by_vsock and vsock is not None):
        request = None
    life = Life.OFF
    plugged = live is not None and (live.vsock if by_vsock else live.region) is not None
    if plugged and not crashed:
        life = Life.PAUSED if paused else Life.RUNNING
    return Observed(
        uuid=persistent.uuid,
        name=persistent.name,
        life=life,
        boot=boot if live is not None else -1,
        request=request,
        has_device=(current.region or persistent.region) is not None,
        vsock=_place_of(vsock, account),
        account=account,
        went_off=went_off if live is None or crashed else "",
        problems=tuple(problems),
        unreadable=current.problem is not None and (region is not None or vsock is not None),
        live_devices=_sources(live),
        config_devices=_sources(persistent if defined else None),
    )


def _place_of(device: VsockDevice | None, account: tuple[int, int] | None) -> VsockPlace | None:
    if device is None or (device.cid is None and not device.user):
        return None
    return VsockPlace(device.cid, account if device.user else None)


def _other_kind(request: DomainRequest, region: ShmemDevice) -> bool:
    return request.has_doorbell != (region.server is not None)


def _of_size(request: DomainRequest, region_mib: int) -> DomainRequest | None:
    """The request for the device that there is; None where its slots do not fit into that."""
    try:
        return replace(request, region_mib=region_mib)
    except InvalidRequest:
        return None


def _sources(document: DomainDocument | None) -> frozenset[HostAddress]:
    devices = document.host_devices if document is not None else ()
    return frozenset(device.source for device in devices)


def served(known: Known | None, seen: Observed | None) -> Observed | None:
    """With the request that counts: nobody is thrown out for a slip of the pen."""
    if known is None or seen is None or not seen.unreadable:
        return seen
    return replace(seen, request=known.request)


def steps(
    known: Known | None, seen: Observed | None, *, guest_restarted: bool = False
) -> list[Step]:
    """The calls that bring the server from `known` to `seen`.

    `seen` is None where the domain is gone. `guest_restarted` says that an event told of a stop or
    a reboot, or that one came while no server ran, which a look afterwards may no longer show.
    """
    seen = served(known, seen)
    if seen is None or seen.request is None:
        return [] if known is None else [Step.REMOVE]
    if known is None:
        # the sessions that this server took over may be those of a guest that is gone
        found = [Step.ADD] + ([Step.STOP] if guest_restarted else [])
        return found + ([Step.PAUSE] if seen.life is Life.PAUSED else [])
    found = []
    ended = seen.life is Life.OFF or seen.boot != known.boot or guest_restarted
    stopped = known.life is not Life.OFF and ended
    # Of a channel with role='master' libvirt brings back the memory, with the slots of then in it.
    stopped |= guest_restarted and seen.life is not Life.OFF
    if stopped:
        found.append(Step.STOP)
    if (known.name, known.request, known.vsock) != (seen.name, seen.request, seen.vsock):
        found.append(Step.ADD)
    if seen.life is Life.PAUSED and (known.life is not Life.PAUSED or stopped):
        found.append(Step.PAUSE)
    if seen.life is Life.RUNNING and known.life is Life.PAUSED:
        found.append(Step.RESUME)
    return found
