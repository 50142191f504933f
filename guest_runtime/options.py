# SPDX-License-Identifier: Apache-2.0
"""The options of `sluice run`, and the variables by which they reach the client library.

Used by run.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import client_settings

_SETTINGS = [setting for setting in client_settings.ALL if setting.option]
#: Options of `sluice run` that take a number.
NUMBERS = {s.option: s for s in _SETTINGS if isinstance(s.accepts, range)}
#: Those that say yes.
FLAGS = {s.option: s.variables[0] for s in _SETTINGS if s.flag}
#: Those that take text; `--label` may be given several times.
TEXTS = {s.option: s for s in _SETTINGS if s.option not in NUMBERS and s.option not in FLAGS}


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
        elif name in NUMBERS or name in TEXTS:
            if not equal:
                value = rest.pop(0) if rest else ""
            variable, value = _checked(name, value)
            if name == "--label" and variable in variables:
                value = f"{variables[variable]},{value}"
            variables[variable] = value
        else:
            known = ", ".join(("--share", *FLAGS, *NUMBERS, *TEXTS))
            raise WrongUsage(
                f"there is no option {word}; {known} are known (-- before a program whose name "
                "begins so)"
            )
    if not share and "SLUICE_JOB_PROCESSES" in variables:
        raise WrongUsage("--processes belongs to --share")
    return RunOptions(share, variables, rest)


def _checked(name: str, value: str) -> tuple[str, str]:
    """The variable that an option sets, and its value; raises WrongUsage."""
    setting = TEXTS.get(name) or NUMBERS[name]
    if isinstance(setting.accepts, range):
        low, high = setting.accepts[0], setting.accepts[-1]
        if not re.fullmatch("-?[0-9]{1,18}", value) or not low <= int(value) <= high:
            raise WrongUsage(f"{name} wants a whole number from {low} to {high}")
    elif setting.accepts and value not in setting.accepts:
        raise WrongUsage(f"{name} wants one of {', '.join(setting.accepts)}")
    elif setting.text and not re.fullmatch(setting.text[0], value):
        raise WrongUsage(f"{name} wants {setting.text[1]}")
    return setting.variables[0], value
