# SPDX-License-Identifier: Apache-2.0
"""Programs that make products by cuBLAS and cuBLASLt, and what stands in for both on the node.

The sources are in tests/forwarded/programs; what a product computes depends on every number and
address that its call and its objects were told.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "tests" / "forwarded" / "programs"
BUILT = ROOT / "build" / "forwarded-programs"
NAMES = ("libcublas.so.13", "libcublasLt.so.13")


def build_product_programs() -> Path:
    """Compiles the programs where they are older than their sources; the folder they are in."""
    build = ROOT / "tests" / "programs" / "build.py"
    names = sorted(path.stem for path in SOURCES.glob("*.cu"))
    command = [sys.executable, str(build), "--sources", str(SOURCES), "--out", str(BUILT), *names]
    subprocess.run(command, check=True, timeout=300)
    return BUILT


def make_products(folder: Path) -> Path:
    """Compiles the two libraries for workers, which have accounts of their own; the folder."""
    folder.mkdir(parents=True)
    for name in NAMES:
        options = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", "-o", str(folder / name)]
        subprocess.run(["cc", *options, str(SOURCES / "fake_products.c")], check=True)
    return folder
