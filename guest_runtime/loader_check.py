# SPDX-License-Identifier: Apache-2.0
"""Says by whom each CUDA library of this machine is served, and what overtakes Sluice's.

Used by doctor.py. A program under `sluice run` gets ours for each name that substitution.py knows;
other programs get what the loader's cache and LD_LIBRARY_PATH say. What is preloaded comes before
all of that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from .findings import Finding, bad, note, ok
from .installation import AUDIT, DRIVER, Installation
from .installation_check import loader_cache
from .substitution import CUDA, LOCAL, Served, served_by

PRELOAD = Path("/etc/ld.so.preload")
LOADER_CONFIG = Path("/etc/ld.so.conf.d/00-sluice.conf")
_LISTED = re.compile(r"^\s*(\S+) \(([^)]*)\) => (\S+)$", re.MULTILINE)
_MOST_NAMED = 20


def check_loading(
    found: Installation,
    cache: Optional[str] = None,  # noqa: UP045 - Python 3.9
    environment: Optional[Mapping[str, str]] = None,  # noqa: UP045
    preload: Path = PRELOAD,
) -> list[Finding]:
    """Preloads, search paths, and each CUDA library that the loader's cache knows."""
    variables = os.environ if environment is None else environment
    text = loader_cache() if cache is None else cache
    served = served_by(found.folder)
    results = _preloaded(variables, preload)
    results += _audited(variables)
    results += _searched(variables, found)
    results += _cached(text, found, served)
    return results


def _preloaded(variables: Mapping[str, str], preload: Path) -> list[Finding]:
    try:
        of_all = preload.read_text(errors="replace")
    except OSError:
        of_all = ""
    results = []
    for where, text in (("LD_PRELOAD", variables.get("LD_PRELOAD", "")), (str(preload), of_all)):
        names = [each for each in re.split(r"[\s:]+", re.sub(r"#.*", "", text)) if each]
        for name in names:
            if CUDA.fullmatch(Path(name).name):
                results.append(
                    bad(
                        "loader",
                        f"{where} puts {name} before every other library, ours too",
                        f"take it out of {where}",
                    )
                )
            else:
                results.append(note("loader", f"{where} loads {name} into every program"))
    return results


def _audited(variables: Mapping[str, str]) -> list[Finding]:
    others = [
        each
        for each in variables.get("LD_AUDIT", "").split(":")
        if each and Path(each).name != AUDIT
    ]
    return [
        note(
            "loader",
            f"LD_AUDIT has {each}: two hooks decide who loads what",
            "if a library is not found under `sluice run`, unset LD_AUDIT and try again",
        )
        for each in others
    ]


def _searched(variables: Mapping[str, str], found: Installation) -> list[Finding]:
    """What plain programs find in LD_LIBRARY_PATH before the cache."""
    for entry in variables.get("LD_LIBRARY_PATH", "").split(":"):
        if not entry:
            continue
        folder = Path(entry)
        if found.folder is not None and folder == found.folder:
            return [ok("loader", f"LD_LIBRARY_PATH finds Sluice's libraries in {folder}")]
        if (folder / DRIVER).exists():
            return [
                note(
                    "loader",
                    f"LD_LIBRARY_PATH has {folder / DRIVER}: programs without `sluice "
                    "run` use that",
                    "unset LD_LIBRARY_PATH where the pool is wanted",
                )
            ]
    return []


def _cached(text: str, found: Installation, served: Served) -> list[Finding]:
    results: list[Finding] = []
    first: dict[str, str] = {}
    for name, kind, path in _LISTED.findall(text):
        if "x86-64" in kind and CUDA.fullmatch(name) and not LOCAL.fullmatch(name):
            first.setdefault(name, path)
    ours = {n for n, p in first.items() if found.folder and Path(p).parent == found.folder}
    if ours:
        results.append(
            ok("loader", f"without `sluice run` too, Sluice's are found: {', '.join(sorted(ours))}")
        )
    elif found.folder is not None:
        results.append(
            note(
                "loader",
                "programs use the pool under `sluice run` only",
                f"for all of them: {found.folder.parent / 'libexec' / 'sluice-loader'} on",
            )
            if not LOADER_CONFIG.exists()
            else bad(
                "loader",
                f"{LOADER_CONFIG} names a folder whose libraries the cache lacks",
                "as root: ldconfig",
            )
        )
    for name, path in sorted(first.items())[:_MOST_NAMED]:
        if name in ours:
            continue
        if served.replacement(name):
            results.append(ok("library", f"{path} is NVIDIA's; under `sluice run` ours is taken"))
        elif other := served.other_version(name):
            results.append(
                note(
                    "library",
                    f"{path} is another major version than our {other}, and goes past it",
                    f"programs have to be built for {other}",
                )
            )
        elif found.folder is not None:
            results.append(
                note(
                    "library", f"{path} has no counterpart of ours: what it calls needs a GPU here"
                )
            )
    return results
