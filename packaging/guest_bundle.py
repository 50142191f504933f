# SPDX-License-Identifier: Apache-2.0
"""Builds dist/sluice-guest-x86_64.tar.gz: what a guest installs.

Called by `make guest-bundle`. Owns build/guest (the native client libraries for glibc 2.28, by
zig), build/guest-static (the static runtime, by the system's compiler) and the file in dist. It
refuses to pack libraries that would not load on an old guest or that export other names than
NVIDIA's. The same sources, and for the static runtime the same compiler, give the same bytes.
With --built it compiles nothing and packs the parts of a build for this machine that a CUDA program
needs (`make demo`, whose guest has this machine's system).
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from musl_notice import musl_files

CHECKOUT = Path(__file__).resolve().parent.parent
PARTS = CHECKOUT / "packaging" / "guest"
NAME = "sluice-guest-x86_64"
AUDIT = "libsluice-audit.so"
PROGRAMS = ("sluice-watch",)
STATIC_RUNTIME = "libcudart_static.a"
#: The libraries of a bundle of another build, without NVIDIA's libraries that lie above the driver.
DRIVER_LIBRARIES = (
    *("libcuda.so.1", "libcudart.so.12", "libcudart.so.13"),
    "libnvidia-ml.so.1",
)


def build(folder: Path, jobs: int) -> None:
    """Compiles the client libraries for the oldest glibc that is promised."""
    options = [
        f"-DCMAKE_TOOLCHAIN_FILE={CHECKOUT / 'packaging' / 'zig-toolchain.cmake'}",
        "-DCMAKE_SHARED_LINKER_FLAGS=-s",
        "-DCMAKE_MODULE_LINKER_FLAGS=-s",
        "-DCMAKE_EXE_LINKER_FLAGS=-s",
        "-DSLUICE_STATIC_RUNTIME=OFF",
    ]
    run_cmake(folder, options, ["-j", str(jobs)])


def build_static_runtime(folder: Path, jobs: int) -> None:
    """Compiles libcudart_static.a, and CUDA 12's, with the system's compiler.

    A program that is relinked with it brings the C++ runtime of its own compiler, not zig's.
    """
    for target in ("sluice_cudart_static", "sluice_cudart12_static"):
        run_cmake(folder, [], ["-j", str(jobs), "--target", target])


def run_cmake(folder: Path, options: list[str], what: list[str]) -> None:
    """Configures and builds; ends the program when that fails."""
    environment = dict(os.environ, SLUICE_PYTHON=sys.executable)
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if cmake is None:
        sys.exit("guest bundle: cmake is missing: pip install cmake")
    configure = [
        cmake,
        *("-S", str(CHECKOUT / "native"), "-B", str(folder)),
        f"-DSLUICE_PYTHON={sys.executable}",
        f"-DPython3_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DSLUICE_CLIENT_ONLY=ON",
        "-DSLUICE_TESTS=OFF",
        *options,
    ]
    if shutil.which("ninja") and not (folder / "CMakeCache.txt").exists():
        configure += ["-G", "Ninja"]
    for command in (configure, [cmake, "--build", str(folder), *what]):
        done = subprocess.run(command, check=False, env=environment)
        if done.returncode:
            sys.exit(f"guest bundle: {' '.join(command[:3])} … failed")


def built_file(folder: Path, name: str) -> Path:
    """A library or program of the build."""
    for place in (folder / "lib", folder / "bin", folder):
        if (place / name).exists():
            return (place / name).resolve()
    sys.exit(f"guest bundle: {name} was not built in {folder}")


def client_libraries(folder: Path) -> list[str]:
    """Every library that stands in for one of NVIDIA's, as the build lists them."""
    names = (folder / "client_libraries.txt").read_text().split()
    if "libcuda.so.1" not in names:
        sys.exit(f"guest bundle: {folder}/client_libraries.txt names no libcuda.so.1")
    return sorted(names)


def native_files(folder: Path, static: Path) -> dict[str, tuple[int, bytes]]:
    """What was compiled for the oldest glibc, by its name in the bundle."""
    files: dict[str, tuple[int, bytes]] = {}
    for name in (*client_libraries(folder), AUDIT):
        files[f"lib/{name}"] = (0o755, built_file(folder, name).read_bytes())
    for name in (STATIC_RUNTIME, f"cuda12/{STATIC_RUNTIME}"):
        files[f"lib/{name}"] = (0o644, built_file(static, name).read_bytes())
    for name in PROGRAMS:
        files[f"bin/{name}"] = (0o755, built_file(folder, name).read_bytes())
    return files


def files_of_this_machine(folder: Path) -> dict[str, tuple[int, bytes]]:
    """The same out of a build for this machine, as little as a CUDA program needs."""
    files: dict[str, tuple[int, bytes]] = {}
    for name in (*DRIVER_LIBRARIES, AUDIT):
        files[f"lib/{name}"] = (0o755, stripped(built_file(folder, name)))
    for name in PROGRAMS:
        files[f"bin/{name}"] = (0o755, stripped(built_file(folder, name)))
    return files


