# SPDX-License-Identifier: Apache-2.0
"""Brings an entry's packages and test suites to a machine without a network.

`prepare` downloads what requirements/ENTRY.txt pins (wheels for the other machine's Python, checked
by their hashes) and takes the snapshots out of their repositories, packs both into a tar and cuts
it into pieces, which ENTRY.json lists with their hashes. `unpack` checks the pieces, puts them
together again and installs. With `--installed` the packages are those that the other machine has:
only the snapshots travel, what is compiled is compiled there, and a suite that is another version's
than the package there is said so. `lock` writes the hashes of a list of names and versions. Large
packages travel by carried.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from . import carried, slices
from .entry import Entry, Place, Snapshot

MIB = 1 << 20
#: What one piece has at most.
PIECE_BYTES = 60 * MIB
PLATFORMS = (
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux_2_24",
    "manylinux_2_17",
    "manylinux2014",
    "manylinux1",
)
LINE = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)(?P<hashes>( --hash=sha256:[0-9a-f]{64})*)"
)


class PackageError(Exception):
    """What is missing or does not fit; the text says what to do."""


def wanted_python(python: str) -> list[str]:
    """What pip is told of the other machine."""
    words = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    for platform in PLATFORMS:
        words += ["--platform", f"{platform}_x86_64"]
    return words


def download(requirements: Path, python: str, folder: Path, *, hashes: bool) -> None:
    """The wheels of a list, and no others: a list names what its packages need, too."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--dest", str(folder), "--requirement", str(requirements)]
    command += [*wanted_python(python), *(["--require-hashes"] if hashes else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PackageError(
            f"pip could not fetch {requirements.name} for Python {python}: {done.stderr[-800:]}"
        )


def plain(name: str) -> str:
    """A package's name as names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(entry: Entry) -> dict[str, str]:
    """The versions that its list pins, by package."""
    named: dict[str, str] = {}
    for line in entry.requirements.read_text().splitlines() if entry.requirements.exists() else ():
        if line.startswith("#") or not line.strip():
            continue
        match = LINE.fullmatch(line)
        if match is None:
            raise PackageError(f"{entry.requirements.name}: {line!r} is not NAME==VERSION")
        named[match["name"]] = match["version"]
    return named


def lock(entry: Entry, pythons: list[str]) -> None:
    """Writes the hashes of the list's wheels into it, for each of these Pythons."""
    lines = entry.requirements.read_text().splitlines()
    named = pinned(entry)
    digests: dict[str, set[str]] = {plain(name): set() for name in named}
    with tempfile.TemporaryDirectory() as temporary:
        bare = Path(temporary) / entry.requirements.name
        bare.write_text("".join(f"{name}=={version}\n" for name, version in named.items()))
        for python in pythons:
            wheels = Path(temporary) / python
            download(bare, python, wheels, hashes=False)
            for wheel in wheels.glob("*.whl"):
                digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
                digests[plain(wheel.name.split("-")[0])].add(digest)
    locked = [
        " ".join(
            [f"{name}=={version}", *(f"--hash=sha256:{d}" for d in sorted(digests[plain(name)]))]
        )
        for name, version in named.items()
    ]
    comments = [line for line in lines if line.startswith("#")]
    entry.requirements.write_text("\n".join([*comments, *locked]) + "\n")


def repository(snapshot: Snapshot, folder: Path) -> Path:
    """The Git directory of a snapshot, below `folder`."""
    owner, _, name = snapshot.repository.partition("/")
    for place in (f"{owner}+{name}", name, snapshot.repository):
        for inner in ("", "repo", ".git"):
            if (folder / place / inner / "HEAD").exists():
                return folder / place / inner
    raise PackageError(
        f"{snapshot.repository} is not in {folder}: clone it there as {owner}+{name} (it needs the "
        f"commit {snapshot.commit})"
    )


def take_snapshot(snapshot: Snapshot, repositories: Path, to: Path) -> None:
    """Its folders, as they are at its commit."""
    git = ["git", "-C", str(repository(snapshot, repositories)), "archive", "--format=tar"]
    done = subprocess.run(
        [*git, snapshot.commit, *snapshot.folders], capture_output=True, check=False
    )
    if done.returncode:
        raise PackageError(
            f"{snapshot.repository} has no {' '.join(snapshot.folders)} at {snapshot.commit}: "
            f"{done.stderr.decode(errors='replace').strip()}"
        )
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(to / snapshot.repository.partition("/")[2], filter="data")


def some_of(requirements: Path, names: Collection[str], to: Path) -> None:
    """The lines of a list that are those packages'."""
    wanted = {plain(name) for name in names}
    lines = requirements.read_text().splitlines() if requirements.exists() else []
    kept = {plain(line.partition("==")[0]): line for line in lines if "==" in line}
    if lacking := wanted - kept.keys():
        raise PackageError(f"{requirements.name} has no {', '.join(sorted(lacking))}")
    to.write_text("".join(f"{line}\n" for name, line in kept.items() if name in wanted))


def fill(
    entry: Entry, python: str, repositories: Path, folder: Path, also: Collection[str] | None
) -> None:
    """Wheels and sources into a folder; `also`: only these packages, the other machine has all."""
    (folder / "wheels").mkdir()
    (folder / "sources").mkdir()
    wanted = folder / "requirements.txt"
    if also is not None:
        some_of(entry.requirements, also, wanted)
    elif entry.requirements.exists():
        shutil.copy(entry.requirements, wanted)
    if wanted.exists() and wanted.stat().st_size:
        download(wanted, python, folder / "wheels", hashes=True)
    for snapshot in entry.snapshots:
        take_snapshot(snapshot, repositories, folder / "sources")
    if entry.build and also is None:
        entry.build(folder / "sources", folder / "sources")


def prepare(
    entry: Entry,
    python: str,
    repositories: Path,
    out: Path,
    *,
    installed: Collection[str] | None = None,
    piece_bytes: int = PIECE_BYTES,
    architecture: int = carried.ARCHITECTURE,
) -> list[Path]:
    """The entry's pieces, and its list of them; returns the pieces.

    `installed`: the other machine has the packages, but for these, and compiles for itself.
    `architecture`: of its GPU, 90 for sm_90, where machine code is thinned.
    """
    out.mkdir(parents=True, exist_ok=True)
    if entry.carried:
        return prepare_carried(entry, entry.carried, python, out, piece_bytes, architecture)
    for old in out.glob(f"{entry.name}.tar.*"):
        old.unlink()
    pieces: list[Path] = []
    with tempfile.TemporaryDirectory(prefix="entry-") as temporary:
        folder = Path(temporary)
        fill(entry, python, repositories, folder, installed)
        archive = folder / "all.tar"
        mode = "w" if any((folder / "wheels").iterdir()) else "w:xz"  # wheels are compressed
        with tarfile.open(archive, mode) as tar:  # type: ignore[call-overload]
            for name in ("wheels", "sources"):
                tar.add(folder / name, arcname=name)
        with archive.open("rb") as whole:
            while piece := whole.read(piece_bytes):
                path = out / f"{entry.name}.tar.{len(pieces):03}"
                path.write_bytes(piece)
                pieces.append(path)
    listed = {
        "entry": entry.name,
        "python": python,
        "installed": installed is not None,
        "pieces": {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in pieces},
    }
    (out / f"{entry.name}.json").write_text(json.dumps(listed, indent=1) + "\n")
    return pieces


def prepare_carried(
    entry: Entry,
    how: carried.Carried,
    python: str,
    out: Path,
    piece_bytes: int,
    architecture: int,
) -> list[Path]:
    """The pieces of an entry whose packages are thinned."""
    with tempfile.TemporaryDirectory(prefix="entry-") as temporary:
        wheels, packages = Path(temporary) / "wheels", Path(temporary) / carried.PACKAGES
        download(entry.requirements, python, wheels, hashes=True)
        options = ["--no-compile", *wanted_python(python)]
        carried.install(sorted(wheels.glob("*.whl")), packages, options)
        shutil.rmtree(wheels)
        jobs = len(os.sched_getaffinity(0))
        pieces = carried.pack(entry.name, how, packages, architecture, out, piece_bytes, jobs)
    said = {"entry": entry.name, "python": python, "carried": True}
    (out / f"{entry.name}.json").write_text(json.dumps(said, indent=1) + "\n")
    return pieces


def join(entry: Entry, pieces: Path, said: dict[str, str], archive: Path) -> None:
    """The pieces, each checked, into one file."""
    with archive.open("wb") as whole:
        for name, digest in said.items():
            path = pieces / name
            if not path.exists():
                raise PackageError(f"{entry.name}: the piece {name} is missing in {pieces}")
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != digest:
                raise PackageError(f"{entry.name}: {name} is not the piece that was prepared")
            whole.write(data)


def asked(python: Path, program: str, *arguments: str) -> Any:
    """What a program of that interpreter says, in JSON; it sees nothing of what runs this."""
    command = [str(python), "-c", program, *arguments]
    plainly = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=plainly)
    if done.returncode:
        raise PackageError(f"{python} does not answer: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)


def site_packages(python: Path) -> list[Path]:
    """Where an interpreter finds packages."""
    said = asked(
        python, "import json, sys; print(json.dumps([p for p in sys.path if 'packages' in p]))"
    )
    return [Path(text) for text in said if Path(text).is_dir()]


def make_environment(base: Path, folder: Path, *before: Path) -> None:
    """A venv that sees what `base` sees, also where that is a venv itself; `before`: and first.

    `--system-site-packages` alone shows the packages of the interpreter below it. What looks for
    libraries in packages (cuda.pathfinder) asks site for its prefixes, so it is told of this one.
    """
    venv = [str(base), "-m", "venv", "--without-pip", "--system-site-packages", str(folder)]
    subprocess.run(venv, check=True)
    [own] = (folder / "lib").glob("python3.*/site-packages")
    prefix = asked(base, "import json, sys; print(json.dumps(sys.prefix))")
    lines = [f"import sys; sys.path.insert(0, {str(path)!r})\n" for path in before]
    lines += [f"import site; site.PREFIXES.append({prefix!r})\n"]
    lines += [f"import site; site.addsitedir({str(path)!r})\n" for path in site_packages(base)]
    (own / "beside.pth").write_text("".join(lines))


def borrow(folder: Path, how: carried.Carried) -> None:
    """What other entries' packages have for it, where its own look for that: beside them."""
    for name, entry in how.borrowed:
        lender = folder.parent / entry / carried.PACKAGES / name
        if not lender.is_dir():
            raise PackageError(f"{lender} is not there: unpack {entry} before {folder.name}")
        own = folder / carried.PACKAGES / name
        own.mkdir(exist_ok=True)
        for each in lender.iterdir():
            if not (own / each.name).exists():
                (own / each.name).symlink_to(each)


def unpack(entry: Entry, pieces: Path, base: Path, into: Path) -> Place:
    """Installs what `prepare` made, beside the packages of the interpreter `base`."""
    listing = pieces / f"{entry.name}.json"
    if not listing.exists():
        raise PackageError(f"{listing} is not there: `prepare {entry.name}` makes it")
    said = json.loads(listing.read_text())
    folder = into / entry.name
    if said.get("carried"):
        slices.finish(entry.name, pieces, folder / carried.PACKAGES)
        if entry.carried:
            borrow(folder, entry.carried)
        if entry.carried and entry.carried.alone:
            carried.make_interpreter(base, folder)
        else:
            make_environment(base, folder / "venv", folder / carried.PACKAGES)
        return place_of(entry, into)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = folder / "all.tar"
    join(entry, pieces, said["pieces"], archive)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()
    wheels = sorted((folder / "wheels").glob("*.whl"))
    if not wheels:  # nothing is to be added to what the interpreter has
        (folder / "python").write_text(str(base))
    else:
        make_environment(base, folder / "venv")
    place = place_of(entry, into)
    if wheels:
        carried.install(wheels, place.packages, wanted_python(said["python"]))
    shutil.rmtree(folder / "wheels")
    if entry.build and said.get("installed"):
        entry.build(place.sources, place.sources)
    return place


def versions(place: Place, names: Iterable[str]) -> dict[str, str]:
    """Of the packages of those names, as the place's interpreter finds them."""
    program = (
        "import importlib.metadata as m, json, sys\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    found: dict[str, str] = asked(place.python, program, *names)
    return found


def other_suites(entry: Entry, place: Place) -> dict[str, str]:
    """Packages whose suite is not of the version that is installed: the suite's versions."""
    suites = {s.of: pinned(entry)[s.of] for s in entry.snapshots if s.of}
    found = versions(place, suites)
    return {name: version for name, version in suites.items() if found.get(name) != version}


def place_of(entry: Entry, into: Path) -> Place:
    """Where the entry is, once it was unpacked."""
    folder = into / entry.name
    said = folder / "python"
    python = Path(said.read_text()) if said.exists() else folder / "venv" / "bin" / "python"
    if not python.exists():
        raise PackageError(f"{entry.name} is not unpacked in {into}: `unpack` does so")
    found = site_packages(python)
    if not found:
        raise PackageError(f"{python} has no packages at all")
    own = next((path for path in found if path.is_relative_to(folder)), found[0])
    return Place(python, own, folder / "sources", tuple(p for p in found if p != own))
