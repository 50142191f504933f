# SPDX-License-Identifier: Apache-2.0
"""The client's settings and where each came from: environment, then the user's file, then the
system's.

Used by check.py and channels.py to explain what the native library will do; the library reads the
same files itself (native/client/core/config.cc), and the table below follows it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from .ini_lines import read_lines

SYSTEM_FILE = Path("/etc/sluice/client.conf")

_FLAGS = ("1", "true", "yes", "on", "0", "false", "no", "off")
_CHANNELS = ("auto", "shm", "ivshmem", "vsock", "tcp")
_LABEL = "[A-Za-z0-9._/-]{1,63}=[A-Za-z0-9._/-]{1,63}"

#: Texts that a pool knows: a pattern, and in words.
PROJECT = ("[A-Za-z0-9._-]{1,120}", "a name of letters, digits, dot, dash and underscore")
MODEL = ("[A-Za-z0-9 ._()/-]{1,120}", "words of a model's name, such as h200")
ARCHITECTURE = ("[A-Za-z0-9._]{1,32}", "an architecture such as sm_90")
LABELS = (f"{_LABEL}(, *{_LABEL}){{0,15}}", "NAME=VALUE pairs with commas, such as rack=r12")
MODE = ("auto|reserved|on-demand", "one of auto, reserved, on-demand")


class Setting(NamedTuple):
    """One setting: its key in the files, its variables in order, default and what it accepts."""

    key: str
    variables: tuple[str, ...]
    default: str
    #: A range for numbers, words for choices, None for any text.
    accepts: range | tuple[str, ...] | None = None
    #: Of a text: a pattern, and what it means in words.
    text: tuple[str, str] | None = None


SETTINGS = (
    Setting(
        "controller.controller_addr", ("SLUICE_CONTROLLER", "ORION_CONTROLLER"), "127.0.0.1:9123"
    ),
    Setting("controller.ca", ("SLUICE_CA",), ""),
    Setting("controller.token_file", ("SLUICE_TOKEN_FILE",), ""),
    Setting("client.server_socket", ("SLUICE_SERVER_SOCKET",), "/run/sluice/server.sock"),
    Setting("client.channel", ("SLUICE_CHANNEL",), "auto", _CHANNELS),
    Setting("client.ivshmem", ("SLUICE_IVSHMEM",), ""),
    Setting("client.enable_net", (), "true", _FLAGS),
    Setting("client.vgpu_count", ("SLUICE_VGPU", "ORION_VGPU"), "1", range(1, 65)),
    Setting("client.gmem", ("SLUICE_GMEM", "ORION_GMEM"), "", range(1, (1 << 30) + 1)),
    Setting("client.ratio", ("SLUICE_RATIO", "ORION_RATIO"), "", range(1, 101)),
    Setting("client.cross_node", ("SLUICE_CROSS_NODE", "ORION_CROSS_NODE"), "false", _FLAGS),
    Setting("client.priority", ("SLUICE_PRIORITY",), "0", range(-1000, 1001)),
    Setting("client.wait", ("SLUICE_WAIT",), "-1", range(-1, (1 << 30) + 1)),
    Setting("client.project", ("SLUICE_PROJECT",), "", text=PROJECT),
    Setting("client.gpu_model", ("SLUICE_GPU_MODEL",), "", text=MODEL),
    Setting("client.gpu_architecture", ("SLUICE_GPU_ARCHITECTURE",), "", text=ARCHITECTURE),
    Setting("client.labels", ("SLUICE_LABELS",), "", text=LABELS),
    Setting("client.mode", ("SLUICE_MODE",), "auto", ("auto", "reserved", "on-demand")),
    Setting("client.preempt", ("SLUICE_PREEMPT",), "false", _FLAGS),
    Setting("client.same_gpu", ("SLUICE_SAME_GPU",), "false", _FLAGS),
)


class Value(NamedTuple):
    """A setting's text and where it stands."""

    text: str
    origin: str
    #: Why the native library will refuse it, or None.
    problem: str | None = None

    @property
    def true(self) -> bool:
        """The value of a flag."""
        return self.text in _FLAGS[:4]


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
