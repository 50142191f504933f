# SPDX-License-Identifier: Apache-2.0
"""Says whether a program's CUDA calls would reach Sluice, from its file alone.

Used by check.py. Three kinds of program miss it: one that has no dynamic loader, one that carries
the CUDA runtime inside, and one built for another major version; everything else `sluice run`
redirects.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from .elf_file import ElfError, ElfFile, is_elf, read_elf
from .findings import Finding, bad, note, ok
from .installation import RUNTIME

_RELINK = (
    "link it with -cudart shared (nvcc), or with CUDA::cudart instead of CUDA::cudart_static "
    "(CMake)"
)
#: Strings of the runtime's error tables, which survive stripping; together nothing else has them.
_STATIC_MARKS = (
    b"cudaErrorCudartUnloading\0",
    b"CUDA driver version is insufficient for CUDA runtime version\0",
)


def find_program(name: str) -> Path | None:
    """The file that a shell would run."""
    found = shutil.which(name)
    return Path(found) if found else None


def check_program(name: str) -> list[Finding]:
    """All findings about the program `name` (a path, or a command on PATH)."""
    path = find_program(name)
    if path is None:
        return [bad("program", f"{name}: no such program", "give its path, or put it on PATH")]
    seen: set[Path] = set()
    while not is_elf(path):
        interpreter = _interpreter(path)
        if interpreter is None or path in seen:
            return [
                bad("program", f"{path} is neither an ELF program nor a script", "name a program")
            ]
        seen.add(path)
        path = interpreter
    results = [note("program", f"{name} is a script, run by {path}")] if seen else []
    try:
        return results + _check_elf(read_elf(path))
    except ElfError as error:
        return [*results, bad("program", str(error), "Sluice serves x86-64 programs")]


def _check_elf(elf: ElfFile) -> list[Finding]:
    if elf.is_static:
        return [
            bad(
                "program",
                f"{elf.path} is linked statically: no library of it can be replaced",
                "link it dynamically; for the CUDA runtime, " + _RELINK,
            )
        ]
    if _has_static_runtime(elf):
        return [
            bad(
                "program",
                f"{elf.path} carries the CUDA runtime inside (libcudart_static), which talks to "
                "NVIDIA's driver by private tables",
                _RELINK,
            )
        ]
    results = []
    cuda = [name for name in elf.needed if re.match(r"lib(cuda|cudart)\.so", name)]
    other = [name for name in cuda if name.startswith("libcudart.so") and name != RUNTIME]
    if other:
        results.append(
            bad(
                "program",
                f"{elf.path} needs {other[0]}, and this installation has {RUNTIME}",
                "rebuild it with CUDA 13, or install the bundle of its CUDA version",
            )
        )
    elif cuda:
        results.append(ok("program", f"{elf.path} needs {', '.join(cuda)}: these are replaced"))
    else:
        results.append(
            note(
                "program",
                f"{elf.path} names no CUDA library itself; what it loads later is replaced too",
            )
        )
    for kind, value in (("RPATH", elf.rpath), ("RUNPATH", elf.runpath)):
        if value and cuda and _path_has_cuda(elf, value):
            results.append(
                note(
                    "program",
                    f"its {kind} ({value}) holds a CUDA library of its own, which would win over "
                    "an "
                    "LD_LIBRARY_PATH",
                    "start it by `sluice run`, whose loader hook comes before it",
                )
            )
    return results


def _has_static_runtime(elf: ElfFile) -> bool:
    """By symbols where there are any, else by what stripping leaves."""
    if (elf.soname or "").startswith("libcudart") or "__cudaRegisterFatBinary" in elf.undefined:
        return False
    return "__cudaRegisterFatBinary" in elf.defined or all(m in elf.data for m in _STATIC_MARKS)


def _path_has_cuda(elf: ElfFile, value: str) -> bool:
    origin = str(elf.path.resolve().parent)
    for entry in value.split(":"):
        folder = Path(entry.replace("$ORIGIN", origin).replace("${ORIGIN}", origin) or ".")
        if any((folder / name).exists() for name in elf.needed if name.startswith("libcuda")):
            return True
    return False


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
