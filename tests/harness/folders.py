# SPDX-License-Identifier: Apache-2.0
"""pytest's folders, where processes of other accounts are to find something in them."""

from __future__ import annotations

import tempfile
from pathlib import Path


def let_everybody_in(folder: Path) -> None:
    """Other accounts may read it, and come through the folders that pytest made above it."""
    above, top = list(folder.parents), Path(tempfile.gettempdir())
    made = above[: above.index(top)] if top in above else above[:2]
    for each in (folder, *made):
        each.chmod(each.stat().st_mode | 0o055)  # what else is allowed there stays
