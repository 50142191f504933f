# SPDX-License-Identifier: Apache-2.0
"""What stands in for NVIDIA's libraries on a node. Used by the recorder and the tests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def has_compiler() -> bool:
    """Whether they can be made here."""
    return shutil.which("cc") is not None


def stand_in_libraries(folder: Path) -> str:
    """A folder with what stands in for cuBLAS and cuBLASLt."""
    made = folder / "libraries"
    made.mkdir()
    library = made / "libcublas.so.13"
    source = ROOT / "tests" / "server" / "fake_cublas.c"
    options = ["-shared", "-fPIC", "-O1", "-Wl,-soname,libcublas.so.13"]
    subprocess.run(["cc", *options, "-o", library, source], check=True)
    shutil.copy(library, made / "libcublasLt.so.13")
    return str(made)


def vsock_preload(folder: Path) -> str:
    """The library that gives a client a vsock device (vsock_to_unix.c)."""
    made = folder / "vsock_to_unix.so"
    source = Path(__file__).resolve().parent.parent / "vsock_to_unix.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return str(made)
