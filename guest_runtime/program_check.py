# SPDX-License-Identifier: Apache-2.0
"""Says whether a program's CUDA calls would reach Sluice, from its files alone.

Used by check.py. A program misses it that has no dynamic loader, or one that knows no hook (musl),
or whose loader ignores the hook (setuid), that carries the CUDA runtime inside, or that was built
for another major version; everything else `sluice run` redirects. Of Python, the packages that the
command imports are looked at too.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from .elf_file import ElfError, ElfFile, is_elf, read_elf
from .findings import Finding, bad, note
from .installation import find_installation
from .installation_check import relink_advice
from .modules import look_at
from .python_check import check_python, is_python
from .substitution import LOCAL, Served, served_by

_MOST_LIBRARIES = 200


def find_program(name: str) -> Path | None:
    """The file that a shell would run."""
    found = shutil.which(name)
    return Path(found) if found else None


def check_program(name: str, arguments: Sequence[str] = ()) -> list[Finding]:
    """All findings about the program `name` (a path, or a command on PATH) with its arguments."""
    path = find_program(name)
    if path is None and "/" in name and Path(name).is_file():
        path = Path(name)
        if not is_elf(path):  # a library need not be executable
            return [bad("program", f"{name} may not be run", f"chmod +x {name}")]
    if path is None:
        return [bad("program", f"{name}: no such program", "give its path, or put it on PATH")]
    words = list(arguments)
    seen: set[Path] = set()
    while not is_elf(path):
        interpreter = _interpreter(path)
        if interpreter is None or path in seen:
            return [
                bad("program", f"{path} is neither an ELF program nor a script", "name a program")
            ]
        seen.add(path)
        words.insert(0, str(path))
        path = interpreter
    results = [note("program", f"{name} is a script, run by {path}")] if seen else []
    served = served_by(find_installation().folder)
    try:
        elf = read_elf(path)
    except ElfError as error:
        return [*results, bad("program", str(error), "Sluice serves x86-64 programs")]
    obstacles = _obstacles(elf)
    if obstacles:
        return results + obstacles
    results += _check_files(elf, served)
    if is_python(path):
        results += check_python(path, words, served)
    return results


def _obstacles(elf: ElfFile) -> list[Finding]:
    """Why no library of the program can be replaced at all."""
    if elf.is_static:
        return [
            bad(
                "program",
                f"{elf.path} is linked statically: no library of it can be replaced",
                "link it dynamically; for the CUDA runtime, " + relink_advice(),
            )
        ]
    if "ld-musl" in (elf.interpreter or ""):
        return [
            bad(
                "program",
                f"{elf.path} is built for musl ({elf.interpreter}), whose loader has no hook, and "
                "the CUDA libraries need glibc 2.28 or later",
                "run it in a system or container with glibc (Debian, Ubuntu, RHEL, SUSE, …)",
            )
        ]
    privilege = _privilege(elf.path)
    if privilege:
        return [
            bad(
                "program",
                f"{elf.path} {privilege}: the loader ignores LD_AUDIT and LD_LIBRARY_PATH for it",
                "start it as the user that it becomes, or take the privilege away; a program "
                "without a search path of its own is also served where install.sh put the "
                "libraries into the loader's cache",
            )
        ]
    return []


def _privilege(path: Path) -> str | None:
    """What makes the kernel start the program in secure mode; None if nothing does."""
    try:
        status = path.stat()
    except OSError:
        return None
    if status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid():
        return "is setuid"
    if status.st_mode & stat.S_ISGID and status.st_gid != os.getegid():
        return "is setgid"
    try:
        os.getxattr(path.resolve(), "security.capability")
    except OSError:
        return None
    return None if os.geteuid() == 0 else "has file capabilities"


def _check_files(elf: ElfFile, served: Served) -> list[Finding]:
    """The program, and the libraries that it finds beside itself."""
    files = [elf.path, *_libraries_of(elf, served)]
    seen = look_at(files, served)
    results = seen.findings("program", str(elf.path))
    if not seen.anything:
        results.append(
            note(
                "program",
                f"{elf.path} names no CUDA library itself; what it loads later is replaced too",
            )
        )
    for kind, value in (("RPATH", elf.rpath), ("RUNPATH", elf.runpath)):
        folders = _folders(elf, value)
        if any((folder / name).exists() for folder in folders for name in seen.replaced):
            results.append(
                note(
                    "program",
                    f"its {kind} ({value}) holds a CUDA library of its own, which would win over "
                    "an LD_LIBRARY_PATH",
                    "start it by `sluice run`, whose loader hook comes before it",
                )
            )
    return results


def _libraries_of(elf: ElfFile, served: Served) -> Iterator[Path]:
    """The libraries of the program's own, through search paths; not what ours stand for."""
    waiting: list[tuple[ElfFile, list[Path]]] = [(elf, [])]
    known: set[str] = set()
    given = [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    while waiting and len(known) < _MOST_LIBRARIES:
        current, inherited = waiting.pop()
        own = _folders(current, current.rpath) + inherited
        folders = own + given + _folders(current, current.runpath)
        for name in current.needed:
            if name in known or LOCAL.fullmatch(name) or served.replacement(name) is not None:
                continue
            path = next((f / name for f in folders if (f / name).is_file()), None)
            if path is None:
                continue
            known.add(name)
            yield path
            try:
                waiting.append((read_elf(path, symbols=()), own))
            except ElfError:
                continue


def _folders(elf: ElfFile, value: str | None) -> list[Path]:
    """The folders of a search path that the file carries."""
    origin = str(elf.path.resolve().parent)
    return [
        Path(entry.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) or ".")
        for entry in (value.split(":") if value else [])
    ]


def _interpreter(path: Path) -> Path | None:
    try:
        with path.open("rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    if not first.startswith(b"#!"):
        return None
    words = os.fsdecode(first[2:]).split()
    if not words:
        return None
    if Path(words[0]).name == "env" and len(words) > 1:
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return find_program(names[0]) if names else None
    return Path(words[0]) if Path(words[0]).exists() else None
