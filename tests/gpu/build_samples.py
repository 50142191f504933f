# SPDX-License-Identifier: Apache-2.0
"""Builds NVIDIA's cuda-samples with a shared CUDA runtime, for run_samples.py.

    python tests/gpu/build_samples.py CUDA_SAMPLES --out FOLDER [--toolkit FOLDER] [NAME ...]

CUDA_SAMPLES is a checkout of github.com/NVIDIA/cuda-samples for CUDA 13; nothing of it is part of
Sluice. What a sample consists of is read from its CMakeLists.txt. Each gets a folder of its own
with the stripped program, its kernel images and its data files; `skipped.json` says what was left
out and why (graphics, concurrent managed access, MPI) and what did not compile. Several toolkits
may be given: folders with include/ and lib/ as the wheels unpack, the first with bin/nvcc.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("0_Introduction", "1_Utilities", "3_CUDA_Features")
# A cubin for the GPU and PTX, uncompressed, for other GPUs and the software GPU.
TARGETS = ("-gencode=arch=compute_90,code=sm_90", "-gencode=arch=compute_75,code=compute_75")
DEVICE_LAUNCH = ("cdp", "graphConditionalNodes")
LIBRARIES = {
    "CUDA::cuda_driver": "-lcuda",
    "CUDA::nvrtc": "-lnvrtc",
    "CUDA::cublas": "-lcublas",
    "OpenMP::OpenMP_CXX": "-Xcompiler=-fopenmp",
}
# What the samples' CMake files say of no GPU's business.
SOURCE = re.compile(r"\.(cu|cpp|c)$")


@dataclass
class Sample:
    """One sample as its CMakeLists.txt describes it."""

    name: str
    folder: Path
    sources: list[str] = field(default_factory=list)
    libraries: list[str] = field(default_factory=list)
    images: list[tuple[str, str, str]] = field(default_factory=list)
    """Kernel images beside the program: -fatbin or -ptx, file, source."""
    skip: str = ""


def read_sample(folder: Path) -> Sample | None:
    """Read what CMakeLists.txt says; None for folders that are no sample."""
    listing = folder / "CMakeLists.txt"
    if not listing.exists():
        return None
    text = re.sub(r"#.*", "", listing.read_text())
    made = re.search(r"add_executable\(\s*(\w+)\s+([^)]*)\)", text)
    if not made:
        return None
    sample = Sample(made.group(1), folder)
    sample.sources = [word for word in made.group(2).split() if SOURCE.search(word)]
    sample.libraries = [flag for name, flag in LIBRARIES.items() if name in text]
    image = re.search(r'set\(CUDA_(?:FATBIN|PTX)_FILE "[^"]*/([^"/]+)"\)', text)
    source = re.search(r'set\(CUDA_KERNEL_SOURCE "[^"]*/([^"/]+)"\)', text)
    if image and source:
        kind = "-fatbin" if image.group(1).endswith(".fatbin") else "-ptx"
        sample.images.append((kind, image.group(1), source.group(1)))
    code = "".join(path.read_text(errors="replace") for path in folder.glob("*.c*"))
    if "find_package(OpenGL)" in text or "find_package(Vulkan)" in text:
        sample.skip = "needs graphics"
    elif "concurrentManagedAccess" in code:
        sample.skip = "needs concurrent access to managed memory"
    elif "find_package(MPI)" in text:
        sample.skip = "needs MPI"
    return sample


def find_samples(samples: Path) -> list[Sample]:
    """Return the samples of the folders, by name."""
    found = [
        read_sample(folder)
        for name in FOLDERS
        for folder in sorted((samples / "Samples" / name).iterdir())
        if folder.is_dir()
    ]
    return [sample for sample in found if sample]


def link_folder(out: Path, toolkits: list[Path]) -> Path:
    """Return a folder with every library under the name that the linker looks for."""
    folder = out / ".link"
    folder.mkdir(parents=True, exist_ok=True)
    for toolkit in toolkits:
        for place in (toolkit / "lib64", toolkit / "lib"):
            for library in place.glob("lib*.so.*") if place.is_dir() else []:
                link = folder / (library.name.split(".so")[0] + ".so")
                if ".alt." not in library.name and not link.is_symlink():
                    link.symlink_to(library.resolve())
    stub = folder / "libcuda.so"
    if not stub.exists():
        imported = ROOT / "native" / "api" / "imported" / "cuda13" / "driver_functions.json"
        names = [entry["name"] for entry in json.loads(imported.read_text())]
        command = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(stub)]
        text = "".join(f"void {name}(void) {{}}\n" for name in names)
        subprocess.run([*command, "-x", "c", "-"], input=text, text=True, check=True)
    return folder


def build(sample: Sample, samples: Path, out: Path, toolkits: list[Path], runtime: str) -> str:
    """Build one sample into its folder; the compiler's complaint, "" when all is well."""
    target = out / sample.name
    target.mkdir(parents=True, exist_ok=True)
    nvcc = str(toolkits[0] / "bin" / "nvcc")
    paths = [f"-I{samples / 'Common'}", *(f"-I{t / 'include'}" for t in toolkits[1:])]
    flags = ["-O2", "-std=c++17", "--no-compress", "-w", "--extended-lambda", *paths]
    device_launch = sample.name.startswith(DEVICE_LAUNCH)
    link = ["-rdc=true"] if device_launch else ["-cudadevrt=none"]
    link += [f"-cudart={runtime}", f"-L{out / '.link'}", *sample.libraries, "-lrt", "-ldl"]
    link += [f"-L{toolkits[0] / name}" for name in ("lib64", "lib")]
    if device_launch:
        # Its PTX would have to be linked with the device runtime's; the cubin has been.
        link += ["-lcudadevrt"]
    program = [nvcc, *flags, *(TARGETS[:1] if device_launch else TARGETS), *link]
    program += ["-Xcompiler=-pthread", "-o", str(target / sample.name)]
    commands = [program + sample.sources]
    for kind, image, source in sample.images:
        targets = TARGETS if kind == "-fatbin" else ("-arch=compute_75",)
        commands.append([nvcc, *flags, *targets, kind, "-o", str(target / image), source])
    for command in commands:
        done = subprocess.run(
            command, cwd=sample.folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return (done.stderr or done.stdout).strip()[-400:]
    subprocess.run(["strip", str(target / sample.name)], check=False)
    for path in sorted(sample.folder.glob("data/*")):
        if "_out" not in path.name:
            shutil.copy(path, target / path.name)
    if "-lnvrtc" in sample.libraries:  # compiles its kernel when it runs
        for path in sample.folder.glob("*_kernel.cu*"):
            shutil.copy(path, target / path.name)
        groups = toolkits[0] / "include" / "cooperative_groups.h"
        shutil.copy(groups, target / groups.name)
        shutil.copytree(groups.with_suffix(""), target / groups.stem, dirs_exist_ok=True)
    return ""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=Path, help="the extracted cuda-samples")
    parser.add_argument("names", nargs="*", help="samples to build; all when none is given")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "samples")
    parser.add_argument("--toolkit", type=Path, action="append", default=[])
    parser.add_argument("--runtime", choices=("shared", "static"), default="shared")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_intermixed_args()
    toolkits = [path.resolve() for path in options.toolkit]
    toolkits = toolkits or [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))]
    out = options.out.resolve()
    link_folder(out, toolkits)
    record = out / "skipped.json"
    skipped: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    wanted = [
        s for s in find_samples(options.samples) if not options.names or s.name in options.names
    ]

    def one(sample: Sample) -> None:
        done = out / sample.name / sample.name
        if done.exists() and not options.names:
            return
        why = sample.skip
        if not why:
            complaint = build(sample, options.samples.resolve(), out, toolkits, options.runtime)
            why = f"does not compile: {complaint}" if complaint else ""
        if why:
            skipped[sample.name] = why
            shutil.rmtree(out / sample.name, ignore_errors=True)
        else:
            skipped.pop(sample.name, None)
        record.write_text(json.dumps(skipped, indent=1, sort_keys=True) + "\n")
        print(f"{sample.name:28} {why.splitlines()[0] if why else 'built'}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, wanted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
