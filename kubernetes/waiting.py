# SPDX-License-Identifier: Apache-2.0
"""Why a pod with claims waits, in the pool's words. Pure.

Called by waiting_events.py. The scheduler says that it cannot allocate a claim, and not what of it
is missing: here a request is held against what is published and not taken by other claims. It
decides nothing. Selectors and constraints are the scheduler's to read: where there is room, that is
what is said.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sluice.kubernetes.claims import MIB, consumed_of, number_of
from sluice.kubernetes.naming import COMPUTE, DRIVER, MEMORY, SLICES, VGPU
from sluice.kubernetes.pod_requests import containers_of, limits_of, whole_number
from sluice.resources.vgpu_request import COUNT

ROOM = "has room"


class Size(NamedTuple):
    """Of a vGPU, or what is free of a device."""

    memory_mib: int
    compute_percent: int
    vgpus: int


@dataclass(frozen=True, slots=True)
class Request:
    """What a claim, or a container without one, asks for; None: the reservation's own size."""

    name: str  # in words: request gpu of claim red/small
    count: int
    memory_mib: int | None = None
    compute_percent: int | None = None


class Holdings:
    """What allocated claims hold of the devices, a claim at a time."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[tuple[tuple[str, str], Size], ...]] = {}  # by the claim's UID
        self._taken: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])

    def take_all(self, claims: Mapping[str, Mapping[str, Any]]) -> None:
        """These are the cluster's claims, by UID; there are no others."""
        for gone in self._of.keys() - claims.keys():
            self.drop(gone)
        for uid, claim in claims.items():
            self.take(uid, claim)

    def take(self, uid: str, claim: Mapping[str, Any]) -> None:
        """A claim as it is now."""
        found = tuple(
            ((pool, device), Size(memory or 0, compute or 0, 1))
            for pool, device, memory, compute in consumed_of(claim)
        )
        if self._of.get(uid, ()) == found:
            return
        self.drop(uid)
        if found:
            self._of[uid] = found
            self._book(found, 1)

    def has(self, uid: str) -> bool:
        """Whether a claim holds something."""
        return uid in self._of

    def drop(self, uid: str) -> None:
        """A claim that is gone; one that was not known is as good."""
        self._book(self._of.pop(uid, ()), -1)

    def taken(self, pool: str, device: str) -> Size:
        """Of one device."""
        return Size(*self._taken[pool, device]) if (pool, device) in self._taken else Size(0, 0, 0)

    def _book(self, found: Iterable[tuple[tuple[str, str], Size]], sign: int) -> None:
        for device, size in found:
            taken = self._taken[device]
            for place, value in enumerate(size):
                taken[place] += sign * value
            if not any(taken):
                del self._taken[device]


def requests_of_claim(claim: Mapping[str, Any], classes: Iterable[str]) -> Iterator[list[Request]]:
    """Each request for devices of ours, with its alternatives; what cannot be read is passed over.

    `classes`: the device classes that are ours.
    """
    ours = set(classes)
    metadata = claim["metadata"]
    devices = (claim.get("spec") or {}).get("devices") or {}
    for request in devices.get("requests") or ():
        name = f"request {request.get('name')} of claim {metadata['namespace']}/{metadata['name']}"
        exactly = [request["exactly"]] if request.get("exactly") else []
        found = [
            _request(name, each)
            for each in (*exactly, *(request.get("firstAvailable") or ()))
            if each.get("deviceClassName") in ours
        ]
        if found:
            yield found


def _request(name: str, found: Mapping[str, Any]) -> Request:
    capacity = (found.get("capacity") or {}).get("requests") or {}
    memory, compute = capacity.get(MEMORY), capacity.get(COMPUTE)
    return Request(
        name,
        int(found.get("count") or 1),
        None if memory is None else number_of(MEMORY, memory, MIB),
        None if compute is None else number_of(COMPUTE, compute, 1),
    )


def requests_of_pod(pod: Mapping[str, Any]) -> Iterator[list[Request]]:
    """Of containers that ask for default slices, without a claim; raises PodRequestError."""
    for path, container, _ in containers_of(pod.get("spec") or {}):
        limits = limits_of(container, path)
        if VGPU in limits:
            field = f"{path}.resources.limits[{VGPU}]"
            if count := whole_number(limits[VGPU], field, least=0, most=COUNT.high):
                yield [Request(f"container {container.get('name')}", count)]


def why(
    request: Request, devices: Mapping[str, Sequence[Mapping[str, Any]]], holdings: Holdings
) -> str:
    """In words, or `ROOM`; `devices` by the pool's node, as they are published."""
    usable = [
        (node, each)
        for node, listed in devices.items()
        for each in listed
        if not each.get("taints")
    ]
    if not any(devices.values()):
        return "the pool has nothing reserved for this cluster"
    if not usable:
        return "no GPU of what the pool has reserved for this cluster can be used now"
    best: tuple[Size, Size] | None = None
    rooms: dict[str, int] = defaultdict(int)
    for node, device in usable:
        free, default = _free(device, holdings.taken(node, device["name"]))
        memory = request.memory_mib or default.memory_mib
        compute = request.compute_percent or default.compute_percent
        times = min(free.memory_mib // memory, free.compute_percent // compute, free.vgpus)
        rooms[node] += max(0, times)
        if best is None or free.memory_mib > best[0].memory_mib:
            best = (free, Size(memory, compute, 1))
    if best is None or max(rooms.values()) >= request.count:
        return ROOM
    free, size = best
    return (
        f"{request.name} wants {request.count} vGPU(s) of {size.memory_mib} MiB and "
        f"{size.compute_percent} %; of what the pool has reserved for this cluster at most "
        f"{max(0, free.memory_mib)} MiB, {max(0, free.compute_percent)} % and "
        f"{max(0, free.vgpus)} vGPU(s) of a GPU are free"
    )


def _free(device: Mapping[str, Any], taken: Size) -> tuple[Size, Size]:
    """What is free of a device, and what a request has that names no size."""
    capacity = device["capacity"]
    memory = number_of(MEMORY, capacity[MEMORY]["value"], MIB)
    compute = number_of(COMPUTE, capacity[COMPUTE]["value"], 1)
    if SLICES not in capacity:  # one vGPU
        whole = Size(memory, compute, 1)
        return (Size(0, 0, 0) if taken.vgpus else whole), whole
    default = Size(
        number_of(MEMORY, capacity[MEMORY]["requestPolicy"]["default"], MIB),
        number_of(COMPUTE, capacity[COMPUTE]["requestPolicy"]["default"], 1),
        1,
    )
    vgpus = number_of(SLICES, capacity[SLICES]["value"], 1)
    free = Size(memory - taken.memory_mib, compute - taken.compute_percent, vgpus - taken.vgpus)
    return free, default


def is_ours(device_class: Mapping[str, Any]) -> bool:
    """Whether a DeviceClass is for devices of this driver, as far as its selectors' text says."""
    selectors = (device_class.get("spec") or {}).get("selectors") or ()
    return any(DRIVER in ((each.get("cel") or {}).get("expression") or "") for each in selectors)
