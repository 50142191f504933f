# SPDX-License-Identifier: Apache-2.0
"""Finds NVIDIA's libraries (cuBLAS, cuDNN, …) on this host, which workers call for their clients.

Called by server.start_up (folders for the workers), by `sluice-server --check` (what there is, for
people) and by the tests' static server, on GPU hosts with a bare Python: so it imports nothing
else of Sluice.
Only files are looked at; nothing is loaded here. It promises folders in the order in which a
worker shall look, without those that a worker could not read or that others than root and this
account could write: what lies there runs inside every session's worker.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LIBRARIES = {
    "cuBLAS": "libcublas.so.13",
    "cuBLASLt": "libcublasLt.so.13",
    "cuDNN": "libcudnn.so.9",
    "cuFFT": "libcufft.so.12",
    "cuRAND": "libcurand.so.10",
    "cuSOLVER": "libcusolver.so.12",
    "cuSPARSE": "libcusparse.so.12",
    "NCCL": "libnccl.so.2",
}
"""What Sluice forwards, by the name that people know; native/api/libraries has the same SONAMEs."""
CUDA_12 = {
    "cuBLAS": "libcublas.so.12",
    "cuBLASLt": "libcublasLt.so.12",
    "cuFFT": "libcufft.so.11",
    "cuSOLVER": "libcusolver.so.11",
}
"""Those that have another SONAME in CUDA 12, for its clients (native/api/imported/cuda12)."""
HELPERS = (
    *("libnvJitLink.so.13", "libnvrtc.so.13"),
    *("libnvJitLink.so.12", "libnvrtc.so.12"),
    *("libcupti.so.13", "libcupti.so.12"),
)
"""What those load besides."""

TOOLKITS = (
    *("/usr/local/cuda/lib64", "/usr/local/cuda-13*/lib64"),
    "/usr/local/cuda-12*/lib64",
)
TARGETS = ("/usr/local/cuda-*/targets/x86_64-linux/lib",)
SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib")
PYTHONS = (
    "/usr/lib/python3*/*-packages",
    "/usr/local/lib/python3*/*-packages",
    "/opt/*/lib/python3*/site-packages",
    "/opt/*/.venv/lib/python3*/site-packages",
    "/opt/conda/envs/*/lib/python3*/site-packages",
)
CONDA = ("/opt/conda/lib", "/opt/conda/envs/*/lib")


@dataclass(frozen=True, slots=True)
class FoundLibrary:
    """One of LIBRARIES as a worker will find it; without a path there is none."""

    title: str
    soname: str
    path: Path | None = None
    version: str = ""


def search_folders(setting: Sequence[str] = (), say: list[str] | None = None) -> list[Path]:
    """The folders for `sluice-worker --libraries`; an empty setting means to look everywhere.

    What had to be left out is added to `say`, a line each.
    """
    if setting:
        return [Path(folder) for folder in setting]
    folders: list[Path] = []
    taken: set[Path] = set()
    for folder in _candidates():
        real = folder.resolve()
        if real in taken or not any(
            (real / soname).exists()
            for soname in (*LIBRARIES.values(), *CUDA_12.values(), *HELPERS)
        ):
            continue
        taken.add(real)
        if problem := _untrusted(real):
            if say is not None:
                say.append(
                    f"the libraries in {real} are not used: {problem}; to use them all the same, "
                    "name the folder in [server] cuda_libraries"
                )
            continue
        folders.append(folder)
    return folders


def find_libraries(
    folders: Iterable[Path], names: Mapping[str, str] = LIBRARIES
) -> list[FoundLibrary]:
    """Every library of `names`, found in these folders or in the system's, or missing."""
    places = [*folders, *(Path(folder) for folder in SYSTEM)]
    found = []
    for title, soname in names.items():
        path = next((p / soname for p in places if (p / soname).exists()), None)
        found.append(FoundLibrary(title, soname, path, _version(path) if path else ""))
    return found


def cuda_12_line(folders: Iterable[Path]) -> str:
    """What serves clients of CUDA 12 here, in one line."""
    found = find_libraries(folders, CUDA_12)
    own = [f"{x.title} {x.version}".strip() for x in found if x.path]
    if not own:
        return "clients of CUDA 12 are served by the libraries of CUDA 13"
    others = [x.title for x in found if not x.path]
    served = f"; by CUDA 13's {', '.join(others)}" if others else ""
    return f"clients of CUDA 12 are served by its own {', '.join(own)}{served}"


def _candidates() -> Iterator[Path]:
    for pattern in (*TOOLKITS, *TARGETS):
        yield from sorted(_existing(pattern), key=_newest, reverse=True)
    packages = [Path(p) for p in sys.path if p and Path(p).name.endswith("-packages")]
    for pattern in PYTHONS:
        packages += sorted(_existing(pattern), key=_newest, reverse=True)
    for package in packages:
        yield from sorted(package.glob("nvidia/*/lib"), key=_newest, reverse=True)
    for pattern in CONDA:
        yield from sorted(_existing(pattern))


def _existing(pattern: str) -> Iterator[Path]:
    return Path("/").glob(pattern.lstrip("/"))


def _newest(folder: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(folder))]


def _untrusted(folder: Path) -> str | None:
    """Why a worker should not take code from there; None if it may."""
    root = os.geteuid() == 0
    for place in (folder, *folder.parents):
        status = place.stat()
        if status.st_uid not in (0, os.geteuid()):
            return f"{place} belongs to another account (uid {status.st_uid})"
        sticky = status.st_mode & stat.S_ISVTX
        if status.st_mode & stat.S_IWOTH and not sticky:
            return f"everybody may write {place}"
        if root and not status.st_mode & stat.S_IXOTH:
            return f"{place} is closed to the account of the workers"
    return None


def _version(path: Path) -> str:
    """The version in the file's full name, or of the Python package that brought it; "" else."""
    if number := re.search(r"\.so\.(\d+\.\d[\d.]*)$", path.resolve().name):
        return number[1]
    # site-packages/nvidia/cu13/lib/libx.so.1: the package's RECORD names it
    if len(path.parents) < 4 or path.parents[2].name != "nvidia":
        return ""
    packages = path.parents[3]
    inside = f"{path.relative_to(packages)},"
    for record in packages.glob("nvidia_*.dist-info/RECORD"):
        try:
            text = record.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if text.startswith(inside) or f"\n{inside}" in text:
            return record.parent.name.removesuffix(".dist-info").rpartition("-")[2]
    return ""
