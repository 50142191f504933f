# SPDX-License-Identifier: Apache-2.0
"""What all of the REST API has in common: roles, pages, events that are followed, keys, rates."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane, wait_for

from sluice.config.buckets import Buckets

pytestmark = pytest.mark.control_plane(shared=True, as_admin=True, fake=True)

SMALL = {"gmem_mib": 1, "ratio_percent": 1}


@pytest.fixture
def grants(plane: ControlPlane) -> Iterator[list[str]]:
    """Five sessions that nobody opened yet, as their grants' ids."""
    tickets = [plane.rest.post("/sessions", json=SMALL).json() for _ in range(5)]
    yield [ticket["grant_id"] for ticket in tickets]
    for ticket in tickets:
        plane.rest.delete(f"/grants/{ticket['grant_id']}")
    wait_for(lambda: not plane.grants())


def test_every_operation_declares_its_roles_and_its_problems(plane: ControlPlane) -> None:
    known = {"admin", "operator", "viewer", "tenant", "node", "client", "enrolment"}
    paths = plane.rest.get("/openapi.json").json()["paths"]
    assert len(paths) >= 15
    for path, operations in paths.items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            [roles] = [each["bearer"] for each in operation.get("security", []) if "bearer" in each]
            assert roles, where
            assert set(roles) <= known, where
            for status, answer in operation["responses"].items():
                if status == "default" or int(status) >= 400:
                    assert set(answer["content"]) == {"application/problem+json"}, where


# pages


def all_pages(plane: ControlPlane, path: str, key: str, **parameters: Any) -> list[Any]:
    found: list[Any] = []
    marker: str | None = None
    while True:
        asked = {**parameters, **({"marker": marker} if marker else {})}
        answer = plane.rest.get(path, params=asked).json()
        found += answer[key]
        if (marker := answer["next_marker"]) is None:
            return found
        assert len(answer[key]) == parameters["limit"]


@pytest.mark.parametrize("limit", [1, 2, 5, 6])
def test_pages_put_together_are_the_list(
    plane: ControlPlane, grants: list[str], limit: int
) -> None:
    found = all_pages(plane, "/grants", "grants", limit=limit)
    assert [grant["id"] for grant in found] == grants
    events = all_pages(plane, "/events", "events", limit=limit, subject=grants[0])
    assert [event["subject"] for event in events] == [grants[0]] * len(events)


def test_pages_stay_right_while_things_go(plane: ControlPlane, grants: list[str]) -> None:
    first = plane.rest.get("/grants", params={"limit": 2, "state": "live"}).json()
    shown = [grant["id"] for grant in first["grants"]]
    for gone in (grants[1], grants[2]):
        plane.rest.delete(f"/grants/{gone}")
    wait_for(lambda: len(plane.grants()) == 3)
    rest = plane.rest.get("/grants", params={"limit": 9, "marker": first["next_marker"]}).json()
    assert shown + [grant["id"] for grant in rest["grants"]] == [*grants[:2], *grants[3:]]


@pytest.mark.parametrize("marker", ["x", "", "e30", "WzFd", "W251bGxd", "WyJ4Il0", "[" * 900])
def test_a_made_up_marker_does_no_harm(plane: ControlPlane, marker: str) -> None:
    for path in ("/nodes", "/gpus", "/grants", "/sessions", "/events", "/tokens", "/audit"):
        answer = plane.rest.get(path, params={"marker": marker})
        assert answer.status_code in (200, 422), path


def test_lists_are_filtered(plane: ControlPlane, grants: list[str]) -> None:
    def count(path: str, key: str, **filters: str) -> int:
        return len(plane.rest.get(path, params=filters).json()[key])

    assert count("/nodes", "nodes", state="up") == 1
    assert count("/nodes", "nodes", state="lost") == 0
    assert count("/gpus", "gpus", model="none such") == 0
    assert count("/sessions", "sessions", grant_id=grants[0]) == 1
    assert count("/sessions", "sessions", channel="shm") == 0
    assert count("/grants", "grants", project="red") == 0
    made = count("/events", "events", subject=grants[0], kind="grant.made")
    assert made == 1


# events that are followed


