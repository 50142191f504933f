# SPDX-License-Identifier: Apache-2.0
"""The client's settings and where each came from: environment, then the user's file, then the
system's.

Used by check.py and channels.py to explain what the native library will do; the library reads the
same files itself (native/client/core/config.cc). Both have their table from
native/api/client_settings.yaml.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from .client_settings import ALL, TRUE, Setting
from .ini_lines import read_lines

SYSTEM_FILE = Path("/etc/sluice/client.conf")

#: What stands in the files; the rest has variables only.
SETTINGS = tuple(setting for setting in ALL if setting.key)


class Value(NamedTuple):
    """A setting's text and where it stands."""

    text: str
    origin: str
    #: Why the native library will refuse it, or None.
    problem: str | None = None

    @property
    def true(self) -> bool:
        """The value of a flag."""
        return self.text in TRUE


def read_file(path: Path) -> dict[str, tuple[str, int]]:
    """`section.key` → (value, line number); a missing file is empty."""
    found: dict[str, tuple[str, int]] = {}
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return found
    for line in read_lines(text):
        if line.key:
            found[f"{line.section}.{line.key}"] = (line.value, line.number)
    return found


def read_settings(
    environment: dict[str, str] | None = None, system_file: Path = SYSTEM_FILE
) -> dict[str, Value]:
    """Every setting as the native library will see it, by key."""
    variables = dict(os.environ) if environment is None else environment
    files = []
    home = variables.get("HOME")
    if home:
        files.append(Path(home) / ".sluice" / "client.conf")
    files.append(system_file)
    contents = [(path, read_file(path)) for path in files]
    return {setting.key: _find(setting, variables, contents) for setting in SETTINGS}


def _find(
    setting: Setting,
    variables: dict[str, str],
    contents: list[tuple[Path, dict[str, tuple[str, int]]]],
) -> Value:
    for name in setting.variables:
        if variables.get(name):
            text = variables[name]
            return Value(text, f"environment variable {name}", _problem(setting, text))
    for path, values in contents:
        if setting.key in values:
            text, line = values[setting.key]
            return Value(text, f"{path}:{line}", _problem(setting, text))
    return Value(setting.default, "default")


def _problem(setting: Setting, text: str) -> str | None:
    if isinstance(setting.accepts, range):
        low, high = setting.accepts[0], setting.accepts[-1]
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not low <= int(text) <= high:
            return f"a whole number from {low} to {high} is wanted"
    elif isinstance(setting.accepts, tuple) and text not in setting.accepts:
        return f"one of {', '.join(setting.accepts)} is wanted"
    elif setting.text and not re.fullmatch(setting.text[0], text):
        return f"{setting.text[1]} is wanted"
    return None


def visible_vgpus(text: str | None, count: int) -> int:
    """How many of `count` vGPUs CUDA_VISIBLE_DEVICES leaves; None leaves all.

    The rules of native/client/core/config.h: a list of numbers ends at the first that is no
    device's and is void if one comes twice; of names there are as many as are listed.
    """
    if text is None:
        return count
    found: list[int] = []
    for entry in text.split(","):
        name = entry.strip()
        number = re.match("[0-9]+", name)
        if name.startswith(("GPU-", "MIG-")):
            device = len(found)
        elif number:
            device = int(number[0])
        else:
            break
        if device >= count:
            break
        if device in found:
            return 0
        found.append(device)
    return len(found)
