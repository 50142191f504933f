#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs what the tests on a GPU need, for a machine with a GPU, a Python and nothing else.

    make bench gpu-host GPU_PYTHON=3.12    # dist/sluice-gpu-host.tar.gz, for the machine's Python

There, without a network:

    tar -xzf sluice-gpu-host.tar.gz && cd sluice-gpu-host
    make test-gpu    # or: PYTHONPATH=$PWD/site python3 tests/gpu/run.py

The archive holds the tracked files, the generated Python, the native programs and libraries, the
built test programs, and in site/ the packages that the services and the tests' harness import, in
the versions that are installed here: the generated gRPC code fits those. The same inputs make the
same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import io
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).resolve().parent.parent
ARCHIVE = CHECKOUT / "dist" / "sluice-gpu-host.tar.gz"
FOLDER = "sluice-gpu-host"
MOST_BYTES = 64 << 20

#: glibc that wheels may want; pip takes each for itself alone.
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux1")
GENERATED = ("python/sluice/rpc", "python/sluice/protocol", "guest_runtime/client_settings.py")
PROGRAMS = (
    "sluice-worker",
    "sluice-relay",
    "sluice-arbiter",
    "sluice-doorbell",
    "sluice-watch",
    "hostile_libraries",
    "delaying_network",
)
BUILT = (
    "build/programs",
    "build/bench/calls",
    "build/bench/managed",
    "build/cuda12/nvidia/cuda_runtime/lib/libcudart.so.12",
)
#: Tracked, and of no use there: recordings, images, fuzzing.
LEFT_OUT = ("tests/compatibility/", "native/", "docs/", "packaging/")
ALSO = ("native/api/", "docs/measurements/")


#: What the tests' harness imports besides the project's own dependencies.
HARNESS = ("pytest",)


class PackError(Exception):
    """Something to be packed is missing, or all of it is too much; the text says what to do."""


def needed(python: str) -> dict[str, str]:
    """The project's dependencies, with theirs: versions by name, as they are installed here."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    found: dict[str, str] = {}
    asked = [Requirement(text) for text in (*project["dependencies"], *HARNESS)]
    while asked:
        wanted = asked.pop()
        name = canonicalize_name(wanted.name)
        if name in found:
            continue
        found[name] = version(name)
        for text in requires(name) or ():
            further = Requirement(text)
            conditions = [
                {"python_version": python, "extra": extra} for extra in ("", *wanted.extras)
            ]
            if not further.marker or any(further.marker.evaluate(c) for c in conditions):
                asked.append(further)
    return found


def install_packages(site: Path, python: str) -> None:
    """Puts the packages into a folder, as they are for that Python."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--target", str(site), "--no-deps", "--no-compile", "--only-binary=:all:"]
    command += ["--implementation", "cp", "--python-version", python]
    for platform in PLATFORMS:
        command += ["--platform", f"{platform}_x86_64"]
    wanted = [f"{name}=={release}" for name, release in sorted(needed(python).items())]
    if subprocess.run([*command, *wanted], check=False).returncode:
        raise PackError(
            f"pip found no wheels of {', '.join(wanted)} for Python {python}; give --python the "
            "version that the GPU host has"
        )


def tracked() -> Iterator[Path]:
    """The files of this checkout that are worth the way."""
    listed = subprocess.run(
        ["git", "-C", str(CHECKOUT), "ls-files", "-z"], capture_output=True, check=True, text=True
    )
    for name in listed.stdout.split("\0"):
        if name and (name.startswith(ALSO) or not name.startswith(LEFT_OUT)):
            yield CHECKOUT / name


def built() -> Iterator[Path]:
    """What `make bench` and what gpu-host needs have made."""
    native = CHECKOUT / "build" / "native"
    wanted = [*(CHECKOUT / name for name in (*GENERATED, *BUILT)), native / "lib"]
    wanted += [native / "bin" / name for name in PROGRAMS]
    for place in wanted:
        if not place.exists():
            raise PackError(f"{place} is missing: run `make bench gpu-host`")
        yield from files_below(place)


def files_below(place: Path) -> Iterator[Path]:
    """The files in a folder, or the file itself; what was compiled for another Python is none."""
    if not place.is_dir():
        yield place
        return
    for path in sorted(place.rglob("*")):
        if (path.is_file() or path.is_symlink()) and "__pycache__" not in path.parts:
            yield path


def pack(archive: Path, site: Path) -> None:
    """Writes the archive; raises PackError."""
    named = {str(path.relative_to(CHECKOUT)): path for path in (*tracked(), *built())}
    named |= {f"site/{path.relative_to(site)}": path for path in files_below(site)}
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in sorted(named):
            tar.add(named[name], f"{FOLDER}/{name}", recursive=False, filter=nobodys)
    size = len(packed.getvalue())
    if size > MOST_BYTES:
        raise PackError(f"the archive has {size >> 20} MiB, more than {MOST_BYTES >> 20}")
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(packed.getvalue())
    print(f"{archive}: {size / (1 << 20):.1f} MiB, {len(named)} files")


def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without who packed it, and when."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default="3.12", help="the GPU host's Python, 3.11 or newer")
    parser.add_argument("--out", type=Path, default=ARCHIVE)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-site-") as folder:
        try:
            install_packages(Path(folder), options.python)
            pack(options.out, Path(folder))
        except PackError as error:
            print(f"pack_gpu_host.py: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
