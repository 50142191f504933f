# SPDX-License-Identifier: Apache-2.0
"""A subject (checkpoint_subject.py) with managed memory, of which it holds some when suspended."""

from __future__ import annotations

import ctypes
import sys
from array import array
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu"))

from checkpoint_driver import MIB, size
from checkpoint_subject import Said, Slab, Subject, main

SEED, FACTOR, EVERY = 41, 0x9E3779B1, 3000


class ManagedSubject(Subject):
    """See above."""

    def managed(self, mib: int) -> Said:
        """Filled by the device. The program reads the first half, and writes words of that."""
        at = ctypes.c_uint64()
        self.call("cuMemAllocManaged", ctypes.byref(at), size(mib * MIB), 1)
        self._fill(Slab(at.value, mib * MIB, SEED, 0))
        self.wait()
        self.words = memoryview((ctypes.c_uint32 * (mib * MIB // 4)).from_address(at.value))
        self.words = self.words.cast("B").cast("I")
        self.wanted = array("I", ((i * FACTOR + SEED) & 0xFFFFFFFF for i in range(len(self.words))))
        said = self.held()
        for i in range(0, len(self.words) // 2, EVERY):
            self.words[i] = self.wanted[i] = i
        return said

    def held(self) -> Said:
        """Whether the first half is what it should be, which the program holds."""
        half = len(self.words) // 2
        return {"wrong": int(self.words[:half].tobytes() != self.wanted[:half].tobytes())}

    def all_of_it(self) -> Said:
        """The same of the rest, too, which the device has; then as `check`."""
        wrong = int(self.words.tobytes() != self.wanted.tobytes())
        for i in range(0, len(self.words) // 2, EVERY):
            self.words[i] = self.wanted[i] = (i * FACTOR + SEED) & 0xFFFFFFFF
        return {"wrong": wrong + self.check()["wrong"]}


if __name__ == "__main__":
    main(ManagedSubject)
