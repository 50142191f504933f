# SPDX-License-Identifier: Apache-2.0
"""Fixtures of control planes and of folders for sockets.

tests/conftest.py loads them for every folder of tests.

`plane` is a test's own. A module says what it wants of it by a mark, whose words are those of
control_plane.running, and `guarded=True` for control_plane.guarded:

    pytestmark = pytest.mark.control_plane(shared=True, fake=True, auth={"requests_per_second": 0})

With `shared=True` the tests of a module share one, `shared_plane`; with the name of a fixture they
share that. What only fixtures know (certificates, folders) a module adds by a `plane_options` of
its own; `folder` is one of the words.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, guarded, running

MARK = "control_plane"


def pytest_configure(config: pytest.Config) -> None:
    """Makes the mark known."""
    config.addinivalue_line("markers", f"{MARK}(shared, **options): what its `plane` is like")


def _options(node: Any) -> dict[str, Any]:
    mark = node.get_closest_marker(MARK)
    return dict(mark.kwargs) if mark else {}


def _opened(
    folder: Path, options: dict[str, Any]
) -> contextlib.AbstractContextManager[ControlPlane]:
    options.pop("shared", None)
    start = guarded if options.pop("guarded", False) else running
    return start(options.pop("folder", folder), **options)


@pytest.fixture(scope="module")
def plane_options() -> dict[str, Any]:
    """What a module's shared plane is to have besides its mark's; a module may define its own."""
    return {}


@pytest.fixture(scope="module")
def shared_plane(
    request: pytest.FixtureRequest,
    plane_options: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControlPlane]:
    """One for the tests of a module."""
    options = {**_options(request.node), **plane_options}
    with _opened(tmp_path_factory.mktemp("plane"), options) as started:
        yield started


@pytest.fixture
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A controller and a server that has joined it: the test's own, or what its module shares."""
    options = _options(request.node)
    if shared := options.get("shared"):
        yield request.getfixturevalue(shared if isinstance(shared, str) else "shared_plane")
        return
    with _opened(request.getfixturevalue("tmp_path"), options) as started:
        yield started


@pytest.fixture
def fake_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """Always with FakeWorker, for what a real worker cannot be made to do."""
    with running(tmp_path, fake=True) as started:
        yield started


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for sockets: their paths have at most 107 characters, and tmp_path says the test."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        yield Path(folder)
