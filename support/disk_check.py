# SPDX-License-Identifier: Apache-2.0
"""Looks at the folders that a service writes: there, writable, with room and inodes left.

Used by server_check and controller_host_check. A folder that the service makes itself is judged by
the one that it will be made in.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from sluice.guest_runtime.findings import Finding, bad, note, ok

LEAST_MIB = 200
#: Below it people should hear of it.
SCARCE_MIB = 2048
LEAST_INODES = 1000
_ST_RDONLY = os.ST_RDONLY


class Space(NamedTuple):
    """What a file system has left."""

    free_mib: int
    inodes: int  # -1: it does not count them
    read_only: bool


def space_of(folder: Path) -> Space:
    """Of the file system of a folder; raises OSError."""
    about = os.statvfs(folder)
    return Space(
        about.f_bavail * about.f_frsize >> 20,
        about.f_favail if about.f_files else -1,
        bool(about.f_flag & _ST_RDONLY),
    )


def check_folder(setting: str, folder: Path, space: Space | None = None) -> Finding:
    """One folder, which may not be there yet; `space` is what its file system has."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return bad(setting, f"{there} is no folder", f"remove it, or set {setting} to another")
    try:
        space = space or space_of(there)
    except OSError as error:
        return bad(setting, f"{folder}: {error.strerror}", "mount its file system anew")
    if space.read_only:
        return bad(
            setting,
            f"{folder} is on a file system that is mounted read-only",
            "see dmesg for why, and mount it for writing",
        )
    if not os.access(there, os.W_OK | os.X_OK):
        what = "cannot be made" if there != folder else "is not writable"
        if os.geteuid() != 0:
            return note(setting, f"{folder} {what} for you", "run this as root to know")
        return bad(setting, f"{folder} {what}", f"set {setting} to another, or see its mount")
    if space.free_mib < LEAST_MIB:
        return bad(
            setting,
            f"{folder} has {space.free_mib} MiB left",
            "make room, or set it to a folder on a larger disk",
        )
    if 0 <= space.inodes < LEAST_INODES:
        return bad(
            setting,
            f"{folder} has {space.inodes} inodes left: no files can be made soon",
            "remove small files there, or set it to a folder on another disk",
        )
    if space.free_mib < SCARCE_MIB:
        return note(setting, f"{folder} has {space.free_mib} MiB left", "make room in time")
    made = "" if there == folder else ", made when the service starts"
    return ok(setting, f"{folder}: {space.free_mib >> 10} GiB left{made}")
