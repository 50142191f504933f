# SPDX-License-Identifier: Apache-2.0
"""Memory that is promised more than once, on a software GPU that has the ways of a card.

Its memory is short for one process because of what others have, contexts take some that nobody has
booked, and copies and registering host memory take their time. What is held against it are results
and how often memory moved, never how long something took.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from control_plane import ControlPlane, running, wait_for

from .suspended import Subject, memory_of, start_subject

GPU_MIB, PIECE_MIB, LARGE_MIB = 128, 4, 88
VGPU = {"SLUICE_GMEM": "112", "SLUICE_RATIO": "50"}
CONTEXT_MIB = 8
SUSPEND = {
    "swap_mib": 512,
    "ready_mib": 0,  # all host memory is taken when it is needed
    "drain_seconds": 60,
    "memory_oversubscription": 2.0,
    "idle_seconds": 60,
}
PACE = {"SLUICE_SOFTGPU_COPY_MIB_S": "800", "SLUICE_SOFTGPU_REGISTER_MIB_S": "800"}

Begin = Callable[..., Subject]


@pytest.fixture
def plane(built: None, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """One software GPU that all processes share; parameters are settings of it besides."""
    with tempfile.NamedTemporaryFile(prefix="sluice-softgpu-", dir="/dev/shm") as shared:
        Path(shared.name).chmod(0o666)  # workers have accounts of their own
        environment = {
            "SLUICE_SOFTGPU_MEMORY_MIB": str(GPU_MIB),
            "SLUICE_SOFTGPU_SHARED_FILE": shared.name,
            **PACE,
            **getattr(request, "param", {}),
        }
        # on the software GPU a sandbox lets nothing be written
        server = {"worker_sandbox": "false"}
        with running(tmp_path, server=server, suspend=SUSPEND, environment=environment) as started:
            yield started


@pytest.fixture
def begin(plane: ControlPlane) -> Iterator[Begin]:
    """Starts programs, and ends what a test leaves."""
    begun: list[Subject] = []

    def start_one(channel: str = "shm", mib: int = 0) -> Subject:
        subject = start_subject(plane, channel, filled=False, **VGPU)
        begun.append(subject)
        if mib:
            subject.ask("slab", mib=mib, piece_mib=PIECE_MIB)
        return subject

    yield start_one
    for subject in begun:
        subject.kill()


def at_once(subjects: list[Subject], work: Callable[[Subject], None]) -> None:
    """Each its work, all at the same time."""
    with ThreadPoolExecutor(len(subjects)) as threads:
        for done in [threads.submit(work, subject) for subject in subjects]:
            done.result()


def moves(plane: ControlPlane, subjects: list[Subject]) -> int:
    """How often memory of theirs went out or came in."""
    return sum(int(memory_of(plane, each)["memory_moves"] or 0) for each in subjects)


def test_two_that_take_memory_while_they_work_keep_their_stays(
    plane: ControlPlane, begin: Begin
) -> None:
    """As trainings do in their first steps: that once had all memory move for each little."""
    steps, more = 8, PIECE_MIB // 2
    subjects = [begin(mib=LARGE_MIB - 8), begin(mib=LARGE_MIB - 8)]
    before = moves(plane, subjects)

    def first_steps(subject: Subject) -> None:
        for _ in range(steps):
            subject.ask("slab", mib=more, piece_mib=more)
            assert subject.ask("check") == {"wrong": 0}

    at_once(subjects, first_steps)
    wait_for(lambda: moves(plane, subjects) > before, message="the arbiter's figures")
    taken = 2 * steps
    assert moves(plane, subjects) - before <= 3 * taken, "it was four for each little at least"


@pytest.mark.parametrize("plane", [{"SLUICE_SOFTGPU_CONTEXT_MIB": str(CONTEXT_MIB)}], indirect=True)
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_where_contexts_take_what_nobody_booked_more_goes_out(
    plane: ControlPlane, begin: Begin, channel: str
) -> None:
    subjects = [begin(channel, LARGE_MIB), begin(channel, LARGE_MIB)]

    def work(subject: Subject) -> None:
        for _ in range(5):
            assert subject.ask("check") == {"wrong": 0}

    at_once(subjects, work)
    log = plane.log("server")
    assert "MiB moved to the host in" in log
    assert "MiB moved to the GPU in" in log
    assert "missing:" in log, "who found less room than is counted is told of"
