# SPDX-License-Identifier: Apache-2.0
"""Builds the rig guest's initramfs: busybox, the few kernel modules that reach the root, one init
script.

Called by images.py. Writes the ``newc`` archive itself, since a fresh Debian has no cpio(1), and
leaves it uncompressed, since unpacking costs more under emulation than reading.
"""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
FOLDERS = ("dev", "proc", "sys", "run", "tmp", "ro", "rw", "newroot", "etc", "bin", "sbin", "lib")


class _Archive:
    """A newc cpio archive in memory; parents are added by themselves."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._names: set[str] = set()

    def add(
        self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)
    ) -> None:
        if name in self._names:
            return
        parent = name.rpartition("/")[0]
        if parent:
            self.add(parent, stat.S_IFDIR | 0o755)
        self._names.add(name)
        encoded = name.encode() + b"\0"
        fields = (len(self._names), mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(encoded), 0)
        self._data += b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        self._pad()
        self._data += data
        self._pad()

    def finish(self) -> bytes:
        self.add("TRAILER!!!", 0)
        return bytes(self._data)

    def _pad(self) -> None:
        self._data += b"\0" * (-len(self._data) % 4)


def module_files(modules_root: Path, release: str, names: tuple[str, ...]) -> list[Path]:
    """The files of ``names`` and of all they depend on, in loading order."""
    ordered: list[Path] = []
    for name in names:
        shown = subprocess.run(
            ["/sbin/modprobe", "-d", str(modules_root), "-S", release, "--show-depends", name],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for line in shown.splitlines():
            verb, _, path = line.strip().partition(" ")
            if verb == "insmod" and Path(path.strip()) not in ordered:
                ordered.append(Path(path.strip()))
    return ordered


def build(
    target: Path,
    init: Path,
    modules_root: Path,
    release: str,
    names: tuple[str, ...],
    files: Mapping[str, Path] | None = None,
) -> None:
    """Writes the archive to ``target``; ``names`` are loaded by init in the order given.

    ``files`` are more files, by their path in the guest.
    """
    archive = _Archive()
    for folder in FOLDERS:
        archive.add(folder, stat.S_IFDIR | 0o755)
    archive.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
    archive.add("dev/null", stat.S_IFCHR | 0o666, device=(1, 3))
    archive.add("bin/busybox", stat.S_IFREG | 0o755, BUSYBOX.read_bytes())
    applets = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout
    for applet in applets.split():
        archive.add(f"bin/{applet}", stat.S_IFLNK | 0o777, b"busybox")
    loaded = []
    for path in module_files(modules_root, release, names):
        inside = f"lib/modules/{path.name}"
        archive.add(inside, stat.S_IFREG | 0o644, path.read_bytes())
        loaded.append(f"/{inside}\n")
    archive.add("modules.list", stat.S_IFREG | 0o644, "".join(loaded).encode())
    for inside, source in (files or {}).items():
        mode = stat.S_IFREG | (source.stat().st_mode & 0o777)
        archive.add(inside, mode, source.read_bytes())
    archive.add("init", stat.S_IFREG | 0o755, init.read_bytes())
    target.write_bytes(archive.finish())
