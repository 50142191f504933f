# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's CUDA runtime inside of programs: whether it is known, and what becomes of it.

Used by run.py and modules.py. Which versions are known, the loader hook says, by the code that it
diverts with (native/client/audit/static_runtime.h); it is asked in this process, which loads it as
any library. No code of the file that is asked about runs.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .configuration import read_settings
from .installation import Installation, find_installation

SETTING = "client.static_runtime"
VARIABLE = "SLUICE_STATIC_RUNTIME"
DIVERT = "divert"
_ROOM = 256


class StaticRuntime(NamedTuple):
    """A version of the runtime that is known: `13.0.48`, and its major version."""

    version: str
    major: int


def wanted(variables: Mapping[str, str]) -> bool:
    """Whether the user wants runtimes diverted, by variable or file."""
    value = read_settings(dict(variables))[SETTING]
    return value.text == DIVERT and not value.problem


def known_runtime(path: Path, found: Installation | None = None) -> StaticRuntime | None:
    """The runtime inside a file; None: there is none, or none that is known for certain."""
    audit = (found or find_installation()).audit
    if audit is None:
        return None
    try:
        ask = ctypes.CDLL(str(audit)).sluice_static_runtime_of
    except (OSError, AttributeError):  # missing, or of an older release
        return None
    ask.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
    ask.restype = ctypes.c_int
    text = ctypes.create_string_buffer(_ROOM)
    if ask(os.fsencode(path), text, _ROOM) != 1:
        return None
    version = text.value.decode().partition(",")[0]
    return StaticRuntime(version, int(version.partition(".")[0]))


def our_runtimes(found: Installation) -> dict[int, Path]:
    """Our libcudart by CUDA's major version."""
    if found.folder is None:
        return {}
    named = ((re.fullmatch(r"libcudart\.so\.([0-9]+)", p.name), p) for p in found.folder.iterdir())
    return {int(match[1]): path for match, path in named if match}


def preloads(found: Installation) -> list[str]:
    """What a program has to have loaded so that a runtime inside of it can lead there, by age."""
    return [str(path) for _, path in sorted(our_runtimes(found).items())]
