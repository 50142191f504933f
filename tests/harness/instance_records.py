# SPDX-License-Identifier: Apache-2.0
"""The four records that have to agree on an instance: Placement's, Nova's, libvirt's and ours.

Used by tests/openstack. It reads each from its own service, and from nobody's log.
"""

from __future__ import annotations

import json
import subprocess
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from typing import Any

from control_plane import ControlPlane, wait_for

VGPU = "{https://sluice.dev/xmlns/libvirt/1}vgpu"


@dataclass(frozen=True)
class Entry:
    """What the records say of one instance; sizes are (count, MiB, percent)."""

    status: str
    #: In Placement: (MiB, percent) of the pool.
    allocated: tuple[int, int]
    #: In the controller, each live reservation's.
    held: tuple[tuple[int, int, int], ...]
    #: In libvirt's definition; None where there is no such domain.
    defined: tuple[int, int, int] | None
    #: Whether the definition has the domain's own region as a device.
    channel: bool


class InstanceRecords:
    """Those of one rig."""

    def __init__(self, rig: Any, pool: ControlPlane, cloud: Any) -> None:
        self._rig = rig
        self._pool = pool
        self._cloud = cloud
        #: The compute hosts' libvirts, by the hosts' names.
        self.libvirts: dict[str, str] = {"compute1": rig.libvirt.uri}

    def entry(self, server_id: str) -> Entry:
        """What all say now."""
        defined, channel = self._libvirt(server_id)
        return Entry(
            self._status(server_id),
            self._allocated(server_id),
            tuple(
                (r["count"], r["memory_mib"], r["compute_percent"])
                for r in self.reservations(server_id)
                if r["state"] == "held"
            ),
            defined,
            channel,
        )

    def agree(self, server_id: str, expected: Entry, seconds: float = 180) -> None:
        """Waits until all records say what is expected, and `sluice openstack check` nothing."""
        wait_for(
            lambda: self.entry(server_id) == expected,
            seconds,
            lambda: f"expected {expected}, found {self.entry(server_id)}",
        )
        if expected.status != "VERIFY_RESIZE":
            wait_for(lambda: not self.differences(), seconds, "a still `sluice openstack check`")

    def differences(self) -> list[dict[str, Any]]:
        """What `sluice openstack check` says."""
        ran = self._pool.sluice_openstack(  # type: ignore[attr-defined]
            "check", "--config", str(self._pool.folder / "openstack.conf"), "-o", "json",
            rig=self._rig,
        )  # fmt: skip
        found: list[dict[str, Any]] = json.loads(ran.stdout)["differences"]
        assert ran.returncode == (1 if found else 0), ran.stderr
        return found

    def reservations(self, server_id: str) -> list[dict[str, Any]]:
        """The controller's, of one instance, oldest first."""
        found = self._pool.rest.get("/reservations").json()["reservations"]
        return [r for r in found if (r["owner_kind"], r["owner"]) == ("vm", server_id)]

    def _status(self, server_id: str) -> str:
        """Nova's, from one answer: an instance may go between two."""
        answer = self._cloud.compute.get(f"/servers/{server_id}")
        if answer.status_code == 404:
            return "GONE"
        answer.raise_for_status()
        return str(answer.json()["server"]["status"])

    def _allocated(self, server_id: str) -> tuple[int, int]:
        found = self._cloud.placement.get(f"/allocations/{server_id}").json()["allocations"]
        memory = compute = 0
        for each in found.values():
            memory += each["resources"].get("CUSTOM_SLUICE_VGPU_MIB", 0)
            compute += each["resources"].get("CUSTOM_SLUICE_VGPU_COMPUTE", 0)
        return memory, compute

    def definitions(self, server_id: str) -> list[str]:
        """The XML of its domain on every host that has one."""
        shown = [
            subprocess.run(
                ["virsh", "-c", uri, "dumpxml", server_id],
                capture_output=True,
                text=True,
                check=False,
            )
            for uri in self.libvirts.values()
        ]
        return [each.stdout for each in shown if not each.returncode]

    def _libvirt(self, server_id: str) -> tuple[tuple[int, int, int] | None, bool]:
        found = self.definitions(server_id)
        if not found:
            return None, False
        assert len(found) == 1, f"{server_id} is defined on {len(found)} hosts"
        domain = ElementTree.fromstring(found[0])
        vgpu = domain.find(f"metadata/{VGPU}")
        sizes = (0, 0, 0)
        if vgpu is not None:
            sizes = (
                int(vgpu.attrib["count"]),
                int(vgpu.attrib["memory-mib"]),
                int(vgpu.attrib["compute"]),
            )
        names = [each.get("name") for each in domain.findall("devices/shmem")]
        return sizes, names == [f"sluice-{server_id}"]