def followed(lines: Iterator[str], count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    number = ""
    for line in lines:
        if line.startswith("id: "):
            number = line[4:]
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            assert str(event["number"]) == number
            found.append(event)
            if len(found) == count:
                break
    return found


def test_a_stream_is_the_log_as_it_is_stored(plane: ControlPlane) -> None:
    with plane.rest.stream("GET", "/events/stream", params={"kind": "grant.made"}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        # from now on: the answer's headers say that it has begun
        others = plane.rest_as(plane.first_token())
        made = others.post("/sessions", json=SMALL).json()
        lines = stream.iter_lines()
        assert next(lines).startswith("retry: ")
        [seen] = followed(lines, 1)
    assert (seen["kind"], seen["subject"]) == ("grant.made", made["grant_id"])
    others.delete(f"/grants/{made['grant_id']}")


def test_a_stream_is_resumed_where_it_ended(plane: ControlPlane, grants: list[str]) -> None:
    listed = plane.rest.get("/events", params={"limit": 1000}).json()["events"][::-1]
    with plane.rest.stream("GET", "/events/stream", params={"since": 0}) as stream:
        first = followed(stream.iter_lines(), 3)
    rest = len(listed) - 3
    last = {"Last-Event-ID": str(first[-1]["number"])}
    with plane.rest.stream("GET", "/events/stream", headers=last) as stream:
        assert first + followed(stream.iter_lines(), rest) == listed


# idempotency keys


def test_a_creation_sent_twice_happens_once(plane: ControlPlane) -> None:
    def send(key: str, **body: Any) -> httpx.Response:
        return plane.rest.post("/sessions", json=body, headers={"Idempotency-Key": key})

    first, again = send("one", **SMALL), send("one", **SMALL)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert len(plane.grants()) == 1
    assert send("one", **SMALL, priority=1).status_code == 422
    other = plane.rest_as(
        plane.rest.post("/tokens", json={"role": "operator"}).json()["secret"]
    ).post("/sessions", json=SMALL, headers={"Idempotency-Key": "one"})
    assert other.json()["grant_id"] != first.json()["grant_id"], "keys are their callers' own"
    for ticket in (first.json(), other.json()):
        plane.rest.delete(f"/grants/{ticket['grant_id']}")
    wait_for(lambda: not plane.grants())


def test_what_was_refused_may_be_tried_again_with_its_key(plane: ControlPlane) -> None:
    key = {"Idempotency-Key": "refused"}
    for _ in range(2):
        answer = plane.rest.post("/sessions", json={"gmem_mib": 2**30}, headers=key)
        assert answer.status_code == 409
        assert "idempotency-replayed" not in answer.headers


def test_many_at_once_with_one_key_create_one(plane: ControlPlane) -> None:
    before = len(plane.rest.get("/tokens").json()["tokens"])

    def send(_: int) -> int:
        client = plane.rest_as(plane.first_token())
        body = {"role": "viewer", "name": "one"}
        answer = client.post("/tokens", json=body, headers={"Idempotency-Key": "crowd"})
        return answer.status_code

    with ThreadPoolExecutor(8) as crowd:
        statuses = list(crowd.map(send, range(16)))
    assert set(statuses) <= {201, 409}
    assert 201 in statuses
    assert len(plane.rest.get("/tokens").json()["tokens"]) == before + 1


def test_a_key_is_remembered_by_the_next_controller_without_its_secret(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path, fake=True)
    try:
        plane.start_controller()
        client = plane.rest_as(plane.first_token())
        body, key = {"role": "viewer"}, {"Idempotency-Key": "across"}
        first = client.post("/tokens", json=body, headers=key).json()
        plane.stop("controller", signal.SIGKILL)
        plane.start_controller()
        again = client.post("/tokens", json=body, headers=key)
        assert again.headers["idempotency-replayed"] == "true"
        assert again.json() == {**first, "secret": ""}
        assert plane.rest_as(first["secret"]).get("/pool").status_code == 200
    finally:
        plane.close()


# rates


def test_a_bucket_holds_two_seconds_and_refills() -> None:
    now = [0.0]
    buckets = Buckets(10, lambda: now[0])
    assert [buckets.take("a") for _ in range(20)] == [0.0] * 20
    assert buckets.take("a") == pytest.approx(0.1)
    assert buckets.take("b") == 0.0
    now[0] += 0.1
    assert (buckets.take("a"), buckets.take("a") > 0) == (0.0, True)
    assert Buckets(0).take("a") == 0.0


def test_who_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path, fake=True, auth={"requests_per_second": "0.5"})
    try:
        plane.start_controller()
        answers = [plane.rest.get("/pool") for _ in range(5)]
        late = [answer for answer in answers if answer.status_code == 429]
        assert late
        assert int(late[0].headers["retry-after"]) >= 1
        assert late[0].headers["content-type"] == "application/problem+json"
    finally:
        plane.close()


def test_a_body_has_an_end(plane: ControlPlane) -> None:
    large = b" " * (1 << 20) + b"{}"
    head = {"Content-Type": "application/json"}
    assert plane.rest.post("/sessions", content=large, headers=head).status_code == 413

    def endless() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 65536

    for more in ({}, {"Idempotency-Key": "large"}):
        # the answer comes before the body's end, and with it the connection may go
        with contextlib.suppress(httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
            answer = plane.rest.post("/sessions", content=endless(), headers={**head, **more})
            assert answer.status_code == 413
    assert plane.grants() == []
