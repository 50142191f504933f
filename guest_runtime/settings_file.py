# SPDX-License-Identifier: Apache-2.0
"""Changes single keys of an INI file that people edit, and writes files whole.

Used by enrol.py for client.conf, server.conf and tokens. It promises that comments, order and keys
of others stay, that a file is never seen half written, and that a secret is never readable by more
than its last mode allows.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from .ini_lines import quoted, read_lines


def set_keys(path: Path, wanted: Mapping[str, Mapping[str, str]]) -> None:
    """Sets keys of an INI file and leaves every other line as it is; an empty value unsets."""
    try:
        before = path.read_text()
    except FileNotFoundError:
        before = ""
    left = {section: dict(keys) for section, keys in wanted.items()}
    lines: list[str] = []
    section = ""

    def finish() -> None:
        for key, value in left.pop(section, {}).items():
            if value:
                at = len(lines)
                while at and not lines[at - 1].strip():
                    at -= 1
                lines.insert(at, f"{key} = {quoted(value)}")

    for line in before.splitlines():
        read = next(read_lines(line), None)
        if read and read.section:
            finish()
            section = read.section
        if read and read.key in wanted.get(section, {}):
            value = left.get(section, {}).pop(read.key, "")
            if value:
                lines.append(f"{read.key} = {quoted(value)}")
            continue
        lines.append(line)
    finish()
    for section in list(left):
        if any(left[section].values()):
            lines += ["", f"[{section}]"]
            finish()
    text = "\n".join(lines).lstrip("\n") + "\n"
    if text != before:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        write_whole(path, text, mode)


def write_whole(path: Path, text: str, mode: int, group: str = "") -> None:
    """Whole or not at all, and on the disk when it returns."""
    partial = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        partial.unlink()
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        if group:  # before it may be read by the group, and before it is in its place
            shutil.chown(partial, group=group)
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
