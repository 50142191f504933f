# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a control plane, CUDA programs on it, and what was there before.

Everything is real: controller, server, doorbell, workers on the software GPU, client libraries.
Where the native part or nvcc's programs are missing the tests are skipped, and say so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from control_plane import ControlPlane, native_worker, running
from folders import let_everybody_in
from standing_processes import standing_processes

from sluice.config.native_files import NativeFileMissing, find_native

from . import traces
from .guests import BUNDLE, Fleet, Rig, serving
from .prompted import Prompted, build_programs

#: Longer than every heartbeat and silence of an application that these tests configure, and than
#: the doorbell's 30 s.
PAUSE_SECONDS = float(
    os.environ.get("SLUICE_WITHSTAND_PAUSE", "120" if os.environ.get("SLUICE_LONG") else "35")
)


@pytest.fixture(scope="session", autouse=True)
def built() -> None:
    """Real parts or none: a FakeWorker would prove nothing here."""
    try:
        find_native("libcuda.so.1")
        find_native("libcudart.so.13")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    if native_worker() is None:
        pytest.skip("sluice-worker or the software GPU is not built")
    build_programs()


@pytest.fixture(scope="module")
def guests_rig() -> Iterator[Rig]:
    """A libvirt of our own, for guests that have the bundle."""
    if os.geteuid() != 0:
        pytest.skip("the KVM rig needs root")
    if not BUNDLE.exists():
        pytest.skip(f"{BUNDLE} is not there: make guest-bundle")
    with Rig("tests-withstand") as started:
        yield started


@pytest.fixture(scope="module")
def guests_plane(
    guests_rig: Rig, built: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """Serves guests; gives up a silent one after ten seconds."""
    folder = tmp_path_factory.mktemp("pool")
    let_everybody_in(folder)
    with running(folder, server=serving(guests_rig, silent_seconds=10)) as control_plane:
        yield control_plane


@pytest.fixture(scope="module")
def fleet(guests_rig: Rig, guests_plane: ControlPlane) -> Iterator[Fleet]:
    """The guests of a module's tests; gone when the last test is over."""
    guests = Fleet(guests_rig, guests_plane)
    yield guests
    guests.close()


def doorbell_pid(plane: ControlPlane) -> int:
    """The doorbell process of this control plane's run folder."""
    return _standing(plane, "doorbell")


def arbiter_pid(plane: ControlPlane) -> int:
    """The arbiter's process."""
    return _standing(plane, "arbiter")


def has_another_arbiter(plane: ControlPlane, before: int) -> bool:
    """Whether there is one, and not that process."""
    return standing_processes(plane.folder / "run", "arbiter") not in ([], [before])


def _standing(plane: ControlPlane, name: str) -> int:
    found = standing_processes(plane.folder / "run", name)
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def start(plane: ControlPlane) -> Iterator[Callable[..., Prompted]]:
    """Starts programs on the plane, opens their sessions, and ends what a test leaves."""
    started: list[Prompted] = []

    def begin(channel: str = "shm", opened: bool = True, **environment: str) -> Prompted:
        program = Prompted(plane, channel, **environment)
        started.append(program)
        if opened:
            assert program.ask("open") == "open: ok"
        return program

    yield begin
    for program in started:
        program.kill()


@pytest.fixture
def seen(plane: ControlPlane) -> Callable[..., traces.Traces]:
    """Takes note of what runs on the plane now."""
    return lambda count=1: traces.Traces.of(plane, count)
