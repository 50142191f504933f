# SPDX-License-Identifier: Apache-2.0
"""What of a release lies packed in its folder. Used by the tests that run it."""

from __future__ import annotations

import lzma
import tarfile
from pathlib import Path


def unpacked(archive: Path, folder: Path) -> Path:
    """The one folder of an archive, unpacked into another."""
    with lzma.open(archive) as packed, tarfile.open(fileobj=packed) as files:
        files.extractall(folder, filter="tar")
    [made] = folder.iterdir()
    return made
