# SPDX-License-Identifier: Apache-2.0
"""CDI specifications of claims: what the container runtime adds to the containers that name one.

Used by node_plugin.py and device_plugin.py. A file for each claim, with one device in it, so that
preparing and unpreparing touch nothing of another claim's.
"""

from __future__ import annotations

import re
from pathlib import Path

from sluice.guest_runtime.cdi_specification import (
    SOCKET_FOLDER_IN_CONTAINER,
    CdiDevice,
    Mount,
    as_json,
    specification,
    write,
)
from sluice.kubernetes.naming import CDI_KIND, claim_label

_FILE = re.compile(r"sluice-claim-([0-9a-f-]{36})\.json")


class CdiFiles:
    """The folder that the container runtime reads. Methods raise OSError."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self._folder = folder
        self._bundle = bundle

    def put(self, uid: str, folder: str, job: str, count: int) -> str:
        """Writes a claim's; returns the device's whole name."""
        device = _device(uid, folder, job, count)
        found = specification(str(self._bundle), [device], CDI_KIND)
        write(self._path(uid), as_json(found))
        return self.name_of(uid)

    def name_of(self, uid: str) -> str:
        """The whole name of a claim's device."""
        return f"{CDI_KIND}={claim_label(uid)}"

    def edits(
        self, uid: str, folder: str, job: str, count: int
    ) -> tuple[list[Mount], dict[str, str]]:
        """The same as mounts and variables, where there is no CDI."""
        found = specification(str(self._bundle), [_device(uid, folder, job, count)], CDI_KIND)
        mounts: list[Mount] = []
        variables: dict[str, str] = {}
        for each in (found, *found["devices"]):
            edits = each["containerEdits"]
            mounts += [Mount(m["hostPath"], m["containerPath"]) for m in edits["mounts"]]
            variables |= dict(line.split("=", 1) for line in edits["env"])
        return mounts, variables

    def remove(self, uid: str) -> None:
        """One that is gone already is as good."""
        self._path(uid).unlink(missing_ok=True)

    def uids(self) -> set[str]:
        """The claims that have one."""
        if not self._folder.is_dir():
            return set()
        found = (_FILE.fullmatch(path.name) for path in self._folder.iterdir())
        return {match[1] for match in found if match}

    def _path(self, uid: str) -> Path:
        return self._folder / f"sluice-claim-{uid}.json"


def _device(uid: str, folder: str, job: str, count: int) -> CdiDevice:
    variables = {"SLUICE_CHANNEL": "shm", "SLUICE_JOB": job, "SLUICE_VGPU": str(count)}
    if count > 1:  # where they are was decided with the claim, and it may be one card
        variables["SLUICE_SAME_GPU"] = "true"
    mounts = [Mount(folder, SOCKET_FOLDER_IN_CONTAINER)]
    return CdiDevice(claim_label(uid), mounts, variables)
