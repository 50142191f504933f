# SPDX-License-Identifier: Apache-2.0
"""pytest's folders, where processes of other accounts are to find something in them."""

from __future__ import annotations

from pathlib import Path


def let_everybody_in(folder: Path) -> None:
    """Other accounts may read it, and come through the folders that pytest made above it."""
    for each in (folder, *list(folder.parents)[:2]):
        each.chmod(each.stat().st_mode | 0o055)  # what else is allowed there stays
