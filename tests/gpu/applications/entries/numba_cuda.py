# SPDX-License-Identifier: Apache-2.0
"""numba-cuda: its own test suite, which its wheel carries, with the code that its tests link."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..carried import ARCHITECTURE
from ..entry import Entry, Place, Snapshot, Suite

SUITE = "numba-cuda/testing"
#: What its Makefile compiles for GPUs that ours is not, so that fat binaries have several.
OTHER = 75
WAYS = {
    "cubin": ("--cubin",),
    "ptx": ("-ptx",),
    "o": ("-dc",),
    "a": ("-lib",),
    "fatbin": ("--fatbin", f"-gencode=arch=compute_{OTHER},code=sm_{OTHER}"),
}
REAL = (f"-gencode=arch=compute_{ARCHITECTURE},code=sm_{ARCHITECTURE}",)
INTERMEDIATE = (f"-gencode=arch=lto_{ARCHITECTURE},code=lto_{ARCHITECTURE}",)
BOTH = tuple(
    f"-gencode=arch=compute_{number},code=[sm_{number},lto_{number}]"
    for number in (ARCHITECTURE, OTHER)
)


def files(place: Place) -> list[Path]:
    """Those that compile for a GPU or call one."""
    tests = place.package("numba_cuda", "numba", "cuda", "tests")
    folders = ("cudadrv", "cudapy", "doc_examples", "nrt")
    return sorted(f for folder in folders for f in (tests / folder).glob("test_*.py"))


def includes(python: str) -> list[str]:
    """Where its header for memory that kernels allocate is, as nvcc is told."""
    program = "from numba.cuda.memory_management.nrt import get_include; print(get_include())"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return ["-I", done.stdout.strip()] if done.returncode == 0 else []


def compilations(folder: Path, nvcc: Path, python: str) -> list[list[str]]:
    """What the Makefile of its tests does, for one GPU."""
    found = []
    first = [str(nvcc), "-O3", "-rdc", "true", "-std=c++17"]
    for name in ("test_device_functions", "nrt_extern"):
        source = f"{name}.cu"
        more = includes(python) if name == "nrt_extern" else []
        for suffix, words in WAYS.items():
            found.append([*first, *REAL, *words, "-o", f"{name}.{suffix}", source, *more])
        multi = [*first, *BOTH, "--fatbin", "-o", f"{name}_multi.fatbin", source, *more]
        found += [multi, [*first, *INTERMEDIATE, "-dc", "-o", f"{name}.ltoir.o", source, *more]]
        raw = [python, "generate_raw_ltoir.py", "--arch", f"sm_{ARCHITECTURE}"]
        raw += ["-o", str(folder / f"{name}.ltoir"), source]
        found.append([*raw, *(["--nrt"] if more else [])])
    undefined = "undefined_extern"
    found.append([*first, *REAL, "--cubin", "-o", f"{undefined}.cubin", f"{undefined}.cu"])
    return found


def build(sources: Path, to: Path) -> None:
    """Compiles what its tests link; without a toolkit (CUDA_HOME) they skip themselves."""
    del to
    nvcc = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
    if not nvcc.exists():
        print(f"numba-cuda: no {nvcc}: its tests that link code of nvcc's are skipped")
        return
    folder = sources / SUITE
    path = f"{nvcc.parent}:{os.environ.get('PATH', '')}"

    def compiled(command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        return f"{command[-1]}: {done.stderr.strip()[-200:]}" if done.returncode else ""

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        failed = list(pool.map(compiled, compilations(folder, nvcc, sys.executable)))
    if any(failed):
        print(
            "numba-cuda: not all that its tests link was built:", *filter(None, failed), sep="\n  "
        )
    (folder / "built").touch()


def environment(place: Place) -> dict[str, str]:
    """Where that lies."""
    folder = place.sources / SUITE
    built = (folder / "built").exists()
    return {"NUMBA_CUDA_TEST_BIN_DIR": str(folder)} if built else {}


ENTRY = Entry(
    name="numba-cuda",
    title="numba-cuda",
    what="its own test suite",
    parts=(
        Suite(
            "tests",
            files,
            conftest=f"{SUITE}/conftest.py",
            options=("-o", "consider_namespace_packages=true"),
            left_out={"test_profiler.py": "starts and stops a profiler of the process's own"},
            environment=environment,
        ),
    ),
    snapshots=(Snapshot("NVIDIA/numba-cuda", "v0.30.4", ("testing",), of="numba-cuda"),),
    build=build,
    divert=True,  # cuda-bindings calls the runtime for it
    versions=("numba", "numba-cuda", "cuda-core", "cuda-bindings", "numpy"),
)
