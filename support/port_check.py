# SPDX-License-Identifier: Apache-2.0
"""Says which process of this host listens on a port, where that is none of Sluice's services.

Used by server_check and controller_host_check: a service that cannot listen ends, and whoever has
its port may look alive.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from sluice.guest_runtime.findings import Finding, bad

_LISTENS = "0A"
_OURS = re.compile(rb"sluice[.-](controller|server)\b")
_ROOT = Path("/")


def check_taken(what: str, port: int, setting: str, root: Path = _ROOT) -> list[Finding]:
    """A finding where another program has the port; none where nobody has, or it is not known."""
    for pid in holders(port, root):
        folder = root / "proc" / str(pid)
        try:
            command = (folder / "cmdline").read_bytes()
            name = (folder / "comm").read_text().strip()
        except OSError:
            continue  # it has ended
        if not _OURS.search(command):
            return [
                bad(
                    what,
                    f"port {port} is taken by {name} (process {pid}), which is none of Sluice's",
                    f"end it, or set {setting} to another port",
                )
            ]
    return []


def holders(port: int, root: Path = _ROOT) -> list[int]:
    """Processes with a socket that listens on a TCP port; only root is shown other users'."""
    inodes = set(_inodes(port, root))
    if not inodes:
        return []
    found = set()
    for link in (root / "proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):  # another user's, or it has ended
            target = str(link.readlink())
            if target.startswith("socket:[") and target[8:-1] in inodes:
                found.add(int(link.parts[-3]))
    return sorted(found)


def _inodes(port: int, root: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (root / "proc/net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTENS and words[1].endswith(f":{port:04X}"):
                yield words[9]
