# SPDX-License-Identifier: Apache-2.0
"""Jobs of several ranks are suspended in the middle of their collectives, all of them or none.

Real arbiter, real workers, software GPUs, and a stand-in for NCCL whose collectives wait for their
peers (ranks.py): a rank that is stopped where its peers have issued more keeps their GPUs for ever.
Nothing goes by how long something takes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for

from .at_work import Start, goes_on, worker_of, working
from .conftest import arbiter_pid
from .ranks import Job, jobs_of, plane_of_ranks
from .suspended import grant_of
from .traces import LIMIT

ROUNDS = 4
HOWS = pytest.mark.parametrize("how", ["collectives", "captured-collectives"])
Begin = Callable[..., Job]


@pytest.fixture(scope="module")
def plane(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Two GPUs, host memory for what is suspended, and something for NCCL."""
    folder = tmp_path_factory.mktemp("jobs")
    with plane_of_ranks(folder, suspend={"swap_mib": 512, "drain_seconds": 60}) as started:
        yield started


@pytest.fixture
def job(plane: ControlPlane) -> Iterator[Begin]:
    with jobs_of(plane) as begin:
        yield begin


def suspension(plane: ControlPlane, grant: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = plane.rest.get(f"/grants/{grant}").json()["suspension"]
    return found


def why_not(plane: ControlPlane, grant: str) -> str:
    answer = plane.rest.get("/events", params={"subject": grant, "kind": "grant.not_suspended"})
    return "; ".join(event["text"] for event in answer.json()["events"])


def suspend(plane: ControlPlane, one: Job) -> str:
    """Until it is; the grant's id."""
    grant: str = grant_of(plane, one.ranks[0].pid)["id"]
    assert plane.rest.post(f"/grants/{grant}/suspend").status_code == 202

    def is_suspended() -> bool:
        shown = suspension(plane, grant)
        assert shown, why_not(plane, grant) + plane.log("server")[-3000:]
        return bool(shown["state"] == "suspended")

    wait_for(is_suspended, LIMIT, "it to be suspended")
    return grant


def resume(plane: ControlPlane, grant: str) -> None:
    assert plane.rest.post(f"/grants/{grant}/resume").status_code == 202
    wait_for(lambda: suspension(plane, grant) is None, LIMIT, "it to go on")


@HOWS
def test_a_job_alone_is_suspended_between_its_collectives_and_goes_on(
    plane: ControlPlane, job: Begin, how: str
) -> None:
    one = job(50, how)
    for _ in range(ROUNDS):
        grant = suspend(plane, one)
        before = one.count()
        resume(plane, grant)
        wait_for(lambda: one.count() > before + 4, LIMIT, "more steps")  # noqa: B023


@HOWS
def test_a_job_beside_another_is_suspended_and_the_other_goes_on(
    plane: ControlPlane, job: Begin, how: str
) -> None:
    one, other = job(50, how), job(50, how)
    for _ in range(ROUNDS):
        grant = suspend(plane, one)
        other.goes_on(4)
        resume(plane, grant)
        one.goes_on(4)


def test_a_job_beside_neighbours_leaves_them_its_turns(
    plane: ControlPlane, job: Begin, start: Start
) -> None:
    one = job(50)
    neighbours = [working(start, 50) for _ in range(2)]
    grant = suspend(plane, one)
    for neighbour in neighbours:
        goes_on(neighbour, 20)
    resume(plane, grant)
    one.goes_on(4)


@pytest.mark.parametrize("service", ["server", "arbiter"])
def test_a_service_is_killed_while_a_job_is_held(
    plane: ControlPlane, job: Begin, service: str
) -> None:
    """Whatever comes of the order, the job is suspended or goes on, and can be suspended again."""
    one = job(50)
    grant: str = grant_of(plane, one.ranks[0].pid)["id"]
    assert plane.rest.post(f"/grants/{grant}/suspend").status_code == 202
    if service == "server":
        plane.stop("server", signal.SIGKILL)
        plane.start_server()
    else:
        os.kill(arbiter_pid(plane), signal.SIGKILL)

    def is_settled() -> bool:
        shown = suspension(plane, grant)
        return shown is None or shown["state"] == "suspended"

    # an order that does not find the job still takes [suspend] drain_seconds, twice at the most
    wait_for(is_settled, 3 * LIMIT, "it to be suspended or refused")
    if suspension(plane, grant):
        resume(plane, grant)
    one.goes_on(4)
    resume(plane, suspend(plane, one))
    one.goes_on(4)


def test_a_rank_is_killed_while_its_job_is_held(
    plane: ControlPlane, job: Begin, start: Start
) -> None:
    one = job(50)
    grant: str = grant_of(plane, one.ranks[0].pid)["id"]
    assert plane.rest.post(f"/grants/{grant}/suspend").status_code == 202
    os.kill(worker_of(plane, one.ranks[1]), signal.SIGKILL)
    one.kill()
    wait_for(lambda: not plane.grants(), LIMIT, "its grant to end")
    goes_on(working(start, 50), 20)
