# SPDX-License-Identifier: Apache-2.0
"""What a process has open, for tests that nothing of theirs may stay open.

Such a test asks whether there is anything new: what others left to the garbage collector may go at
any time.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


def open_descriptors(pid: int | str = "self") -> set[tuple[str, str]]:
    """Each descriptor's number and what it is of; without a pid those of this process."""
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that looks, or one that closes
            found.add((each.name, str(each.readlink())))
    return found


def count_descriptors(pid: int | str = "self") -> int:
    """How many that process has open, the one that looks among them."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def file_of(descriptor: int) -> str:
    """What a descriptor of this process is of."""
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


def has_open(pid: int, files: set[str]) -> bool:
    """Whether that process has any of these files open."""
    return any(file in files for _, file in open_descriptors(pid))
