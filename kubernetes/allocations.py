# SPDX-License-Identifier: Apache-2.0
"""Which allocation of the kubelet's is which claim of this host's server, over restarts.

Used by device_plugin.py. Allocate has to name a folder before it is known whose it is, and
PreStartContainer names devices alone: so each allocation gets a UID of its own, kept in a file that
is named by its first device. A device that is allocated anew has another UID, and what the one
before had is never the next one's.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from pathlib import Path

_DEVICE = re.compile(r"vgpu-[0-9]{1,5}")
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MOST_DEVICES = 4096


class AllocationError(Exception):
    """An allocation is not known; the text says what to do."""


def device_names(total: int) -> list[str]:
    """What the vGPUs of a node are called: any of them is as good as any other."""
    return [f"vgpu-{number}" for number in range(min(total, MOST_DEVICES))]


class Allocations:
    """A folder of files. Methods raise AllocationError, OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make(self, devices: Iterable[str]) -> str:
        """A new UID for devices that are allocated together."""
        named = _checked(devices)
        uid = str(uuid.uuid4())
        self._folder.mkdir(parents=True, exist_ok=True)
        scratch = self._folder / f".{named[0]}.new"
        scratch.write_text(json.dumps({"uid": uid, "devices": named}))
        scratch.chmod(0o600)
        scratch.replace(self._folder / f"{named[0]}.json")
        return uid

    def uid_of(self, devices: Iterable[str]) -> str:
        """The UID that these devices got last."""
        named = _checked(devices)
        path = self._folder / f"{named[0]}.json"
        try:
            found = json.loads(path.read_text())
            uid = found["uid"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AllocationError(f"{path}: {error}: delete the pod, and it is made anew") from None
        if found.get("devices") != named or not (isinstance(uid, str) and _UID.fullmatch(uid)):
            raise AllocationError(f"{path} is of other devices: delete the pod")
        return uid


def _checked(devices: Iterable[str]) -> list[str]:
    named = sorted(devices)
    if not named or len(named) > MOST_DEVICES or not all(_DEVICE.fullmatch(n) for n in named):
        raise AllocationError(f"{', '.join(named)[:100] or 'nothing'} is no set of devices of ours")
    return named
