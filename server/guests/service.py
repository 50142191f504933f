# SPDX-License-Identifier: Apache-2.0
"""Everything of a server that serves guests of libvirt: doorbell, channels, Nova's socket, libvirt.

Started by server.service where [server] enable_kvm is set and libvirt's Python package is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from sluice.config.server import ServerConfig
from sluice.hypervisor.libvirt_host import libvirt_identity
from sluice.hypervisor.ports import HostDeviceWatcher, MachineWatcher
from sluice.hypervisor.region_file import RegionFiles
from sluice.hypervisor.service import HypervisorService
from sluice.server.guests.channels import GuestChannels
from sluice.server.guests.doorbell import Doorbell
from sluice.server.guests.regions import Regions
from sluice.server.guests.standing import GuestStandings
from sluice.server.guests.vsock import VsockGuests
from sluice.server.listeners.vm_socket import (
    VmListener,
    make_plugs,
    make_ready,
    make_regions,
    render,
)
from sluice.server.sessions.lifecycle import SessionLifecycle
from sluice.server.workers.process import WorkerStarter
from sluice.server.workers.session_start import ResumeTerms

log = logging.getLogger("sluice.server")


class Guests:
    """This host's guests. `run` has a task of the server's follow what runs for ever."""

    def __init__(
        self,
        config: ServerConfig,
        lifecycle: SessionLifecycle,
        regions: Regions,
        starter: WorkerStarter,
        *,
        host_devices: HostDeviceWatcher,
        machines: MachineWatcher,
        standings: GuestStandings,
    ) -> None:
        section, nova, log_dir = config.server, config.nova, config.log.log_dir
        self._doorbell = Doorbell(
            starter,
            section.run_dir,
            log_dir,
            regions.doorbell_said,
            regions.doorbell_connected,
        )
        regions.use_doorbell(self._doorbell)
        files = RegionFiles(
            libvirt_identity(section.libvirt_uri), section.region_dir, section.run_dir
        )
        vsock = VsockGuests(
            lifecycle,
            section.run_dir,
            log_dir,
            section.vsock_backend,
            add_bell=regions.add_bell,
            terms=ResumeTerms(section.network_grace_seconds, section.closed_grace_seconds),
        )
        channels = self._channels = GuestChannels(regions, vsock, files, standings)
        self._run_dir: Path = section.run_dir
        unplug, plug = make_plugs(section.libvirt_uri, files)
        self._vm_socket = VmListener(
            section.run_dir,
            group=nova.group,
            region_mib=nova.region_mib,
            slots=nova.slots,
            channel=nova.channel,
            prepare=make_regions(section.libvirt_uri, files),
            render=render,
            sessions=channels.programs,
            look=lambda uuid: self._hypervisor.look_soon(uuid),
            unplug=unplug,
            plug=plug,
            ready=make_ready(section.libvirt_uri, files),
        )
        self._hypervisor = HypervisorService(
            channels,
            uri=section.libvirt_uri,
            files=files,
            host_devices=host_devices,
            machines=machines,
            expected=self._vm_socket,
            vsock_backend=section.vsock_backend,
        )

    def open(self, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """Begins to serve them."""
        try:
            self._vm_socket.open()
        except OSError as error:
            log.error("Nova cannot ask for channels: %s: %s", self._run_dir, error.strerror)
        run(self._doorbell.run())
        run(self._hypervisor.run())

    async def close(self) -> None:
        """Closes the listeners; guests and their sessions go on."""
        await self._vm_socket.close()
        await self._channels.close()
