# SPDX-License-Identifier: Apache-2.0
"""One session is ended on an operator's word, and only that one."""

from __future__ import annotations

import pytest
from control_plane import ControlPlane, wait_for

TOKEN = "5e" * 16


def state(plane: ControlPlane, session_id: str) -> dict[str, object]:
    answer = plane.rest.get(f"/sessions/{session_id}")
    found: dict[str, object] = answer.json()
    return found


def running(plane: ControlPlane, *sessions: str) -> bool:
    return all(state(plane, each)["state"] == "running" for each in sessions)


@pytest.mark.control_plane(guarded=True)
def test_a_session_of_a_job_ends_alone(plane: ControlPlane) -> None:
    first = plane.client(job=TOKEN, job_processes=2, program="rank0.py")
    second = plane.client(job=TOKEN, job_processes=2, program="rank1.py")
    wait_for(lambda: running(plane, first.session_id, second.session_id))
    assert len(plane.grants()) == 1
    answer = plane.rest.delete(f"/sessions/{first.session_id}")
    assert answer.status_code == 202, answer.text
    wait_for(lambda: state(plane, first.session_id)["state"] == "ended")
    ended = state(plane, first.session_id)
    assert ended["cause"] == "operator"
    assert "ended by the operator" in str(ended["reason"])
    assert running(plane, second.session_id)
    assert len(plane.grants()) == 1
    again = plane.rest.delete(f"/sessions/{first.session_id}")
    assert again.status_code == 409
    assert again.json()["type"] == "urn:sluice:problem:session-not-ended"
    trail = plane.rest.get("/audit", params={"limit": 100}).json()["events"]
    assert any(f"DELETE /v1/sessions/{first.session_id}" in each["text"] for each in trail)
    # with the last one the grant goes back
    assert plane.rest.delete(f"/sessions/{second.session_id}").status_code == 202
    wait_for(lambda: not plane.grants())


@pytest.mark.control_plane(guarded=True)
def test_whose_it_is_not_may_not_end_it_and_is_told_no_more(plane: ControlPlane) -> None:
    client = plane.client(program="train.py")
    wait_for(lambda: running(plane, client.session_id))
    rest = plane.rest

    def as_(role: str, **more: str) -> int:
        token = rest.post("/tokens", json={"role": role, "name": role, **more}).json()["secret"]
        return plane.rest_as(token).delete(f"/sessions/{client.session_id}").status_code

    assert as_("viewer") == 403
    assert as_("tenant", project="speech") == 404
    assert rest.delete("/sessions/ffffffffffffffff").status_code == 404
    assert running(plane, client.session_id)
    assert as_("tenant", project="default") == 202
    wait_for(lambda: state(plane, client.session_id)["state"] == "ended")


@pytest.mark.control_plane(guarded=True)
def test_a_node_that_is_away_is_named(plane: ControlPlane) -> None:
    client = plane.client()
    wait_for(lambda: running(plane, client.session_id))
    plane.stop("server")
    answer = plane.rest.delete(f"/sessions/{client.session_id}")
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:sluice:problem:node-not-connected"
    plane.start_server()
    wait_for(lambda: running(plane, client.session_id))


@pytest.mark.control_plane(guarded=True)
def test_a_sessions_figures_come_from_its_node(plane: ControlPlane) -> None:
    client = plane.client()
    wait_for(lambda: running(plane, client.session_id))
    path = f"/sessions/{client.session_id}/figures"
    assert plane.rest.get(path).json() == {"steps": []}
    wait_for(lambda: plane.rest.get(path).json()["steps"], seconds=120)
    [step, *_] = plane.rest.get(path).json()["steps"]
    assert step["gpus"] >= 0
    tenant = plane.rest.post("/tokens", json={"role": "tenant", "project": "speech"}).json()
    assert plane.rest_as(tenant["secret"]).get(path).status_code == 404
    client.kill()
    wait_for(lambda: state(plane, client.session_id)["state"] == "ended")
    over = plane.rest.get(path)
    assert (over.status_code, over.json()["type"]) == (409, "urn:sluice:problem:no-figures")
    plane.stop("server")
    assert plane.rest.get(path).status_code == 503
