# SPDX-License-Identifier: Apache-2.0
"""A software GPU that all processes of a test share, as they do a card: for tests of its memory.

What each process has of it is read from the file that they share, and a program may use it beside
the pool, as somebody does who is not one of the pool's.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.config.native_files import SOFTGPU, find_native

from .suspended import SUBJECT, Told

PROCESSES, DEVICES, MIB = 128, 64, 1 << 20  # as softgpu/memory/shared_file.h has them
WORD_BYTES, RECORD_BYTES = 8, 128


class SharedCard:
    """One device; `settings` are the environment of who uses it."""

    def __init__(self, path: Path, memory_mib: int, context_mib: int, **settings: str) -> None:
        self.path = path
        self.settings = {
            "SLUICE_SOFTGPU_SHARED_FILE": str(path),
            "SLUICE_SOFTGPU_MEMORY_MIB": str(memory_mib),
            "SLUICE_SOFTGPU_CONTEXT_MIB": str(context_mib),
            **settings,
        }

    def taken_mib(self, pid: int, device: int = 0) -> int:
        """What a process has of it, or of another device that is shared so."""
        held = self.path.read_bytes()
        records = PROCESSES * DEVICES * WORD_BYTES
        found = 0
        for place in range(PROCESSES):
            [owner] = struct.unpack_from("<I", held, records + place * RECORD_BYTES)
            [taken] = struct.unpack_from("<Q", held, (place * DEVICES + device) * WORD_BYTES)
            found += taken if owner == pid else 0
        return found // MIB

    def beside(self, folder: Path, **more: str) -> Told:
        """A program that uses it without the pool."""
        library = folder / "libcuda.so.1"
        if not library.exists():
            library.symlink_to(find_native(SOFTGPU))
        told = Told(
            [sys.executable, str(SUBJECT)],
            {"LD_LIBRARY_PATH": str(folder), **self.settings, **more},
        )
        told.ask("begin")
        return told


@contextmanager
def shared_card(memory_mib: int, context_mib: int = 0, **settings: str) -> Iterator[SharedCard]:
    """Until nobody uses it any more."""
    with tempfile.NamedTemporaryFile(prefix="sluice-softgpu-") as shared:
        Path(shared.name).chmod(0o666)  # workers have accounts of their own
        yield SharedCard(Path(shared.name), memory_mib, context_mib, **settings)
