# SPDX-License-Identifier: Apache-2.0
"""Whether a process's container was given the folder of a device's socket.

Called by listeners.unix_socket. A descriptor of the socket's file can be passed to another
container, which could connect through /proc/self/fd. What cannot be passed is a mount: only the
engine, from outside, mounts what is the host's. So the process's own mounts are asked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_OCTAL = re.compile(r"\\([0-7]{3})")


class Place(NamedTuple):
    """A folder or file by its file system (major:minor) and its path there."""

    device: str
    path: str


class _Mount(NamedTuple):
    place: Place
    point: str


def mounts_of(mountinfo: str) -> list[_Mount]:
    """The mounts of /proc/PID/mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        words = line.split(" ")
        if len(words) > 4:
            device, root, point = words[2:5]
            found.append(_Mount(Place(device, _plain(root)), _plain(point)))
    return found


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def place_of(path: Path, mountinfo: str) -> Place:
    """Where a path of the reader's own is; the last mount on its longest prefix has it."""
    text = str(path.resolve())
    best: _Mount | None = None
    for mount in mounts_of(mountinfo):
        within = mount.point == "/" or text == mount.point or text.startswith(mount.point + "/")
        if within and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    if best is None:
        raise OSError(f"{path} is on no mount that this process sees")
    rest = text[len(best.point.rstrip("/")) :]
    return Place(best.place.device, (best.place.path.rstrip("/") + rest) or "/")


class GivenFolder:
    """A folder that engines mount into containers."""

    def __init__(self, folder: Path, proc: Path = Path("/proc")) -> None:
        """Raises OSError where it is not there."""
        self._proc = proc
        self.place = place_of(folder, (proc / "self/mountinfo").read_text(errors="replace"))

    def is_given_to(self, pid: int) -> bool:
        """Whether the process has it, or something in it, as a mount of its own."""
        try:
            text = (self._proc / str(pid) / "mountinfo").read_text(errors="replace")
        except OSError:
            return False
        return any(
            mount.place == self.place
            or (
                mount.place.device == self.place.device
                and mount.place.path.startswith(self.place.path + "/")
            )
            for mount in mounts_of(text)
        )
