# SPDX-License-Identifier: Apache-2.0
"""What a container may have by the CDI device that it was given: bounds, project, one grant.

Used by listeners.unix_socket and sessions.accounts. A device is known by the socket on which its
containers come, so nothing that a container says can make it another one. Devices come from
[containers] of server.conf; others may be added and taken away while the server runs.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from sluice.config.server_containers import DEFAULT_DEVICE, ContainerDevice, ContainersSection
from sluice.guest_runtime.cdi_specification import ALL, DEFAULT
from sluice.protocol.cuda_status import CudaStatus
from sluice.server.sessions.open_session import OpenSession, RefusalError


class ContainerDevices:
    """The devices of this host by name; `all` bounds nothing and has no entry."""

    def __init__(self, section: ContainersSection | None = None) -> None:
        self.section = section or ContainersSection()
        self._devices = {DEFAULT: DEFAULT_DEVICE, **self.section.devices}

    def names(self) -> list[str]:
        """All of them, with `all`."""
        return [ALL, *self._devices]

    def of(self, name: str) -> ContainerDevice | None:
        """What a device bounds; None: it bounds nothing (`all`, or a name that is gone)."""
        return self._devices.get(name)

    def add(self, name: str, device: ContainerDevice) -> None:
        """A device of this name is there from now on; raises ValueError where one is."""
        if name in self._devices or name == ALL:
            raise ValueError(f"there is a device {name} already")
        self._devices[name] = device

    def remove(self, name: str) -> None:
        """It is there no more; what runs with it goes on."""
        self._devices.pop(name, None)


def bounded(asked: OpenSession, name: str, device: ContainerDevice, domain: str) -> OpenSession:
    """What a container's process gets, whatever it asks for; raises RefusalError.

    Asking for less gets what the device is: all processes of the container have one grant, as a
    job, in which each may choose among the vGPUs. `domain` is the container, as the host knows it.
    """
    request = asked.request
    for variable, wanted, most, unit in (
        ("SLUICE_VGPU", request.count, device.count, " vGPU"),
        ("SLUICE_GMEM", request.memory_mib, device.memory, " MiB"),
        ("SLUICE_RATIO", request.compute_percent, device.compute, " %"),
    ):
        if wanted > most > 0:
            raise RefusalError(
                CudaStatus.NOT_PERMITTED,
                f"{variable} asks for {wanted}{unit}, and this container's device sluice.io/vgpu="
                f"{name} is {most}{unit}: ask for no more (or leave {variable} out), or start the "
                "container with another device",
            )
    job = hashlib.sha256(f"sluice container {domain} {name}".encode()).hexdigest()[:32]
    return replace(
        asked,
        request=replace(
            request,
            count=device.count,
            memory_mib=device.memory,
            compute_percent=device.compute,
            cross_node=False,
        ),
        job=job,
        job_domain=domain,
        job_processes=device.processes,
        chosen=asked.chosen or _first(request.count, device.count),
    )


def _first(wanted: int, there: int) -> tuple[int, ...]:
    """Of a client that names no vGPUs of its job: as many as it asked for, none named is all."""
    return tuple(range(wanted)) if 0 < wanted < there else ()
