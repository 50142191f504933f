# SPDX-License-Identifier: Apache-2.0
"""What this process has open, for tests that nothing of theirs may stay open.

Such a test asks whether there is anything new: what others left to the garbage collector may go at
any time.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


def open_descriptors() -> set[tuple[str, str]]:
    """Each descriptor's number and what it is of."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the one that looks
            found.add((each.name, str(each.readlink())))
    return found
