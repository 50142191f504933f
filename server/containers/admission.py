# SPDX-License-Identifier: Apache-2.0
"""Who comes by a Unix socket of the server, and what that lets it have.

Used by listeners.unix_socket, one for each socket: the host's own, where a container may come whose
operator mounted it, and those of CDI devices, on which only containers that were given the device
are served.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from typing import Any

from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.container import Container
from sluice.server.containers.devices import ContainerDevices, bounded
from sluice.server.containers.given_folder import GivenFolder
from sluice.server.containers.identity import ContainerIdentities, ContainerUnclear
from sluice.server.listeners.accepting import uid_of
from sluice.server.listeners.peers import Peer, PeerGone, peer_of
from sluice.server.sessions.open_session import OpenSession, RefusalError
from sluice.server.sessions.records import owner_of


@dataclass(frozen=True, slots=True)
class DeviceSocket:
    """The socket of a CDI device: the device's name, and the folder that its containers have."""

    name: str
    folder: GivenFolder


class Admission:
    """Finds the containers of those who come by one socket, and bounds what they ask for."""

    def __init__(
        self,
        identities: ContainerIdentities | None = None,
        devices: ContainerDevices | None = None,
        device: DeviceSocket | None = None,
    ) -> None:
        """`device`: the socket's; without one it is the host's own."""
        self._identities = identities or ContainerIdentities()
        self._devices = devices or ContainerDevices()
        self._device = device

    def owner_of(self, connected: socket.socket, _: Any = None) -> str:
        """Whose place a connection takes: a container's or a user's."""
        try:
            peer = peer_of(connected)
        except PeerGone:
            return uid_of(connected)
        try:
            return owner_of(self._identities.of(peer), peer.uid)
        except (ContainerUnclear, PeerGone):
            return uid_of(connected)
        finally:
            os.close(peer.pidfd)

    def container_of(self, peer: Peer) -> Container:
        """The peer's container, with its device; raises RefusalError, PeerGone."""
        try:
            container = self._identities.of(peer)
        except ContainerUnclear as error:
            raise RefusalError(CudaStatus.NOT_PERMITTED, str(error)) from None
        if self._device is None:
            return container
        if not self._device.folder.is_given_to(peer.pid):
            raise RefusalError(
                CudaStatus.NOT_PERMITTED,
                f"this process is in no container with the device sluice.io/vgpu="
                f"{self._device.name}, whose socket it came by: start its container with that "
                "device (--device)",
            )
        return replace(container, device=self._device.name)

    def within(self, asked: OpenSession, peer: Peer, container: Container) -> OpenSession:
        """What its device lets it have of what it asks for; raises RefusalError."""
        device = self._devices.of(container.device)
        if device is None:
            return asked
        # an engine without cgroups and namespaces of its own leaves nothing but the user
        whose = container.key or f"uid {peer.uid}"
        return bounded(asked, container.device, device, f"container {socket.gethostname()} {whose}")
