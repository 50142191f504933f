# SPDX-License-Identifier: Apache-2.0
"""A guest's channels: regions.py, guests.ivshmem_doorbells and guests.vsock behind one interface.

Implements hypervisor.ports.RegionKeeper for the hypervisor part. A domain has a region, a vsock
device, or both; what it asks for bounds whatever comes over either.
"""

from __future__ import annotations

from pathlib import Path

from sluice.hypervisor.ports import RegionOwner
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.request import DomainRequest
from sluice.server.guests.ivshmem_doorbells import IvshmemDoorbells
from sluice.server.guests.regions import Regions
from sluice.server.guests.standing import GuestStandings
from sluice.server.guests.vsock import VsockGuests


class GuestChannels:
    """Every channel of this host's guests."""

    def __init__(
        self,
        regions: Regions,
        vsock: VsockGuests,
        files: RegionFiles,
        standings: GuestStandings,
    ) -> None:
        self._regions = regions
        self._vsock = vsock
        self._files = files
        self._standings = standings
        self._doorbells = IvshmemDoorbells(regions.set_device_bell)

    async def add_region(
        self, region_id: str, path: Path, owner: RegionOwner, request: DomainRequest
    ) -> None:
        """Serves what the domain has; called again when its owner or request changed."""
        if request.has_region:
            await self._regions.add_region(region_id, path, owner, request)
        else:
            await self._regions.remove_region(region_id, "its channel is vsock now")
        device_socket = self._files.server_socket(region_id)
        if request.has_doorbell:
            await self._doorbells.add(owner, path, device_socket)
        else:
            await self._doorbells.remove(region_id, device_socket)
        if owner.vsock is not None:
            await self._vsock.add(owner, owner.vsock, request)
        else:
            await self._vsock.remove(region_id, "the vsock device was taken away")
        self._standings.known(region_id)

    async def remove_region(self, region_id: str, reason: str) -> None:
        """Ends every session of the domain and serves it no more."""
        await self._doorbells.remove(region_id, self._files.server_socket(region_id))
        await self._regions.remove_region(region_id, reason)
        await self._vsock.remove(region_id, reason)
        self._standings.forget(region_id)

    def programs(self, region_id: str) -> list[str]:
        """Who has a session of the domain's or waits for one, a line each."""
        return self._regions.programs(region_id) + self._vsock.programs(region_id)

    async def domain_paused(self, region_id: str) -> None:
        """Silence is no sign of death until the guest is resumed."""
        await self._regions.domain_paused(region_id)
        self._standings.paused(region_id)

    async def domain_resumed(self, region_id: str) -> None:
        """The guest runs again."""
        await self._regions.domain_resumed(region_id)
        self._standings.resumed(region_id)

    async def domain_stopped(self, region_id: str, reason: str) -> None:
        """Every process of the guest is gone: its sessions end."""
        await self._vsock.stopped(region_id, reason)
        await self._regions.domain_stopped(region_id, reason)
        self._standings.resumed(region_id)

    async def close(self) -> None:
        """Closes the listeners; guests and their sessions go on."""
        await self._doorbells.close()
        await self._vsock.close()
