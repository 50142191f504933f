# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a simulated vCenter."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture
def vcenter(tmp_path: Path) -> Iterator[object]:
    """A vCenter of its own for the test, with eight VMs."""
    from vcenter import Vcenter

    made = Vcenter(tmp_path / "vcenter")
    try:
        yield made
    finally:
        made.close()
