# SPDX-License-Identifier: Apache-2.0
"""Changes what a VM of this host asks for, at the controller's order: as `sluice vm resize` does.

Called by controller.node_side. It owns nothing: the request is the VM's metadata in libvirt, whose
change the hypervisor part sees and reports as anybody's. It promises that one change runs at a
time, that what is not named stays, and that the answer says why where nothing was changed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sluice.config.server import ServerConfig
from sluice.hypervisor.errors import HypervisorError
from sluice.rpc import pool_pb2 as rpc
from sluice.server.gpus.native import NO_VMS

log = logging.getLogger("sluice.server")

_FIELDS = {
    "vgpu_count": "count",
    "memory_mib": "memory_mib",
    "compute_percent": "compute_percent",
    "priority": "priority",
}


class GuestRequests:
    """What this host's VMs ask for, as far as it can be changed from here."""

    def __init__(self, config: ServerConfig) -> None:
        self._section = config.server
        self._order = asyncio.Lock()
        self.can = config.server.enable_kvm and importlib.util.find_spec("libvirt") is not None

    async def change(self, order: rpc.ChangeRequest) -> rpc.RequestChanged:
        """Changes a VM's request, and says what came of it."""
        done = rpc.RequestChanged(call=order.call)
        try:
            if not self.can:
                raise HypervisorError(NO_VMS)
            async with self._order:
                done.notes.extend(await asyncio.to_thread(self._change_now, order))
        except HypervisorError as error:
            log.warning("VM %s: its request is not changed: %s", order.domain_uuid, error)
            done.error = str(error)
        except Exception as error:
            log.exception("VM %s: its request is not changed", order.domain_uuid)
            done.error = f"its server failed: {error}"
        return done

    def _change_now(self, order: rpc.ChangeRequest) -> Sequence[str]:
        """Blocking."""
        from sluice.hypervisor import channel_devices
        from sluice.hypervisor.libvirt_host import connected, find_domain, libvirt_identity
        from sluice.hypervisor.region_file import RegionFiles
        from sluice.hypervisor.request import read_mode

        section = self._section
        files = RegionFiles(
            libvirt_identity(section.libvirt_uri), section.region_dir, section.run_dir
        )
        given = {field.name: value for field, value in order.ListFields()}
        changes: dict[str, Any] = {
            field: given[name] for name, field in _FIELDS.items() if name in given
        }
        if "mode" in given:
            changes["mode"] = read_mode(given["mode"])
        with connected(section.libvirt_uri) as connection:
            domain = find_domain(connection, order.domain_uuid)
            before = channel_devices.request_of(domain)
            outcome = channel_devices.attach(
                domain, replace(before, **changes), files, vsock=before.vsock
            )
        log.info("VM %s: its request is changed: %s", order.domain_uuid, changes)
        return outcome.notes
