# SPDX-License-Identifier: Apache-2.0
"""What the hypervisor part needs from sluice-server, as an interface that the server implements.

service.py calls it on the server's event loop, one call at a time for one region. Identity flows
this way only: a region's owner is what libvirt said, never what a guest said. Every call is
idempotent, since the periodic reconcile repeats what an event already told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sluice.hypervisor.pci_devices import HostAddress
from sluice.hypervisor.request import DomainRequest


@dataclass(frozen=True)
class VsockPlace:
    """A domain's vsock device, as its host tells it from others'.

    `cid` is its number in the host's kernel, None of a vhost-user device. That one is served by a
    process of the server's, with sockets that QEMU's account (uid, gid; None: root) may use.
    """

    cid: int | None = None
    account: tuple[int, int] | None = None


@dataclass(frozen=True)
class RegionOwner:
    """The domain that a channel belongs to, with its vsock device if it has one.

    `account` is what its QEMU runs as (uid, gid), None of one that runs as root.
    """

    uuid: str
    name: str
    vsock: VsockPlace | None = None
    account: tuple[int, int] | None = None


@dataclass(frozen=True)
class SeenMachine:
    """A domain that asks for a vGPU, or with something wrong about what it asks for."""

    uuid: str
    name: str
    request: DomainRequest | None
    problems: tuple[str, ...] = ()


class MachineWatcher(Protocol):
    """Who tells others what domains ask for."""

    def machines_seen(self, machines: Sequence[SeenMachine]) -> None:
        """All of them, after every round of looks; the same as before changes nothing."""


class RegionKeeper(Protocol):
    """The server's side of guests' channels; `region_id` is the owning domain's UUID.

    Between `add_region` and `remove_region` a region is the domain's, also while the domain is off.
    """

    async def add_region(
        self, region_id: str, path: Path, owner: RegionOwner, request: DomainRequest
    ) -> None:
        """Formats (if blank) and watches the region; called again when owner or request changed.

        The file exists with its full size and mode 0600, if the request has a region.
        """

    async def remove_region(self, region_id: str, reason: str) -> None:
        """Ends every session of the region and stops watching it; the caller deletes the file."""

    async def domain_paused(self, region_id: str) -> None:
        """The guest stands still: silence is no sign of death until it is resumed."""

    async def domain_resumed(self, region_id: str) -> None:
        """The guest runs again."""

    async def domain_stopped(self, region_id: str, reason: str) -> None:
        """All processes of the guest are gone (off, rebooted, crashed, or the device was
        unplugged).

        Every session of the region ends; its slots become free for the next boot.
        """


class ExpectedDomains(Protocol):
    """Who had regions made for domains that are about to be defined."""

    def expects(self, uuid: str) -> bool:
        """Whether a domain's region stays although there is no such domain yet."""

    def defined(self, uuid: str) -> None:
        """There it is, with its device: from now on the region goes with it."""


class HostDeviceWatcher(Protocol):
    """The server's side of PCI devices that domains have; called after every look at a domain."""

    def moment(self) -> int:
        """Taken before a look: what was seen before the server changed something is refused."""

    def domain_seen(
        self,
        moment: int,
        uuid: str,
        name: str,
        live: frozenset[HostAddress],
        config: frozenset[HostAddress],
    ) -> bool:
        """What a domain has; False if the look was too early and has to be repeated."""

    def domain_gone(self, moment: int, uuid: str) -> bool:
        """There is no such domain; False as above."""

    def all_seen(self) -> None:
        """Every domain has been looked at."""

    def domains(self) -> set[str]:
        """The domains that are known to have devices."""
