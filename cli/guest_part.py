# SPDX-License-Identifier: Apache-2.0
"""Hands `sluice run`, `check`, `smi` and `enrol` to the guest's part, which reads its arguments.

Called by cli.__main__ before anything else is imported: `sluice run` stands before every program.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

WORDS = ("run", "check", "smi", "enrol")


def run(arguments: Sequence[str]) -> int:
    """Runs what the words of the command line say; returns its exit status."""
    try:
        part = importlib.import_module("sluice.guest_runtime.main")
    except ImportError as error:
        print(f"sluice: `sluice {arguments[0]}` is not installed here: {error}", file=sys.stderr)
        return 1
    return int(part.main(arguments))
