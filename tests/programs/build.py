#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds every program of this folder into build/programs, or the ones named on the command line.

Run by `make demo`, the tests and developers. The compiler is nvcc 13: from CUDA_HOME or
/usr/local/cuda where that is version 13, else from NVIDIA's PyPI wheels in build/cuda13, which are
installed there when missing. What comes out needs libcudart.so.13 (and libcuda.so.1 where it calls
the driver API) by name only, has no search path, and carries its PTX uncompressed, which the
software GPU reads and a real GPU compiles. A program is rebuilt when its sources or flags change.

The same programs for CUDA 12 lie in build/programs/cuda12: the same compiler (PyPI has no nvcc 12)
with CUDA 12.9's headers and libcudart.so.12 of NVIDIA's wheel in build/cuda12. What nvcc itself
emits for the host is one interface in both versions. Only the software GPU runs them, so the device
runtime, which is linked for a real one, is left away, and so are programs that include Thrust: that
of 13 refuses CUDA 12's headers. They are built where all programs are, or by `--cuda 12`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WHEELS = (
    "nvidia-cuda-nvcc==13.0.*",
    "nvidia-cuda-crt==13.0.*",
    "nvidia-nvvm==13.0.*",
    "nvidia-cuda-runtime==13.0.*",
    "nvidia-cuda-cccl==13.0.*",
    "nvidia-cuda-profiler-api==13.0.*",
    "nvidia-nvml-dev==13.0.*",
)
RUNTIME_12_WHEEL = "nvidia-cuda-runtime-cu12==12.9.*"
CUDA_12 = "cuda12"
FLAGS = (
    "-O2",
    "-std=c++17",
    "--no-compress",
    "-gencode=arch=compute_75,code=compute_75",
    "-cudart=shared",
    "-cudadevrt=none",
    "-Xcompiler=-Wall,-Wextra,-pthread",
)
# For a real GPU, where the device runtime is called: relocatable code, linked with it.
LINKED_FLAGS = (
    "-O2",
    "-std=c++17",
    "-rdc=true",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=sm_90",
    "-cudart=shared",
    "-cudadevrt=static",
    "-Xcompiler=-Wall,-Wextra,-pthread",
)
DEVICE_RUNTIME_CALL = re.compile(r"\bcudaGraphSetConditional\s*\(")
THRUST = re.compile(r"^#include <thrust/", re.MULTILINE)
DRIVER_CALL = re.compile(r"\bcu[A-Z]\w+\s*\(")


@dataclass(frozen=True)
class Toolkit:
    nvcc: Path
    runtime: Path
    """The libcudart to link against."""
    include: Path | None = None
    """Headers that come before the compiler's own."""

    @property
    def flags(self) -> list[str]:
        """Where this toolkit's headers and runtime are."""
        headers = [f"-I{self.include}"] if self.include else []
        return [*headers, f"-L{self.runtime.parent}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", help="names without .cu; all when none is given")
    parser.add_argument("--sources", type=Path, default=HERE, help="where their sources are")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "programs")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cuda", type=int, action="append", choices=(12, 13), help="its version")
    options = parser.parse_args()
    folder = options.sources
    sources = [folder / f"{name}.cu" for name in options.programs] or sorted(folder.glob("*.cu"))
    missing = [source.name for source in sources if not source.is_file()]
    if missing:
        parser.error(f"no such program: {', '.join(missing)}")
    versions = options.cuda or ([13] if options.programs else [12, 13])
    failures = build(sources, options.out, options.jobs, versions)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def build(
    sources: list[Path], out: Path, jobs: int = 2, versions: Sequence[int] = (13,)
) -> list[str]:
    """Builds what changed and returns the compiler's complaints, none when all is well."""
    toolkit = find_toolkit()
    folders = [(out, toolkit)] if 13 in versions else []
    if 12 in versions:
        folders.append((out / CUDA_12, toolkit_12(toolkit)))
    links = [prepare_link_dir(folder, kit) for folder, kit in folders]
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        wanted: list[tuple[Path, str, tuple[str, ...], Path, Toolkit, Path]] = [
            (source, source.stem, FLAGS, folder, kit, link)
            for (folder, kit), link in zip(folders, links, strict=True)
            for source in sources
            if kit is toolkit or not THRUST.search(source.read_text())
        ]
        wanted += [
            (source, f"{source.stem}_linked", LINKED_FLAGS, out, toolkit, links[0])
            for source in sources
            if 13 in versions and DEVICE_RUNTIME_CALL.search(source.read_text())
        ]
        results = pool.map(lambda one: build_one(*one), wanted)
        return [message for message in results if message]


