# SPDX-License-Identifier: Apache-2.0
"""The sockets by which containers come: one for each CDI device, each in a folder of its own.

Owned by server.service. RUN_DIR/containers/NAME/socket is what a container is given; it stays when
the server stops, so that containers that run find the next server's socket in it. A device that not
everybody may give lies in a folder that only its group passes: an engine of another user cannot
mount what it cannot reach.
"""

from __future__ import annotations

import contextlib
import grp
import logging
import os
from collections.abc import Callable
from pathlib import Path

from sluice.config.server_containers import ContainerDevice
from sluice.guest_runtime.cdi_specification import ALL, socket_folder
from sluice.server.containers.admission import Admission, DeviceSocket
from sluice.server.containers.devices import ContainerDevices
from sluice.server.containers.given_folder import GivenFolder
from sluice.server.containers.identity import ContainerIdentities
from sluice.server.listeners.unix_socket import UnixListener

log = logging.getLogger("sluice.server")

SOCKET = "server.sock"
#: A listener on a socket, with who may come there.
MakeListener = Callable[[Path, Admission], UnixListener]


class ContainerSockets:
    """The sockets of all devices."""

    def __init__(
        self,
        run_dir: Path,
        devices: ContainerDevices,
        identities: ContainerIdentities,
        listener: MakeListener,
    ) -> None:
        self._run_dir = run_dir
        self._devices = devices
        self._identities = identities
        self._make = listener
        self._listeners: dict[str, UnixListener] = {}

    def open(self) -> None:
        """Begins to listen for every device; one that cannot be is said in the log."""
        for name in self._devices.names():
            try:
                self._open(name)
            except (OSError, KeyError) as error:
                log.error("containers with the device %s are not served: %s", name, error)
        self._forget_others()

    def add(self, name: str, device: ContainerDevice) -> None:
        """Serves one more device; raises ValueError (it is there), OSError, KeyError (no group)."""
        self._devices.add(name, device)
        try:
            self._open(name)
        except BaseException:
            self._devices.remove(name)
            raise

    async def remove(self, name: str) -> None:
        """Serves a device no more; sessions of its containers go on."""
        self._devices.remove(name)
        if listener := self._listeners.pop(name, None):
            await listener.close()
        self._drop(self._folder(name))

    async def close(self) -> None:
        """Stops listening; the folders stay."""
        for listener in self._listeners.values():
            await listener.close()
        self._listeners.clear()

    def _folder(self, name: str) -> Path:
        return Path(socket_folder(str(self._run_dir), name))

    def _open(self, name: str) -> None:
        folder = self._folder(name)
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)  # a container's users are nobody's in particular
        device = self._devices.of(name)
        section = self._devices.section
        group = section.restrict_all if name == ALL else device.group if device else ""
        self._let_in(folder.parent, group)
        admission = Admission(
            self._identities, self._devices, DeviceSocket(name, GivenFolder(folder))
        )
        listener = self._make(folder / SOCKET, admission)
        listener.open()
        self._listeners[name] = listener

    @staticmethod
    def _let_in(folder: Path, group: str) -> None:
        """Who may mount what is in the folder: everybody, or root and a group."""
        if group:
            os.chown(folder, -1, grp.getgrnam(group).gr_gid)
        folder.chmod(0o750 if group else 0o755)

    def _forget_others(self) -> None:
        """Folders of devices that are configured no more."""
        with contextlib.suppress(OSError):
            for folder in (self._run_dir / "containers").iterdir():
                if folder.name not in self._devices.names():
                    self._drop(folder / "socket")

    @staticmethod
    def _drop(folder: Path) -> None:
        with contextlib.suppress(OSError):
            (folder / SOCKET).unlink(missing_ok=True)
            folder.rmdir()
            folder.parent.rmdir()
