# SPDX-License-Identifier: Apache-2.0
"""An operator moves what waits: to just that place, guarded, written down, and served in turn."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for

from sluice.controller.pool.decisions import GrantRequest
from sluice.controller.pool.queue.waiting import NoPlaceLeft, WaitingQueue
from tests.console.place import Place


def request(name: str, priority: int = 0, **more: Any) -> GrantRequest:
    return GrantRequest(name, memory_mib=100, compute_percent=10, priority=priority, **more)


def order(queue: WaitingQueue) -> list[str]:
    return [entry.request.request_id for entry in queue]


@pytest.mark.parametrize("ageing", [0.0, 600.0])
def test_moves_arrivals_and_departures_keep_the_order_that_was_wanted(ageing: float) -> None:
    """Against a plain list, which every move and every departure changes in the same way."""
    rng = random.Random(7)
    queue, model, number = WaitingQueue(ageing), [], 0
    for step in range(3000):
        action = rng.random()
        if action < 0.35 or not model:
            number += 1
            name = f"r{number}"
            queue.add(request(name, rng.randrange(3)), None, float(step // 50))
            place = queue.position(name)
            model.insert(place - 1, name)
        elif action < 0.8:
            name, to = rng.choice(model), rng.randrange(1, len(model) + 3)
            assert queue.move(name, to)
            model.remove(name)
            model.insert(min(to - 1, len(model)), name)
        else:
            name = rng.choice(model)
            assert queue.remove(name)
            model.remove(name)
        assert order(queue) == model
    assert [queue.position(name) for name in model] == list(range(1, len(model) + 1))
    walked = [entry.request.request_id for entry in queue.walk()]
    assert walked == [model[0]], "all fit alike, so a walk sees the first"


def test_who_comes_later_goes_by_priority_as_ever() -> None:
    queue = WaitingQueue()
    for name, priority in (("low", 0), ("high", 5)):
        queue.add(request(name, priority), None)
    queue.move("low", 1)
    assert order(queue) == ["low", "high"]
    queue.add(request("higher", 9), None)
    queue.add(request("late", 0), None)
    assert order(queue) == ["higher", "low", "high", "late"]


def test_a_place_may_be_used_up_and_nothing_is_lost_by_it() -> None:
    queue = WaitingQueue()
    for name in ("first", "x", "y", "last"):
        queue.add(request(name), None)
    turns = 0
    while True:
        try:
            queue.move("xy"[turns % 2], 2)
        except NoPlaceLeft:
            break
        turns += 1
        assert turns < 1000
    assert turns > 50
    assert sorted(order(queue)) == ["first", "last", "x", "y"]
    assert order(queue)[0] == "first"
    queue.move("x", 1)
    assert order(queue)[0] == "x"


def test_a_deadline_is_the_requests_wherever_it_stands() -> None:
    queue = WaitingQueue()
    queue.add(request("short"), 10.0)
    queue.add(request("long"), 99.0)
    queue.move("long", 1)
    assert [r.request_id for r in queue.overdue(11.0)] == ["short"]
    assert order(queue) == ["long"]
    queue.add(request("long"), 50.0)  # it asks anew, to wait less long
    assert [r.request_id for r in queue.overdue(60.0)] == ["long"]
    assert not queue.overdue(100.0)


def test_how_long_one_has_waited_is_not_moved() -> None:
    queue = WaitingQueue()
    queue.add(request("old"), None, 1.0)
    queue.add(request("young"), None, 5.0)
    queue.move("young", 1)
    assert queue.oldest == 1.0
    queue.remove("old")
    assert queue.oldest == 5.0
    assert not queue.move("none", 1)
    assert queue.generation == 1


async def test_the_moved_is_served_first_when_room_is_there(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    place.node(gpus=1)
    held = await place.granted(memory_mib=6000, compute_percent=100)
    for name in ("a", "b", "c"):
        place.pool.requests.submit(
            GrantRequest(name, memory_mib=6000, compute_percent=100, wait_seconds=-1)
        )
    decisions = place.pool.requests.move("c", 1, "somebody")
    assert not decisions.answers
    assert order(place.pool.queue) == ["c", "a", "b"]
    from sluice.resources.ends import End, EndCause

    decisions = place.pool.lifecycle.release(held.grant.id, End(EndCause.OPERATOR, "test"))
    assert list(decisions.answers) == ["c"]
    await place.store.close()


# REST


@pytest.mark.control_plane(guarded=True)
def test_rest_moves_with_a_guard_and_writes_it_down(plane: ControlPlane) -> None:
    rest = plane.rest
    gpus = rest.get("/gpus").json()["gpus"]
    for _ in gpus:
        plane.client(ratio_percent=100)
    names = []
    for number in range(3):
        plane.client(ratio_percent=100, wait_seconds=-1, program=f"p{number}.py")
        wait_for(lambda number=number: rest.get("/queue").json()["total"] == number + 1)
    answer = rest.get("/queue")
    names = [each["request_id"] for each in answer.json()["waiting"]]
    tag = answer.headers["ETag"]
    moved = rest.patch(f"/queue/{names[2]}", json={"position": 1}, headers={"If-Match": tag})
    assert moved.status_code == 200, moved.text
    assert moved.json()["waiting"][0]["position"] == 1
    now = rest.get("/queue")
    assert [e["request_id"] for e in now.json()["waiting"]] == [names[2], names[0], names[1]]
    # somebody who looked before that does not move by mistake
    late = rest.patch(f"/queue/{names[1]}", json={"position": 1}, headers={"If-Match": tag})
    assert late.status_code == 412
    assert now.headers["ETag"] != tag
    for body, status in (
        ({"position": 0}, 422),
        ({"position": 1 << 40}, 422),
        ({}, 422),
        ({"position": 1, "x": 1}, 422),
    ):
        assert rest.patch(f"/queue/{names[1]}", json=body).status_code == status
    assert rest.patch("/queue/none", json={"position": 1}).status_code == 404
    viewer = rest.post("/tokens", json={"role": "viewer", "name": "v"}).json()["secret"]
    assert (
        plane.rest_as(viewer).patch(f"/queue/{names[1]}", json={"position": 1}).status_code == 403
    )
    events = rest.get("/events", params={"limit": 100, "subject": names[2]}).json()["events"]
    assert any(e["kind"] == "request.moved" and "from place 3 to 1" in e["text"] for e in events)
    trail = rest.get("/audit", params={"limit": 100}).json()["events"]
    assert any(f"/v1/queue/{names[2]}" in each["text"] for each in trail)
