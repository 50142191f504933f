# SPDX-License-Identifier: Apache-2.0
"""Programs that use CUPTI, built against NVIDIA's headers of CUDA 13 or 12 and our libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sluice.config.native_files import find_native

ROOT = Path(__file__).resolve().parents[2]
WHEELS = {13: "nvidia-cuda-cupti==13.0.*", 12: "nvidia-cuda-cupti-cu12==12.9.*"}
FOLDERS = {13: "nvidia/cu13/include", 12: "nvidia/cuda_cupti/include"}


def cupti_headers(major: int) -> Path:
    """The folder of cupti.h, from NVIDIA's wheel, which is unpacked where it is missing."""
    target = ROOT / "build" / f"cupti{major}"
    include = target / FOLDERS[major]
    if not (include / "cupti.h").is_file():
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*install, str(target), WHEELS[major]], check=True, timeout=300)
    return include


def cuda_headers(major: int) -> list[Path]:
    """The folders of cuda.h and its like of that version, which `make programs` unpacks."""
    newest = ROOT / "build" / "cuda13" / "nvidia" / "cu13" / "include"
    older = ROOT / "build" / "cuda12" / "nvidia" / "cuda_runtime" / "include"
    return [newest] if major == 13 else [older, newest]


def build_cupti_program(source: Path, out: Path, major: int) -> Path:
    """Compile a program of that CUDA version by nvcc 13; it finds our libraries when it runs."""
    libraries = find_native("libcupti.so.13").parent
    nvcc = ROOT / "build" / "cuda13" / "nvidia" / "cu13" / "bin" / "nvcc"
    links = _link_folder(out.parent, libraries, major)
    command = [
        *(str(nvcc), "-O2", "-std=c++17", "--no-compress", "-cudart=shared", "-cudadevrt=none"),
        *("-gencode=arch=compute_75,code=compute_75", f"-I{cupti_headers(major)}"),
        *(f"-I{folder}" for folder in cuda_headers(major)),
        *(f"-L{links}", f"-L{libraries}", "-lcuda", f"-l:libcupti.so.{major}"),
        *("-Xlinker", "--allow-shlib-undefined"),
        *("-o", str(out), str(source)),
    ]
    subprocess.run(command, check=True, timeout=300)
    return out


def _link_folder(folder: Path, libraries: Path, major: int) -> Path:
    """A folder in which -lcudart is that version's; among our libraries it is the newest."""
    link = folder / f"link{major}"
    link.mkdir(exist_ok=True)
    runtime = link / "libcudart.so"
    if not runtime.is_symlink():
        runtime.symlink_to(libraries / f"libcudart.so.{major}")
    return link
