# SPDX-License-Identifier: Apache-2.0
"""Packages of hundreds of megabytes and more, as small as they travel.

`pack` installs an entry's wheels into a folder here, takes out what it never loads, thins what has
machine code (thinning.py) and cuts the folder into pieces (slices.py). `unpack` puts them together
on the other machine, and makes an interpreter that sees these packages before those that are there,
or none of those (`Carried.alone`), where they are for other CUDA libraries. A file in the packages
has what results have to say of them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from . import slices, thinning

PACKAGES = "site-packages"
NOTES = "notes.json"
#: Of the cards on which results have been: sm_90.
ARCHITECTURE = 90


@dataclass(frozen=True)
class Carried:
    """How an entry's packages travel; patterns of paths below them, `*` also for `/`."""

    alone: bool = False  #: they share none with the machine's
    left_out: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  #: of what is left out
    emptied: tuple[str, ...] = ()  #: libraries that are loaded and whose code never runs
    borrowed: tuple[tuple[str, str], ...] = ()  #: (folder, entry): what it has of it, too


def like(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path is one of those."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def strip(folder: Path, carried: Carried) -> None:
    """Takes out the files that nobody loads, and folders that are empty then."""
    for path in sorted(folder.rglob("*"), reverse=True):
        name = str(path.relative_to(folder))
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif like(name, carried.left_out) and not like(name, carried.kept):
            path.unlink()


def thin(folder: Path, carried: Carried, architecture: int) -> thinning.Thinned:
    """Thins every library of the folder."""
    whole = thinning.Thinned()
    for path in sorted(folder.rglob("*.so*")):
        if path.is_symlink() or not path.is_file():
            continue
        emptied = like(str(path.relative_to(folder)), carried.emptied)
        found = thinning.thin(path, None if emptied else architecture)
        whole.kept += found.kept
        whole.emptied += found.emptied
    return whole


def pack(
    name: str,
    carried: Carried,
    packages: Path,
    architecture: int,
    out: Path,
    piece_bytes: int,
    jobs: int,
) -> list[Path]:
    """The pieces of installed packages; the folder is changed."""
    strip(packages, carried)
    thin(packages, carried, architecture)
    notes = {"machine code": thinning.NOTE.format(architecture)}
    (packages / NOTES).write_text(json.dumps(notes) + "\n")
    return slices.pack(packages, name, out, piece_bytes, jobs)


def make_interpreter(base: Path, folder: Path) -> None:
    """A venv of `base` that sees the packages that lie beside it, and no others."""
    shutil.rmtree(folder / "venv", ignore_errors=True)
    command = [str(base), "-m", "venv", "--without-pip", str(folder / "venv")]
    subprocess.run(command, check=True)
    [own] = (folder / "venv" / "lib").glob("python3.*")
    shutil.rmtree(own / PACKAGES)
    (own / PACKAGES).symlink_to(folder / PACKAGES)


def notes(packages: Path) -> dict[str, str]:
    """What results have to say of an environment; nothing where it is as its makers made it."""
    path = packages / NOTES
    said: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return said


def install(wheels: Iterable[Path], to: Path, options: Sequence[str]) -> None:
    """Wheels into a folder, with these options of pip.

    They were chosen for the other machine's Python; of a file pip asks for the one that runs it.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--disable-pip-version-check", "--ignore-requires-python", "--target", str(to)]
    command += options
    subprocess.run([*command, *map(str, wheels)], check=True)
