# SPDX-License-Identifier: Apache-2.0
"""Files that a node keeps for several owners in bounded room, each owner's in a folder.

Used by sessions.code_cache and workers.compute_cache, which say what an owner is.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PIECE_BYTES = 1 << 20
SEAL_BYTES = 16
Seal = hashlib.blake2b


@dataclass
class Holdings:
    """What each owner holds, the newest first: time, bytes and place of each file."""

    files: dict[Path, list[tuple[float, int, Path]]] = field(default_factory=dict)
    sizes: dict[Path, int] = field(default_factory=dict)

    @classmethod
    def of(cls, owners: Mapping[Path, Iterable[Path]]) -> Holdings:
        """As it is on the disk; what goes meanwhile is not there."""
        held = cls()
        for owner, paths in owners.items():
            files = held.files[owner] = []
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    files.append((status.st_mtime, status.st_size, path))
            files.sort(reverse=True)
            held.sizes[owner] = sum(size for _, size, _ in files)
        return held

    def add(self, owner: Path, size: int, path: Path) -> None:
        """A file that has just been stored."""
        self.files.setdefault(owner, []).insert(0, (path.stat().st_mtime, size, path))
        self.sizes[owner] = self.sizes.get(owner, 0) + size

    def make_room(self, size: int, limit: int) -> None:
        """Removes files until so many bytes fit: the oldest of the owner that holds most."""
        while sum(self.sizes.values()) + size > limit:
            most = max(self.sizes, key=lambda owner: self.sizes[owner], default=None)
            if most is None or not self.files[most]:
                return
            _, freed, path = self.files[most].pop()
            path.unlink(missing_ok=True)
            self.sizes[most] -= freed


def store(descriptor: int, size: int, target: Path) -> None:
    """Copies a file's bytes so that there is all of it at `target`, or nothing; raises OSError."""
    with _scratch_beside(target) as scratch:
        copy(descriptor, size, scratch)
        scratch.rename(target)


def store_sealed(descriptor: int, size: int, target: Path, seal: Seal) -> Path:
    """The same, under a name that ends with the seal of what was copied; where it is."""
    with _scratch_beside(target) as scratch:
        copy(descriptor, size, scratch, seal)
        return scratch.rename(f"{target}.{seal.hexdigest()}")


def seal_of(place: str) -> Seal:
    """A seal of what is kept at this place, which is none of what is kept at another."""
    return hashlib.blake2b(place.encode() + b"\0", digest_size=SEAL_BYTES)


def copy(descriptor: int, size: int, target: Path, seal: Seal | None = None) -> None:
    """Copies a file's bytes; raises OSError."""
    with target.open("wb") as file:
        for offset in range(0, size, PIECE_BYTES):
            piece = os.pread(descriptor, min(PIECE_BYTES, size - offset), offset)
            if seal:
                seal.update(piece)
            file.write(piece)
        os.fchmod(file.fileno(), 0o644)


@contextlib.contextmanager
def _scratch_beside(target: Path) -> Iterator[Path]:
    scratch = target.with_suffix(".new")
    try:
        yield scratch
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
