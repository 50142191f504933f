# SPDX-License-Identifier: Apache-2.0
"""Another compute host of the rig, that can die: a libvirt and a nova-compute.

Used by tests/openstack. Its libvirt has a /dev/shm and a host name of its own, so that it shares
with the first host what two hosts share: the network, and the folder of instances as one on NFS.
`kill` is the plug pulled out; `start` afterwards is the same machine coming back, with its domains'
definitions and with nothing in its memory.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.rigs.kvm.private_libvirt import PrivateLibvirt

if TYPE_CHECKING:
    from .rig import OpenStackRig


class SecondHost:
    """One more compute host below the rig's folder."""

    def __init__(self, rig: OpenStackRig, name: str, server_socket: Path) -> None:
        self.name = name
        self._daemon = f"nova-compute-{name}"
        self._rig = rig
        self._server_socket = server_socket
        self._state = rig.data / name
        shutil.rmtree(rig.root / name, ignore_errors=True)  # an earlier run's domains
        self.libvirt = PrivateLibvirt(rig.root / name, own_shm=True, host_name=name)

    def start(self) -> None:
        """Starts both; await_up() waits until Nova counts on it."""
        self._state.mkdir(parents=True, exist_ok=True)
        self.libvirt.start()
        configuration = self._rig.etc / f"nova/{self.name}.conf"
        configuration.write_text(
            f"[DEFAULT]\nhost = {self.name}\nstate_path = {self._state}\n"
            f"[libvirt]\nconnection_uri = {self.libvirt.uri}\n"
            f"[sluice]\nserver_socket = {self._server_socket}\n"
        )
        self._rig.start_compute(self._daemon, configuration)

    def await_up(self) -> None:
        """Waits until the scheduler may choose it."""
        self._rig.await_computes(2)

    def kill(self) -> None:
        """Both end at once, and the guests with them."""
        self._rig.processes.stop(self._daemon, seconds=0)
        self.libvirt.kill()
