# SPDX-License-Identifier: Apache-2.0
"""Fixtures: folders whose sockets can be named."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for sockets: their paths have at most 107 characters, and tmp_path says the test."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        yield Path(folder)
