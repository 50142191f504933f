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


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[object]:
    """A pool, a vCenter with eight VMs, and an adapter that is not started yet."""
    from adapter import Rig

    made = Rig(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def shared_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """One for all tests of a file that need nothing of their own; its adapter runs."""
    from adapter import Rig

    made = Rig(tmp_path_factory.mktemp("rig"))
    try:
        made.start()
        made.wait_log("connected to vCenter")
        yield made
    finally:
        made.close()
