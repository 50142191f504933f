# SPDX-License-Identifier: Apache-2.0
"""Fixtures of control planes and of folders for sockets.

tests/conftest.py loads them for every folder of tests.

`plane` is a test's own. A module says what it wants of it by a mark, whose words are those of
control_plane.running, and `guarded=True` for control_plane.guarded:

    pytestmark = pytest.mark.control_plane(shared=True, fake=True, auth={"requests_per_second": 0})

With `shared=True` the tests of a module share one, `shared_plane`; with the name of a fixture they
share that. With `reused=True` a test gets the plane of the test before it in the module where that
one passed and left it as good as new, and a new one elsewhere: starting one costs two seconds of
CPU, and looking at it next to nothing. What only fixtures know (certificates, folders) a module
adds by a `plane_options` of its own; `folder` is one of the words.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane, guarded, running

MARK = "control_plane"
PASSED = pytest.StashKey[bool]()


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
    options.pop("reused", None)
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


class ReusedPlane:
    """The plane of a module's tests, replaced whenever one of them leaves something on it."""

    def __init__(self, folders: pytest.TempPathFactory, options: dict[str, Any]) -> None:
        self._folders = folders
        self._options = options
        self._open = contextlib.ExitStack()
        self._plane: ControlPlane | None = None
        self._gpus: list[Any] = []

    def take(self) -> ControlPlane:
        """The one there is, or a new one."""
        if self._plane is None:
            folder = self._folders.mktemp("plane")
            self._plane = self._open.enter_context(_opened(folder, dict(self._options)))
            self._gpus = self._seen_gpus()
        return self._plane

    def give_back(self, passed: bool) -> None:
        """Ends the test's clients, and the plane unless the next test may have it."""
        if self._plane:
            self._plane.end_clients()
        if not (passed and self._is_as_new()):
            self.close()

    def close(self) -> None:
        """Ends it."""
        self._plane = None
        self._open.close()

    def _is_as_new(self) -> bool:
        deadline = time.monotonic() + 10
        while self._runs() and time.monotonic() < deadline:
            if self._is_untouched():
                return True
            time.sleep(0.05)
        return False

    def _runs(self) -> bool:
        assert self._plane
        processes = (self._plane.controller, self._plane.server)
        return all(process and process.poll() is None for process in processes)

    def _is_untouched(self) -> bool:
        plane = self._plane
        assert plane
        if any(
            each is None or each.poll() is not None for each in (plane.controller, plane.server)
        ):
            return False
        try:
            return (
                plane.node_state() == "up"
                and not plane.grants()
                and not plane.sessions()
                and not plane.rest.get("/queue").json()["waiting"]
                and not plane.session_worker_pids()
                and self._seen_gpus() == self._gpus
            )
        except httpx.TransportError:
            return False

    def _seen_gpus(self) -> list[Any]:
        assert self._plane
        gpus: list[Any] = self._plane.rest.get("/gpus").json()["gpus"]
        return gpus


@pytest.fixture(scope="module")
def reused_plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReusedPlane]:
    """What `reused=True` takes its planes from."""
    planes = ReusedPlane(tmp_path_factory, _options(request.node))
    yield planes
    planes.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Lets fixtures know how their test went."""
    report = yield
    if report.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A controller and a server that has joined it: the test's own, or what its module shares."""
    options = _options(request.node)
    if shared := options.get("shared"):
        yield request.getfixturevalue(shared if isinstance(shared, str) else "shared_plane")
        return
    if options.get("reused"):
        planes: ReusedPlane = request.getfixturevalue("reused_plane")
        yield planes.take()
        planes.give_back(request.node.stash.get(PASSED, False))
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