def stripped(path: Path) -> bytes:
    """A library or program without what only a debugger reads."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / path.name
        subprocess.run(["strip", "-o", str(copy), str(path)], check=True)
        return copy.read_bytes()


def contents(native: dict[str, tuple[int, bytes]]) -> dict[str, tuple[int, bytes]]:
    """Every file of the bundle: name → (mode, content)."""
    files = {**native, **musl_files()}
    for name in ("sluice", "sluice-run", "nvidia-smi"):
        files[f"bin/{name}"] = (0o755, (PARTS / name).read_bytes())
    for name in ("sluice-pci-setup", "sluice-loader"):
        files[f"libexec/{name}"] = (0o755, (PARTS / name).read_bytes())
    for name in (
        "client.conf",
        "70-sluice.rules",
        "sluice-enrol.service",
        "sluice-enrol.timer",
    ):
        files[f"etc/{name}"] = (0o644, (PARTS / name).read_bytes())
    sys.path.insert(0, str(CHECKOUT / "native" / "codegen"))
    from generate_protocol import generate_client_settings

    generate_client_settings(CHECKOUT / "python")  # a module of those that follow
    modules = CHECKOUT / "guest_runtime"
    for pattern, mode in (("*.py", 0o644), ("hooks/*/*.py", 0o644), ("commands/*", 0o755)):
        for source in sorted(modules.glob(pattern)):
            inside = source.relative_to(modules)
            files[f"python/sluice_guest/{inside}"] = (mode, source.read_bytes())
    files["install.sh"] = (0o755, (PARTS / "install.sh").read_bytes())
    files["README"] = (0o644, (PARTS / "README").read_bytes())
    files["LICENSE"] = (0o644, _license())
    files["VERSION"] = (0o644, f"{_version()}\n".encode())
    return files


def pack(files: dict[str, tuple[int, bytes]], target: Path) -> None:
    """Writes the archive; owner, times and order do not depend on who builds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    with (
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, (mode, content) in sorted(files.items()):
            member = tarfile.TarInfo(f"sluice-guest/{name}")
            member.mode, member.size = mode, len(content)
            archive.addfile(member, io.BytesIO(content))
        for plain, library in sorted(newest_libraries(files).items()):
            link = tarfile.TarInfo(f"sluice-guest/lib/{plain}.so")
            link.type, link.linkname = tarfile.SYMTYPE, library
            archive.addfile(link)
    partial.rename(target)


def newest_libraries(files: Iterable[str]) -> dict[str, str]:
    """What a linker and a dlopen without a version ask for → the newest library of that name."""
    found: dict[str, tuple[int, str]] = {}
    for name in files:
        folder, _, library = name.rpartition("/")
        plain, _, version = library.partition(".so.")
        if folder == "lib" and version:
            found[plain] = max(found.get(plain, (0, "")), (int(version.split(".")[0]), library))
    return {plain: library for plain, (_, library) in found.items()}


def _license() -> bytes:
    path = CHECKOUT / "LICENSE"
    return path.read_bytes() if path.exists() else b"Apache-2.0\n"


def _version() -> str:
    for line in (CHECKOUT / "guest_runtime" / "__init__.py").read_text().splitlines():
        if line.startswith("VERSION"):
            return line.split('"')[1]
    sys.exit("guest bundle: guest_runtime/__init__.py has no VERSION")


def main() -> None:
    """Builds, checks, packs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=CHECKOUT / "build" / "guest")
    parser.add_argument("--dist", type=Path, default=CHECKOUT / "dist")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--built", type=Path, help="pack what was built there, for this machine")
    arguments = parser.parse_args()
    target = arguments.dist / f"{NAME}.tar.gz"
    if arguments.built:
        pack(contents(files_of_this_machine(arguments.built)), target)
        print(f"{target} ({target.stat().st_size / 1e6:.1f} MB), for this machine's system")
        return
    build(arguments.build, arguments.jobs)
    static = arguments.build.with_name(arguments.build.name + "-static")
    build_static_runtime(static, arguments.jobs)
    import library_rules  # needs pyelftools, which packing alone does without

    libraries = client_libraries(arguments.build)
    wrong = [
        line
        for name in (*libraries, AUDIT, *PROGRAMS)
        for line in library_rules.violations(built_file(arguments.build, name), name, libraries)
    ]
    for name in (STATIC_RUNTIME, f"cuda12/{STATIC_RUNTIME}"):
        wrong += library_rules.archive_violations(built_file(static, name))
    if wrong:
        sys.exit("guest bundle: " + "\n".join(wrong))
    pack(contents(native_files(arguments.build, static)), target)
    print(f"{target} ({target.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
