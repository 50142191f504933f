# SPDX-License-Identifier: Apache-2.0
"""POST /v1/reservations:batch: each item for itself, and all of them stored or none."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane

PATH = "/reservations:batch"
MOST = 250


pytestmark = pytest.mark.control_plane(
    shared=True, as_admin=True, fake=True, auth={"requests_per_second": 0}
)


@pytest.fixture(autouse=True)
def nothing_reserved_after(shared_plane: ControlPlane) -> Iterator[None]:
    """What a test reserved, it does not leave to the next."""
    yield
    if items := [{"do": "end", "id": each["id"]} for each in listed(shared_plane.rest)]:
        assert {each["status"] for each in send(shared_plane.rest, *items)} == {200}


def listed(rest: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rest.get("/reservations", params={"limit": 5000}).json()[
        "reservations"
    ]
    return found


def create(owner: str, **wanted: Any) -> dict[str, Any]:
    sizes = {"memory_mib": 1, "compute_percent": 1, "wait": True}
    return {"do": "create", "owner_kind": "vm", "owner": owner, **sizes, **wanted}


def send(rest: httpx.Client, *items: Any, **headers: str) -> list[dict[str, Any]]:
    answer = rest.post(PATH, json={"items": items}, headers=headers)
    assert answer.status_code == 200, answer.text
    outcomes: list[dict[str, Any]] = answer.json()["outcomes"]
    assert len(outcomes) == len(items)
    return outcomes


def test_each_item_is_answered_as_the_same_request_alone(plane: ControlPlane) -> None:
    [made] = send(plane.rest, create("kept", project="p1", origin="vsphere.dc1"))
    assert made["status"] == 201
    kept = made["reservation"]
    assert kept == plane.rest.get(f"/reservations/{kept['id']}").json()
    outcomes = send(
        plane.rest,
        create("large", memory_mib=2**31 - 1),
        {"do": "resize", "id": kept["id"], "memory_mib": 3, "generation": 99},
        {"do": "resize", "id": kept["id"], "memory_mib": 2, "generation": kept["generation"]},
        {"do": "end", "id": "nobody"},
        create("fits"),
        {"do": "end", "id": kept["id"]},
        {"do": "end", "id": kept["id"]},
    )
    assert [each["status"] for each in outcomes] == [409, 412, 200, 404, 201, 200, 409]
    alone = plane.rest.post("/reservations", json=create("large", memory_mib=2**31 - 1))
    assert outcomes[0]["problem"]["detail"] == alone.json()["detail"]
    assert "list them at" in outcomes[3]["problem"]["detail"]
    assert outcomes[2]["reservation"]["memory_mib"] == 2
    assert outcomes[5]["reservation"]["state"] == "ended"
    assert [each["owner"] for each in listed(plane.rest)] == ["fits"]


@pytest.mark.parametrize(
    ("item", "place"),
    [
        (create("x", memory_mib=-1), "items.1.memory_mib: "),
        (create("x", memory_mib="much"), "items.1.memory_mib: "),
        (create("x" * 121), "items.1.owner: "),
        (create("x\x00\n"), "items.1.owner: "),
        (create("x", count=10**30), "items.1.count: "),
        ({"do": "create", "owner": "x"}, "items.1.owner_kind: "),
        ({"do": "resize", "count": 1}, "items.1.id: "),
        ({"do": "end", "id": "x", "generation": -1}, "items.1.generation: "),
        ({"do": "drop", "id": "x"}, "items.1.do: "),
        ({}, "items.1.do: "),
        ([["x"] * 99], "items.1.do: "),
        (None, "items.1.do: "),
    ],
)
def test_what_an_item_has_wrong_is_told_by_item_and_field(
    plane: ControlPlane, item: Any, place: str
) -> None:
    good, bad, other = send(plane.rest, create("good"), item, create("other"))
    assert (good["status"], bad["status"], other["status"]) == (201, 422, 201)
    assert bad["reservation"] is None
    assert bad["problem"]["detail"].startswith(place), bad
    assert len(bad["problem"]["detail"]) < 600
    assert {each["owner"] for each in listed(plane.rest)} == {"good", "other"}


def test_too_many_too_large_and_no_items_are_refused_as_a_whole(plane: ControlPlane) -> None:
    many = [create(f"vm-{number}") for number in range(MOST + 1)]
    for body, status, told in (
        ({"items": many}, 422, "body.items: List should have at most 250"),
        ({"items": []}, 422, "body.items: List should have at least 1"),
        ({"items": {"0": create("x")}}, 422, "body.items: "),
        ({}, 422, "body.items: "),
        ([create("x")], 422, "body: "),
        ({"items": [create("x", note="y" * (1 << 20))]}, 413, "a body has at most"),
    ):
        answer = plane.rest.post(PATH, json=body)
        assert (answer.status_code, answer.json()["detail"][: len(told)]) == (status, told)
    assert listed(plane.rest) == []
    assert {each["status"] for each in send(plane.rest, *many[:MOST])} == {201}


def test_sent_again_with_its_key_it_happens_once(plane: ControlPlane) -> None:
    items = [create("one"), create("large", memory_mib=2**31 - 1)]
    key = {"Idempotency-Key": "batch one"}
    first = plane.rest.post(PATH, json={"items": items}, headers=key)
    again = plane.rest.post(PATH, json={"items": items}, headers=key)
    assert again.headers["idempotency-replayed"] == "true"
    assert first.json() == again.json()
    assert [each["status"] for each in again.json()["outcomes"]] == [201, 409]
    assert [each["owner"] for each in listed(plane.rest)] == ["one"]
    other = plane.rest.post(PATH, json={"items": items[:1]}, headers=key)
    assert other.status_code == 422


@pytest.mark.parametrize("role", ["tenant", "viewer", "node"])
def test_only_operators_may(plane: ControlPlane, role: str) -> None:
    more = {"tenant": {"project": "p1"}, "node": {"node": "n"}}.get(role, {})
    made = plane.rest.post("/tokens", json={"role": role, **more}).json()
    own = plane.rest.post("/reservations", json=create("own", project="p1")).json()
    items = [create("x", project="p1"), {"do": "end", "id": own["id"]}]
    answer = plane.rest_as(made["secret"]).post(PATH, json={"items": items})
    assert answer.status_code == 403
    assert "is for operator" in answer.json()["detail"]
    assert [each["owner"] for each in listed(plane.rest)] == ["own"]
    audit = plane.rest.get("/audit", params={"token": made["id"]}).json()["events"]
    assert [each["kind"] for each in audit if "batch" in each["text"]] == ["audit.denied"]


def test_every_item_has_a_line_in_the_audit_trail(plane: ControlPlane) -> None:
    made = plane.rest.post("/tokens", json={"role": "operator", "name": "adapter"}).json()
    rest = plane.rest_as(made["secret"])
    [first] = send(rest, create("vm-1"))
    name = {"X-Request-Id": "r-77"}
    ended = {"do": "end", "id": first["reservation"]["id"]}
    second = send(rest, ended, create("vm-2"), create("vm-3", count=0), **name)[1]
    audit = plane.rest.get("/audit", params={"token": made["id"]}).json()["events"]
    lines = [each["text"] for each in audit if "r-77" in each["text"]]
    who = f"{made['id']} (adapter) from 127.0.0.1, request r-77"
    path = "POST /v1/reservations:batch"
    assert sorted(lines) == [
        f"{path} items.0: end {ended['id']}: 200, {who}",
        f"{path} items.1: create {second['reservation']['id']} for vm vm-2: 201, {who}",
        f"{path} items.2: 422, {who}",
        f"{path}: 200, {who}",
    ]


def test_a_controller_that_is_killed_has_stored_all_of_it_or_nothing(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path, fake=True, auth={"requests_per_second": 0})
    try:
        plane.start_controller()
        plane.start_server()
        rest = plane.rest_as(plane.first_token())
        expected: set[str] = set()
        for turn in range(5):
            owners = [f"vm-{turn}-{number}" for number in range(MOST)]
            body = {"items": [create(owner) for owner in owners]}
            key = {"Idempotency-Key": f"turn {turn}"}
            answered = threading.Event()

            def ask(body: Any = body, key: Any = key, done: threading.Event = answered) -> None:
                with contextlib.suppress(httpx.HTTPError):
                    plane.rest_as(plane.first_token()).post(PATH, json=body, headers=key)
                done.set()

            asking = threading.Thread(target=ask)
            asking.start()
            answered.wait(0.03 * turn)  # before it comes, while it is taken, once it is answered
            plane.stop("controller", signal.SIGKILL)
            asking.join()  # it asks nobody who comes later
            plane.start_controller()
            there = {each["owner"] for each in listed(rest)} - expected
            assert there in (set(), set(owners)), f"{len(there)} of {MOST}"
            # what the adapter does then: it asks again with its key, or looks and asks anew
            again = rest.post(PATH, json=body, headers=key)
            assert again.status_code in (200, 409)
            if again.status_code == 409:
                assert "not known" in again.json()["title"]
                if not there:
                    assert {each["status"] for each in send(rest, *body["items"])} == {201}
            expected |= set(owners)
            found = [each["owner"] for each in listed(rest)]
            assert sorted(found) == sorted(expected), "none twice"
    finally:
        plane.close()
