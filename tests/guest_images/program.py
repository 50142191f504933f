# SPDX-License-Identifier: Apache-2.0
"""Builds a CUDA program for glibc 2.28: nvcc compiles it, zig links it.

Used by conftest.py, and by tests/containers. Needs what `make programs` and `make guest-bundle`
use: nvcc's wheels in build/cuda13 (or a toolkit) and the wheel ziglang.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
SAYS = "the sum of 1000 numbers is 999000"
#: No C++ runtime: the oldest distributions have another one.
PLAIN = (
    "-fno-exceptions,-fno-asynchronous-unwind-tables,-fno-threadsafe-statics,-fno-stack-protector"
)


def build_program(folder: Path, libraries: Path, source: Path = HERE / "add.cu") -> Path:
    """The program of a source; `libraries` holds the bundle's libcudart.so.13."""
    toolkit = programs_build().find_toolkit()
    compiled, program = folder / f"{source.stem}.o", folder / source.stem
    flags = ["-O2", "-std=c++17", "--no-compress", "-cudart=shared", f"-Xcompiler={PLAIN}"]
    flags += ["-gencode=arch=compute_75,code=compute_75"]
    subprocess.run([toolkit.nvcc, *flags, "-c", source, "-o", compiled], check=True)
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.28"]
    link = [f"-L{libraries}", "-lcudart"]
    subprocess.run([*zig, compiled, "-o", program, *link], check=True)
    return program


def programs_build() -> ModuleType:
    """tests/programs/build.py, which knows where nvcc is."""
    spec = importlib.util.spec_from_file_location("build", HERE.parent / "programs" / "build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["build"] = module
    spec.loader.exec_module(module)
    return module
