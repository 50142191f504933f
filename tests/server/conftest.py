# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a controller and a server that has joined it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, running
from pool_certificates import PoolCa


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for sockets: their paths have at most 107 characters, and tmp_path says the test."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        yield Path(folder)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with running(tmp_path) as control_plane:
        yield control_plane


@pytest.fixture
def fake_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """Always with FakeWorker, for what a real worker cannot be made to do."""
    with running(tmp_path, fake=True) as control_plane:
        yield control_plane


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> PoolCa:
    """A CA of its own for each module; what it issues lies beside its folder."""
    return PoolCa(tmp_path_factory.mktemp("pool") / "ca")
