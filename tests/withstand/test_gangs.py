# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks beside other tenants, and what else may meet the end of a turn.

Real arbiter, real workers, software GPUs, and a stand-in for NCCL whose collectives wait for their
peers (ranks.py). What is compared is work that was done, never time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from control_plane import ControlPlane, wait_for

from .at_work import Start, goes_on, stopped, worked, worker_of, working
from .conftest import arbiter_pid, has_another_arbiter
from .prompted import Prompted
from .ranks import Job, Rank, jobs_of, plane_of_ranks
from .traces import LIMIT

ENOUGH = 60  # steps of a job


@pytest.fixture(scope="module")
def plane(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Two GPUs, and something for NCCL."""
    folder = tmp_path_factory.mktemp("gangs")
    with plane_of_ranks(folder) as started:
        yield started


@pytest.fixture
def job(plane: ControlPlane) -> Iterator[Callable[..., Job]]:
    with jobs_of(plane) as begin:
        yield begin


@pytest.fixture
def rank(plane: ControlPlane) -> Iterator[Callable[..., Rank]]:
    """Starts programs without peers."""
    started: list[Rank] = []

    def begin(how: str, percent: int = 50, channel: str = "shm") -> Rank:
        one = Rank(plane, channel, SLUICE_RATIO=str(percent), CUDA_VISIBLE_DEVICES="0")
        started.append(one)
        assert one.ask("open") == "open: ok"
        one.work(how)
        return one

    yield begin
    for one in started:
        one.kill()


def beside(start: Start, halves: int = 2) -> list[Prompted]:
    """Neighbours on what is left of both GPUs: so many halves, none of which goes elsewhere."""
    return [working(start, 50) for _ in range(halves)]


def assert_more(large: Job, small: Job) -> None:
    """The one has more steps done than the other, in some while.

    How many more depends on how soon a busy host's threads hear of one another's collectives; on
    cards tests/gpu/gangs.py measures it.
    """
    at = large.count(), small.count()

    def done() -> tuple[int, int]:
        return large.count() - at[0], small.count() - at[1]

    for enough in range(ENOUGH, 20 * ENOUGH, ENOUGH):
        wait_for(lambda: sum(done()) > enough, LIMIT, lambda: f"steps: {done()}")  # noqa: B023
        had = done()
        if min(had) > 0 and had[0] > had[1]:
            return
    raise AssertionError(f"{had} of the steps: not more for the larger share")


@pytest.mark.parametrize("how", ["collectives", "captured-collectives"])
def test_two_jobs_have_their_shares(job: Callable[..., Job], how: str) -> None:
    small, large = job(30, how), job(70, how)
    assert_more(large, small)


def test_a_job_and_its_neighbours_go_on(job: Callable[..., Job], start: Start) -> None:
    one = job(50)
    neighbours = beside(start)
    for _ in range(5):
        one.goes_on(20)
        for neighbour in neighbours:
            goes_on(neighbour, 20)


@pytest.mark.parametrize("which", ["program", "worker"])
def test_a_rank_that_is_stopped_keeps_no_neighbour(
    plane: ControlPlane, job: Callable[..., Job], start: Start, which: str
) -> None:
    one = job(50)
    neighbours = beside(start)
    second = one.ranks[1]
    with stopped(second.pid if which == "program" else worker_of(plane, second)):
        for neighbour in neighbours:
            goes_on(neighbour, 50)
    one.goes_on(20)
    for neighbour in neighbours:
        goes_on(neighbour, 20)


def test_a_rank_that_is_killed_keeps_no_neighbour(
    plane: ControlPlane, job: Callable[..., Job], start: Start
) -> None:
    one = job(50)
    neighbours = beside(start)
    os.kill(worker_of(plane, one.ranks[1]), signal.SIGKILL)
    for neighbour in neighbours:
        goes_on(neighbour, 50)
    wait_for(lambda: "error" in one.ranks[1].ask("worked"), LIMIT, "the error")


def test_counts_outlive_the_arbiter(plane: ControlPlane, job: Callable[..., Job]) -> None:
    one, other = job(50), job(50)
    before = arbiter_pid(plane)
    os.kill(before, signal.SIGKILL)
    one.goes_on()
    wait_for(lambda: has_another_arbiter(plane, before), LIMIT, "another arbiter")
    one.goes_on()
    other.goes_on()


@pytest.mark.parametrize("channel", ["shm", "tcp"])
@pytest.mark.parametrize(
    ("how", "besides"), [("captures", None), ("host", "called"), ("jit", "compiled")]
)
def test_what_meets_the_end_of_a_turn(
    rank: Callable[..., Rank], start: Start, how: str, besides: str | None, channel: str
) -> None:
    one = rank(how, 50, channel)
    neighbours = beside(start, 3)
    for _ in range(3):
        one.goes_on(10)
        if besides:
            one.goes_on(4, besides)
        for neighbour in neighbours:
            goes_on(neighbour, 20)
    for neighbour in neighbours:
        assert worked(neighbour) > 0