def find_toolkit() -> Toolkit:
    for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if home and is_version_13(Path(home) / "bin" / "nvcc"):
            for folder in ("lib64", "lib"):
                runtime = Path(home) / folder / "libcudart.so.13"
                if runtime.exists():
                    return Toolkit(Path(home) / "bin" / "nvcc", runtime)
    unpacked = ROOT / "build" / "cuda13" / "nvidia" / "cu13"
    if not is_version_13(unpacked / "bin" / "nvcc"):
        install_wheels(ROOT / "build" / "cuda13", WHEELS)
    return Toolkit(unpacked / "bin" / "nvcc", unpacked / "lib" / "libcudart.so.13")


def toolkit_12(compiler: Toolkit) -> Toolkit:
    """The same compiler with the headers and the runtime of CUDA 12.9."""
    wheel = ROOT / "build" / "cuda12"
    unpacked = wheel / "nvidia" / "cuda_runtime"
    if not (unpacked / "include" / "cuda_runtime.h").is_file():
        install_wheels(wheel, (RUNTIME_12_WHEEL,))
    return Toolkit(compiler.nvcc, unpacked / "lib" / "libcudart.so.12", unpacked / "include")


def is_version_13(nvcc: Path) -> bool:
    if not nvcc.is_file():
        return False
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    return "release 13." in version.stdout


def install_wheels(target: Path, wheels: tuple[str, ...]) -> None:
    print(f"installing {', '.join(wheels)} into {target}")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target)]
    subprocess.run([*command, *wheels], check=True)


def prepare_link_dir(out: Path, toolkit: Toolkit) -> Path:
    """A folder with the two libraries under the names that the linker looks for.

    The driver is a stub of our own with the public names, so that none need be installed.
    """
    folder = out / ".link"
    folder.mkdir(parents=True, exist_ok=True)
    runtime = folder / "libcudart.so"
    if not (runtime.is_symlink() and runtime.readlink() == toolkit.runtime):
        runtime.unlink(missing_ok=True)
        runtime.symlink_to(toolkit.runtime)
    driver = folder / "libcuda.so"
    imported = ROOT / "native" / "api" / "imported" / "cuda13" / "driver_functions.json"
    if not driver.exists() or driver.stat().st_mtime < imported.stat().st_mtime:
        names = [entry["name"] for entry in json.loads(imported.read_text())]
        stub = "".join(f"void {name}(void) {{}}\n" for name in names)
        command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(driver)]
        subprocess.run([*command, "-x", "c", "-"], input=stub, text=True, check=True)
    return folder


def build_one(
    source: Path, name: str, flags: tuple[str, ...], out: Path, toolkit: Toolkit, link_dir: Path
) -> str:
    program = out / name
    stamp = out / f".{name}.stamp"
    libraries = ["-lcuda"] if DRIVER_CALL.search(source.read_text()) else []
    options = [*flags, f"-L{link_dir}", *toolkit.flags, *libraries]
    key = fingerprint(source, options, toolkit)
    if program.exists() and stamp.exists() and stamp.read_text() == key:
        return ""
    command = [str(toolkit.nvcc), *options, "-o", str(program), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0 or result.stderr:
        # A warning is a failure each time, and not only the first time on a machine.
        stamp.unlink(missing_ok=True)
        return f"{source.name} does not compile without complaint:\n{result.stdout}{result.stderr}"
    stamp.write_text(key)
    print(f"built {program}", file=sys.stderr)
    return ""


def fingerprint(source: Path, flags: list[str], toolkit: Toolkit) -> str:
    digest = hashlib.sha256()
    for path in (source, *sorted(HERE.glob("*.h"))):
        digest.update(path.read_bytes())
    digest.update("\0".join([*flags, str(toolkit.nvcc)]).encode())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
