# SPDX-License-Identifier: Apache-2.0
"""Lays the wheels of a host package into one folder of site-packages, for several Pythons.

Used by host_packages.py. The wheels of one release of a library for several Pythons differ in their
compiled modules, whose names say which Python they are for; everything else is the same in all, and
where it is not the folder is not made. What the lock names is downloaded once and checked against
its hashes.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

CHECKOUT = Path(__file__).resolve().parent.parent
LOCK = CHECKOUT / "packaging" / "release" / "host.txt"
#: What a cluster's image has besides; it names what the host has too, in the same versions.
KUBERNETES_LOCK = LOCK.with_name("kubernetes.txt")
#: Debian 12 and RHEL 8 to 10 have 3.11 or 3.12, Debian 13 has 3.13.
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = tuple(
    f"{name}_x86_64"
    for name in ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1")
)
#: What differs between the wheels of one release on purpose, or is another installer's.
OF_ONE_WHEEL = ("WHEEL", "RECORD", "INSTALLER", "REQUESTED", "direct_url.json")


class SiteError(Exception):
    """Two wheels do not fit into one folder; the message says why."""


def download(folder: Path, pythons: Sequence[str] = PYTHONS, lock: Path = LOCK) -> list[Path]:
    """The wheels that the lock names, for these Pythons; what is there is checked, not fetched."""
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "fetched.txt"
    wanted = f"{' '.join(pythons)}\n{lock.read_text()}"
    if not stamp.exists() or stamp.read_text() != wanted:
        fetch(folder, pythons, lock)
        stamp.write_text(wanted)
    names = locked(lock)
    found = [path for path in sorted(folder.glob("*.whl")) if name_and_version(path) in names]
    found = [path for path in found if _is_for(path, pythons)]
    for path in found:
        if f"--hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}" not in wanted:
            sys.exit(f"host package: {path} is not what {lock.name} says: remove it")
    return found


def fetch(folder: Path, pythons: Sequence[str], lock: Path) -> None:
    """Has pip put them there, which checks their hashes."""
    for python in pythons:
        command = [sys.executable, "-m", "pip", "download", "--quiet"]
        command += ["--disable-pip-version-check", "--require-hashes", "--no-deps"]
        command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
        command += [word for name in PLATFORMS for word in ("--platform", name)]
        command += ["--dest", str(folder), "--find-links", str(folder), "-r", str(lock)]
        if subprocess.run(command, check=False).returncode:
            sys.exit(f"host package: the wheels of {lock.name} for Python {python} were not found")


def locked(lock: Path = LOCK) -> set[tuple[str, str]]:
    """Name and version of everything in the lock that Linux installs."""
    lines = re.findall(r"^([a-z0-9-]+)==([^\s;]+)(.*)$", lock.read_text(), re.MULTILINE)
    return {(name, version) for name, version, rest in lines if "win32" not in rest}


def name_and_version(wheel: Path) -> tuple[str, str]:
    """Of a wheel, as the lock spells them."""
    name, version = wheel.name.split("-")[:2]
    return re.sub("[-_.]+", "-", name).lower(), version


def _is_for(wheel: Path, pythons: Sequence[str]) -> bool:
    """Whether one of the Pythons takes it; abi3 and py3 are every one's."""
    python, abi = wheel.name.removesuffix(".whl").split("-")[-3:-1]
    if abi in ("abi3", "none"):
        return True
    return python in {f"cp{each.replace('.', '')}" for each in pythons}


def lay(wheels: Iterable[Path], site: Path) -> None:
    """Unpacks wheels into a folder. Raises SiteError where two differ."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                place = _place(member.filename)
                if member.is_dir() or place is None:
                    continue
                _put(site / place, archive.read(member), f"{wheel.name}: {member.filename}")


def _place(name: str) -> PurePosixPath | None:
    """Where a wheel's file goes; None for what a host needs not."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise SiteError(f"{name}: leads out of the folder")
    top = path.parts[0]
    if top.endswith(".data"):
        if path.parts[1] in ("purelib", "platlib"):
            return PurePosixPath(*path.parts[2:])
        return None  # scripts and data of others: the host has commands of its own
    if top.endswith(".dist-info") and path.name == "RECORD":
        return None  # the files are the package's, and no pip takes them away
    return path


def _put(target: Path, content: bytes, what: str) -> None:
    if target.exists():
        of_one = target.name in OF_ONE_WHEEL or target.parent.name == "sboms"
        if not of_one and target.read_bytes() != content:
            raise SiteError(f"{what} differs from another wheel's")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    target.chmod(0o755 if content[:4] == b"\x7fELF" else 0o644)  # nothing else is executed
