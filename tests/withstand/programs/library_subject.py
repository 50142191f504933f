# SPDX-License-Identifier: Apache-2.0
"""A subject (checkpoint_subject.py) with handles of cuBLAS, each with a workspace of its own.

tests/server/fake_cublas.c, which stands in for it on the node, counts the words that are wrong.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gpu"))

from checkpoint_subject import Said, Subject, main

pointer, ref = ctypes.c_void_p, ctypes.byref


class LibrarySubject(Subject):
    """See above."""

    def __init__(self) -> None:
        super().__init__()
        self._blas = ctypes.CDLL("libcublas.so.13")
        self._handles: list[pointer] = []

    def _right(self, status: int) -> None:
        if status:
            raise SystemExit(f"cuBLAS: status {status}")

    def make(self, count: int) -> Said:
        """So many handles more."""
        for _ in range(count):
            handle = pointer()
            self._right(self._blas.cublasCreate_v2(ref(handle)))
            self._handles.append(handle)
        return {}

    def end(self) -> Said:
        """The oldest one's end."""
        self._right(self._blas.cublasDestroy_v2(self._handles.pop(0)))
        return {}

    def workspaces(self) -> Said:
        """What of them is not what it was."""
        wrong = 0
        for handle in self._handles:
            count = ctypes.c_int(-1)
            self._right(self._blas.cublasGetSmCountTarget(handle, ref(count)))
            wrong += count.value
        return {"wrong": wrong}


if __name__ == "__main__":
    main(LibrarySubject)
