# SPDX-License-Identifier: Apache-2.0
"""`sluice run CMD…`: starts a program so that the CUDA libraries it finds are ours.

Used by main.py and by the host's `sluice`. The loader hook (LD_AUDIT) redirects what a program
links or opens by any path; the search path (LD_LIBRARY_PATH) serves what asks for a bare name where
no NVIDIA library is installed, and what looks there itself. Triton links what it compiles with the
libcuda.so.1 that `ldconfig -p` shows it, which in a guest need not be any; it is told ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .device_file import search_path
from .installation import Installation, find_installation
from .options import WrongUsage, parse
from .static_runtime import DIVERT, VARIABLE, preloads, wanted

#: Of commands that programs expect where there is a GPU.
COMMANDS = Path(__file__).resolve().parent / "commands"


class CannotRun(Exception):
    """Why a program cannot be started through Sluice, and what to do."""


def environment_for(found: Installation, base: dict[str, str]) -> dict[str, str]:
    """`base` with the two loader variables put in front of what they hold already.

    Nothing else changes but for TRITON_LIBCUDA_PATH, which a user's own value overrules; PATH and
    PYTHONPATH on a machine without nvidia-smi and without device files (device_file.py), by which
    programs tell that there is a GPU; and, where runtimes inside of programs are to be diverted,
    for what tells the loader hook so and preloads ours, to which they are to lead.
    """
    if found.folder is None:
        raise CannotRun(
            "the client libraries are not installed: run install.sh of the guest bundle"
        )
    if found.audit is None:
        raise CannotRun(f"libsluice-audit.so is missing in {found.folder}: run install.sh again")
    result = dict(base)
    result["LD_AUDIT"] = _prepend(str(found.audit), base.get("LD_AUDIT"))
    result["LD_LIBRARY_PATH"] = _prepend(str(found.folder), base.get("LD_LIBRARY_PATH"))
    result.setdefault("TRITON_LIBCUDA_PATH", str(found.folder))
    if path := search_path(base.get("PYTHONPATH")):
        result["PYTHONPATH"] = path
    if (path := base.get("PATH")) and not _has_command("nvidia-smi", path):
        result["PATH"] = f"{path}:{COMMANDS}"
    if wanted(base):
        result[VARIABLE] = DIVERT
        for runtime in preloads(found):  # the newest is first in the end
            result["LD_PRELOAD"] = _prepend(runtime, result.get("LD_PRELOAD"))
    return result


def _has_command(name: str, path: str) -> bool:
    return any(os.access(Path(folder) / name, os.X_OK) for folder in path.split(":") if folder)


def _prepend(first: str, rest: str | None) -> str:
    """An empty rest adds nothing: an empty entry would mean the current folder."""
    entries = [entry for entry in (rest or "").split(":") if entry and entry != first]
    return ":".join([first, *entries])


def run(words: Sequence[str]) -> NoReturn:
    """Becomes the program, or stays beside it as its job's launcher (`--share`).

    Exits with 2, 126 or 127 as a shell does where it cannot.
    """
    try:
        options = parse(words)
    except WrongUsage as error:
        print(f"sluice run: {error}", file=sys.stderr)
        sys.exit(2)
    command = options.command
    if not command:
        print("sluice run: name a program", file=sys.stderr)
        sys.exit(2)
    found = find_installation()
    try:
        environment = environment_for(found, {**os.environ, **options.variables})
        if options.share:
            from .share import run_shared  # a plain program starts without what it needs

            sys.exit(run_shared(command, environment, found.driver))
        os.execvpe(command[0], list(command), environment)
    except CannotRun as error:
        print(f"sluice run: {error}", file=sys.stderr)
        sys.exit(126)
    except FileNotFoundError:
        print(f"sluice run: {command[0]}: no such program", file=sys.stderr)
        sys.exit(127)
    except OSError as error:
        print(f"sluice run: {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(126)
