# SPDX-License-Identifier: Apache-2.0
"""Says whether the client libraries are sound, and what a program gets without `sluice run`.

Used by check.py and program_check.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from .elf_file import ElfError, ElfFile, read_elf
from .findings import Finding, bad, note, ok
from .installation import (
    AUDIT,
    DRIVER,
    RUNTIME,
    STATIC_RUNTIME,
    WATCHER,
    Installation,
    candidate_folders,
)
from .substitution import served_by


def relink_advice() -> str:
    """What to do with a program that has NVIDIA's runtime inside."""
    advice = (
        "link it with -cudart shared (nvcc), or with CUDA::cudart instead of CUDA::cudart_static "
        "(CMake), or relink it with Sluice's own static runtime"
    )
    for folder in candidate_folders():
        if (folder / STATIC_RUNTIME).exists():
            older = folder / "cuda12" / STATIC_RUNTIME
            also = f"; of CUDA 12 {older}" if older.exists() else ""
            found = f"that is {folder / STATIC_RUNTIME}{also}"
            return f"{advice}: nvcc -cudart static -L {folder} ({found})"
    return f"{advice}, {STATIC_RUNTIME}, which the guest bundle holds in /opt/sluice/lib"


def check_installation(found: Installation) -> list[Finding]:
    """Every part that a guest needs."""
    if found.folder is None:
        places = ", ".join(str(folder) for folder in candidate_folders())
        return [
            bad(
                "libraries",
                f"no {DRIVER} of Sluice in {places}",
                "install the guest bundle (install.sh), or set SLUICE_LIBRARIES to its lib folder",
            )
        ]
    results = []
    for name, path in (
        (DRIVER, found.driver),
        (RUNTIME, found.runtime),
        (AUDIT, found.audit),
    ):
        if path is None:
            results.append(
                bad(
                    "libraries",
                    f"{name} is missing in {found.folder}",
                    "install the guest bundle again (install.sh)",
                )
            )
            continue
        try:
            elf = read_elf(path)
        except ElfError as error:
            results.append(bad("libraries", str(error), "install the guest bundle again"))
            continue
        results.append(ok("libraries", f"{path}{_version(elf)}"))
    others = sorted(served_by(found.folder).names.keys() - {DRIVER, RUNTIME})
    if others:
        results.append(ok("libraries", f"beside them {', '.join(others)}"))
    if found.watcher is None:
        results.append(
            bad(
                "libraries",
                f"{WATCHER} is missing beside {found.folder}: a killed program's vGPU would not "
                "come back",
                "install the guest bundle again (install.sh)",
            )
        )
    return results


def check_loader(found: Installation, cache: str | None = None) -> list[Finding]:
    """What plain programs get where NVIDIA's driver is installed too; nothing else is worth a word.

    `cache` is what `ldconfig -p` prints.
    """
    if found.folder is None:
        return []
    text = loader_cache() if cache is None else cache
    listed = re.findall(rf"^\s*{re.escape(DRIVER)} .*=> (\S+)$", text, re.MULTILINE)
    others = [path for path in listed if Path(path).parent != found.folder]
    if not others:
        return []
    ours_first = listed[0] != others[0]
    say = (
        "programs without `sluice run` use the pool all the same"
        if ours_first
        else "programs without `sluice run` use that"
    )
    change = "sluice-loader off" if ours_first else "sluice-loader on"
    return [
        note(
            "libraries",
            f"{others[0]} is here too (NVIDIA's driver): {say}; to change it: "
            f"{found.folder.parent / 'libexec'}/{change}",
        )
    ]


def loader_cache() -> str:
    """What the loader would find by plain names; empty where there is no ldconfig."""
    path = os.environ.get("PATH", "/usr/bin") + ":/usr/sbin:/sbin"
    program = shutil.which("ldconfig", path=path)
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "-p"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _version(elf: ElfFile) -> str:
    """The version string that a library of ours carries, if it does."""
    mark = b"sluice-version:"
    at = elf.data.find(mark)
    if at < 0:
        return ""
    end = elf.data.find(b"\0", at)
    return " " + elf.data[at + len(mark) : min(end, at + 64)].decode("utf-8", "replace").strip()
