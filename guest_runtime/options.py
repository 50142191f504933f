# SPDX-License-Identifier: Apache-2.0
"""The options of `sluice run`, and the variables by which they reach the client library.

Used by run.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import configuration

#: Options of `sluice run`, what they set for the program, and their least and largest value.
OPTIONS = {
    "--vgpu": ("SLUICE_VGPU", 1, 64),
    "--gmem": ("SLUICE_GMEM", 1, 1 << 30),
    "--ratio": ("SLUICE_RATIO", 1, 100),
    "--processes": ("SLUICE_JOB_PROCESSES", 1, 256),
    "--priority": ("SLUICE_PRIORITY", -1000, 1000),
    "--wait": ("SLUICE_WAIT", -1, 1 << 30),
}
#: Those that take text: what they set, and what is wanted.
TEXTS = {
    "--project": ("SLUICE_PROJECT", *configuration.PROJECT),
    "--gpu-model": ("SLUICE_GPU_MODEL", *configuration.MODEL),
    "--gpu-architecture": ("SLUICE_GPU_ARCHITECTURE", *configuration.ARCHITECTURE),
    "--mode": ("SLUICE_MODE", *configuration.MODE),
    "--label": ("SLUICE_LABELS", *configuration.LABELS),  # may be given several times
}
#: Those that say yes.
FLAGS = {
    "--cross-node": "SLUICE_CROSS_NODE",
    "--preempt": "SLUICE_PREEMPT",
    "--same-gpu": "SLUICE_SAME_GPU",
}


class WrongUsage(Exception):
    """Options that `sluice run` does not have; the text says which."""


class RunOptions(NamedTuple):
    """What stands before the program on the command line."""

    share: bool
    variables: Mapping[str, str]
    command: Sequence[str]


def parse(words: Sequence[str]) -> RunOptions:
    """Reads `[--share] [--vgpu N] … [--] CMD…`; raises WrongUsage."""
    rest = list(words)
    share = False
    variables: dict[str, str] = {}
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name, equal, value = word.partition("=")
        if word == "--":
            break
        if word == "--share":
            share = True
        elif word in FLAGS:
            variables[FLAGS[word]] = "1"
        elif name in OPTIONS or name in TEXTS:
            if not equal:
                value = rest.pop(0) if rest else ""
            variable, value = _checked(name, value)
            if name == "--label" and variable in variables:
                value = f"{variables[variable]},{value}"
            variables[variable] = value
        else:
            known = ", ".join(("--share", *FLAGS, *OPTIONS, *TEXTS))
            raise WrongUsage(
                f"there is no option {word}; {known} are known (-- before a program whose name "
                "begins so)"
            )
    if not share and "SLUICE_JOB_PROCESSES" in variables:
        raise WrongUsage("--processes belongs to --share")
    return RunOptions(share, variables, rest)


def _checked(name: str, value: str) -> tuple[str, str]:
    """The variable that an option sets, and its value; raises WrongUsage."""
    if name in TEXTS:
        variable, pattern, wanted = TEXTS[name]
        if not re.fullmatch(pattern, value):
            raise WrongUsage(f"{name} wants {wanted}")
        return variable, value
    variable, low, high = OPTIONS[name]
    if not re.fullmatch("-?[0-9]{1,18}", value) or not low <= int(value) <= high:
        raise WrongUsage(f"{name} wants a whole number from {low} to {high}")
    return variable, value
