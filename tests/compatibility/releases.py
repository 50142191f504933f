# SPDX-License-Identifier: Apache-2.0
"""The releases whose data is here. Used by every test of this folder."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RELEASES = sorted(path.parent for path in HERE.glob("*/release.json"))
NAMES = [path.name for path in RELEASES]


def files_of_each(pattern: str) -> list[tuple[str, Path]]:
    """What of every release has such a name, with names for tests."""
    found = [(release, path) for release in RELEASES for path in sorted(release.glob(pattern))]
    return [(f"{release.name}:{path.name.split('.')[0]}", path) for release, path in found]
