# SPDX-License-Identifier: Apache-2.0
"""POST /v1/enrolments:batch: each item for itself, and no secret is stored or given twice."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane

pytestmark = pytest.mark.control_plane(
    shared=True, as_admin=True, fake=True, auth={"requests_per_second": 0}
)

PATH = "/enrolments:batch"
MOST = 250


def create(name: str, **wanted: Any) -> dict[str, Any]:
    return {"do": "create", "name": name, "project": "p1", "vm": name, **wanted}


def send(rest: httpx.Client, *items: Any) -> list[dict[str, Any]]:
    answer = rest.post(PATH, json={"items": items})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    outcomes: list[dict[str, Any]] = answer.json()["outcomes"]
    assert len(outcomes) == len(items)
    return outcomes


def use(plane: ControlPlane, secret: str) -> httpx.Response:
    return plane.rest_as(secret).post("/enrol")


def test_each_item_is_answered_as_the_same_request_alone(plane: ControlPlane) -> None:
    [first] = send(plane.rest, create("vm-1"))
    assert first["status"] == 201
    token = use(plane, first["enrolment"]["secret"]).json()["secret"]
    assert plane.rest_as(token).get("/grants").status_code == 200
    outcomes = send(
        plane.rest,
        create("vm-2"),
        {"do": "withdraw", "id": "nobody"},
        create("vm-3", reservation="gone"),
        {"do": "withdraw", "id": first["enrolment"]["id"]},
        create("vm-4"),
    )
    assert [each["status"] for each in outcomes] == [201, 404, 409, 200, 201]
    assert outcomes[3]["enrolment"]["state"] == "withdrawn"
    assert "secret" not in outcomes[3]["enrolment"]
    assert plane.rest_as(token).get("/grants").status_code == 401
    made = [outcomes[0]["enrolment"], outcomes[4]["enrolment"]]
    assert len({each["secret"] for each in made}) == 2
    for each in made:
        assert use(plane, each["secret"]).json()["vm"] == each["name"]


@pytest.mark.parametrize(
    ("item", "place"),
    [
        (create("x", expires_seconds=1), "items.1.expires_seconds: "),
        (create("x", vm="a b"), "items.1.vm: "),
        (create("x\n"), "items.1.name: "),
        ({"do": "create", "role": "node"}, "items.1: "),
        ({"do": "withdraw"}, "items.1.id: "),
        ({"do": "use", "id": "x"}, "items.1.do: "),
        ("x", "items.1.do: "),
    ],
)
def test_what_an_item_has_wrong_is_told_by_item_and_field(
    plane: ControlPlane, item: Any, place: str
) -> None:
    good, bad, other = send(plane.rest, create("good"), item, create("other"))
    assert (good["status"], bad["status"], other["status"]) == (201, 422, 201)
    assert bad["problem"]["detail"].startswith(place), bad


def test_too_many_are_refused_as_a_whole(plane: ControlPlane) -> None:
    before = plane.rest.get("/enrolments", params={"limit": 5000}).json()["enrolments"]
    many = [create(f"vm-{number}") for number in range(MOST + 1)]
    answer = plane.rest.post(PATH, json={"items": many})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("body.items: List should have at most 250")
    after = plane.rest.get("/enrolments", params={"limit": 5000}).json()["enrolments"]
    assert len(after) == len(before)


def test_roles_count_for_each_item(plane: ControlPlane) -> None:
    def rest_of(**wanted: Any) -> httpx.Client:
        return plane.rest_as(plane.rest.post("/tokens", json=wanted).json()["secret"])

    tenant = rest_of(role="tenant", project="p1").post(PATH, json={"items": [create("x")]})
    assert tenant.status_code == 403
    [node] = send(plane.rest, {"do": "create", "role": "node", "node": "gpu-9"})
    outcomes = send(
        rest_of(role="operator"),
        {"do": "create", "role": "node", "node": "gpu-8"},
        {"do": "withdraw", "id": node["enrolment"]["id"]},
        create("vm-9"),
    )
    assert [each["status"] for each in outcomes] == [403, 403, 201]


def test_every_item_has_a_line_in_the_audit_trail(plane: ControlPlane) -> None:
    token = plane.rest.post("/tokens", json={"role": "operator"}).json()
    made, gone = send(
        plane.rest_as(token["secret"]), create("vm-1"), {"do": "withdraw", "id": "nobody"}
    )
    audit = plane.rest.get("/audit", params={"token": token["id"]}).json()["events"]
    lines = sorted(each["text"].partition(",")[0] for each in audit)
    assert lines == [
        f"POST /v1{PATH} items.0: create {made['enrolment']['id']}: 201",
        f"POST /v1{PATH} items.1: withdraw nobody: {gone['status']}",
        f"POST /v1{PATH}: 200",
    ]


def test_sent_again_it_happens_once_and_its_secrets_are_never_written(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path, fake=True)
    try:
        plane.start_controller()
        rest = plane.rest_as(plane.first_token())
        body, key = {"items": [create("vm-1")]}, {"Idempotency-Key": "one"}
        first = rest.post(PATH, json=body, headers=key).json()
        assert rest.post(PATH, json=body, headers=key).json() == first
        secret = first["outcomes"][0]["enrolment"]["secret"]
        plane.stop("controller", signal.SIGKILL)
        stored = b"".join(path.read_bytes() for path in tmp_path.glob("controller.db*"))
        assert first["outcomes"][0]["enrolment"]["id"].encode() in stored
        assert secret.encode() not in stored
        plane.start_controller()
        again = rest.post(PATH, json=body, headers=key)
        assert again.headers["idempotency-replayed"] == "true"
        assert again.json()["outcomes"][0]["enrolment"]["secret"] == ""
        assert len(rest.get("/enrolments").json()["enrolments"]) == 1
        assert use(plane, secret).status_code == 201
    finally:
        plane.close()
