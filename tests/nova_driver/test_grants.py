# SPDX-License-Identifier: Apache-2.0
"""Grants kept true to Nova, against a real controller and a Nova of which only its answers matter.

Nova itself is in tests/openstack; here its lists are made up, so that what it rarely does (leaving
a cell out, forgetting, a thousand instances) happens at will.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane, wait_for

pytest.importorskip("openstack")

from sluice.nova_driver.grants import Grants
from sluice.pool_client.access import Access
from sluice.pool_client.client import PoolClient
from sluice.pool_client.errors import Unanswered

pytestmark = pytest.mark.control_plane(shared=True, fake=True)

ORIGIN = "openstack.R1"


class FakeNova:
    """Answers as Nova's API does, from a table; counts what it is asked."""

    def __init__(self) -> None:
        self.table: dict[str, dict[str, Any]] = {}
        self.left_out: set[str] = set()
        self.asked: list[str] = []
        self._clock = 0

    def put(self, number: int, status: str = "ACTIVE", host: str = "c1", **specs: str) -> str:
        self._clock += 1
        uuid = f"{number:08x}-0000-0000-0000-000000000000"
        self.table[uuid] = {
            "id": uuid,
            "tenant_id": "p1",
            "status": status,
            "updated": f"2026-01-01T00:{self._clock // 60:02d}:{self._clock % 60:02d}Z",
            "OS-EXT-SRV-ATTR:host": host,
            "flavor": {
                "original_name": "f",
                "extra_specs": {f"vgpu:{key}": value for key, value in specs.items()},
            },
        }
        return uuid

    def servers(self, changes_since: str = "") -> Iterator[dict[str, Any]]:
        self.asked.append(f"list {changes_since}")
        for uuid, server in list(self.table.items()):
            if uuid not in self.left_out and server["updated"] >= changes_since:
                yield server

    def server(self, server_id: str) -> dict[str, Any] | None:
        self.asked.append(f"show {server_id}")
        return self.table.get(server_id)


@pytest.fixture
def nova() -> FakeNova:
    return FakeNova()


@pytest.fixture
def grants(plane: ControlPlane, nova: FakeNova) -> Iterator[Grants]:
    controller = PoolClient(Access([f"127.0.0.1:{plane.rest_port}"]))
    yield Grants(nova, controller, ORIGIN)  # type: ignore[arg-type]
    for each in plane.rest.get("/reservations").json()["reservations"]:
        plane.rest.delete(f"/reservations/{each['id']}")


def held(plane: ControlPlane) -> dict[str, int]:
    found = plane.rest.get("/reservations").json()["reservations"]
    return {each["owner"]: each["memory_mib"] for each in found}


def test_a_pass_makes_what_is_missing_and_nothing_twice(
    plane: ControlPlane, nova: FakeNova, grants: Grants
) -> None:
    first = nova.put(1, memory_mib="100", compute="10")
    nova.put(2)  # no vGPU
    assert grants.reconcile() == 1
    assert held(plane) == {first: 100}
    assert grants.reconcile() == 0
    assert grants.differences() == []


def test_when_nothing_changed_nova_is_asked_once(nova: FakeNova, grants: Grants) -> None:
    for number in range(20):
        nova.put(number)
    nova.put(20, memory_mib="64", compute="1")
    grants.reconcile()
    nova.asked.clear()
    assert grants.reconcile_changes() == 0
    assert nova.asked == ["list 2026-01-01T00:00:21Z"]


def test_a_list_that_lacks_an_instance_gives_nothing_back(
    plane: ControlPlane, nova: FakeNova, grants: Grants
) -> None:
    uuid = nova.put(1, memory_mib="100", compute="10")
    grants.reconcile()
    nova.left_out.add(uuid)  # its cell is down
    assert grants.reconcile() == 0
    assert held(plane) == {uuid: 100}
    del nova.table[uuid]
    assert grants.reconcile() == 1
    assert held(plane) == {}


def test_others_reservations_are_left_alone(
    plane: ControlPlane, nova: FakeNova, grants: Grants
) -> None:
    body = {"owner_kind": "vm", "owner": "web-1", "memory_mib": 64, "compute_percent": 5}
    assert plane.rest.post("/reservations", json=body).status_code == 201
    assert grants.reconcile() == 0
    assert held(plane) == {"web-1": 64}


def test_an_instance_deleted_while_nobody_looked_is_found(
    plane: ControlPlane, nova: FakeNova, grants: Grants
) -> None:
    nova.put(1, memory_mib="100", compute="10")
    grants.reconcile()
    nova.put(1, status="DELETED", memory_mib="100", compute="10")
    assert grants.reconcile_changes() == 1
    assert held(plane) == {}


def test_room_is_given_back_before_it_is_asked_for(
    plane: ControlPlane, nova: FakeNova, grants: Grants
) -> None:
    """Two instances change places; the larger fits only once the smaller has gone."""
    one = nova.put(1, memory_mib="100", compute="80")
    grants.reconcile()
    two = nova.put(2, memory_mib="100", compute="80")
    nova.put(1, status="DELETED", memory_mib="100", compute="80")
    assert grants.reconcile() == 2
    [left] = plane.rest.get("/reservations").json()["reservations"]
    assert (left["owner"], left["state"]) == (two, "held")
    assert one != two


def test_what_the_pool_refuses_is_told_and_tried_again(
    plane: ControlPlane, nova: FakeNova, grants: Grants, caplog: pytest.LogCaptureFixture
) -> None:
    uuid = nova.put(1, memory_mib="16000000", compute="10")
    assert grants.reconcile() == 0
    assert "a grant of 1 of 16000000 MiB and 10 % was refused" in grants.problems[uuid]
    grants.reconcile_changes()
    assert caplog.text.count("was refused") == 1  # said once
    [difference] = grants.differences()
    assert difference.subject == f"instance {uuid}"
    nova.put(1, memory_mib="100", compute="10")
    assert grants.reconcile_changes() == 1
    assert grants.problems == {}


def test_a_reservation_that_somebody_ended_is_made_anew(
    plane: ControlPlane, nova: FakeNova, grants: Grants
) -> None:
    uuid = nova.put(1, memory_mib="100", compute="10")
    grants.reconcile()
    [reservation] = plane.rest.get("/reservations").json()["reservations"]
    plane.rest.delete(f"/reservations/{reservation['id']}")
    assert grants.reservation_changed(reservation["id"]) == uuid
    assert grants.look(uuid) == 1
    assert held(plane) == {uuid: 100}


def test_a_flavor_over_several_nodes_is_refused_where_operators_look(
    plane: ControlPlane, nova: FakeNova, grants: Grants
) -> None:
    def events() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = plane.rest.get(
            "/events", params={"kind": "adapter.openstack.flavor_refused"}
        ).json()["events"]
        return found

    wide = {"memory_mib": "100", "compute": "100", "cross_node": "true"}
    one, two = (nova.put(number, **wide) for number in (1, 2))
    was = nova.put(3, memory_mib="100", compute="10")
    grants.reconcile()
    assert list(held(plane)) == [was]
    nova.put(3, **wide)  # one that has what it has keeps it
    grants.reconcile()
    grants.reconcile_changes()
    assert list(held(plane)) == [was]
    assert set(grants.problems) == {one, two, was}
    [told] = events()
    assert told["subject"] == "f"
    assert "on one GPU node so far; leave it out, or give false" in told["text"]
    nova.put(4, memory_mib="100", compute="10")  # of the same name, as it was before
    for _ in range(2):
        grants.reconcile()
    assert len(events()) == 1
    [difference] = [d for d in grants.differences() if d.subject == f"instance {one}"]
    assert "vgpu:cross_node='true'" in difference.found
    for number in (1, 2, 3):
        nova.put(number, memory_mib="100", compute="10")
    assert grants.reconcile_changes() == 2
    assert grants.problems == {}
    nova.put(1, **wide)
    grants.reconcile_changes()
    assert len(events()) == 1, "said already"
    nova.put(1, memory_mib="100", compute="10")
    grants.reconcile()
    nova.put(1, **wide)
    grants.reconcile()
    assert len(events()) == 2, "it was well, and is not any more"


def test_vgpus_on_several_nodes_are_a_difference(
    plane: ControlPlane, nova: FakeNova, grants: Grants, tmp_path: Path
) -> None:
    uuid = nova.put(1, memory_mib="100", compute="60", count="2")
    other = ControlPlane(tmp_path, fake=True, server={"node_name": "node-b"}, pool_of=plane)
    try:
        other.start_server()
        grants.reconcile()
        [difference] = grants.differences()
        assert (difference.subject, difference.wanted) == (f"instance {uuid}", "on one node")
        assert difference.found == f"{plane.node}, node-b"
        nova.put(1, status="DELETED", memory_mib="100", compute="60", count="2")
        grants.reconcile()
    finally:
        other.close()


class Line(httpx.HTTPTransport):
    """The line to the controller: counts changes, and loses answers when it is told to."""

    changes = 0
    loses = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if request.method != "GET":
            self.changes += 1
            if self.loses:
                answer.close()
                raise httpx.ReadError("the line broke")
        return answer


def by(plane: ControlPlane, nova: FakeNova, line: Line) -> Grants:
    controller = PoolClient(Access([f"127.0.0.1:{plane.rest_port}"]), transport=line)
    return Grants(nova, controller, ORIGIN)  # type: ignore[arg-type]


def test_a_thousand_instances_are_four_calls_and_one_that_is_refused_is_one(
    plane: ControlPlane, nova: FakeNova, grants: Grants, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(1000):
        nova.put(number, memory_mib="1", compute="1")
    refused = nova.put(500, memory_mib="16000000", compute="1")
    line = Line()
    many = by(plane, nova, line)
    began = time.monotonic()
    assert many.reconcile() == 999
    took = time.monotonic() - began
    assert line.changes == 4
    assert list(many.problems) == [refused]
    assert many.reconcile() == 0
    for number in range(1000):
        nova.put(number, status="DELETED", memory_mib="1", compute="1")
    line.changes = 0
    began = time.monotonic()
    assert many.reconcile_changes() == 999
    assert line.changes == 4
    gone = time.monotonic() - began
    with capsys.disabled():
        print(f"\n1,000 instances: first pass {took:.2f} s, all of them gone {gone:.2f} s")


def test_a_lost_answer_makes_nothing_twice(
    plane: ControlPlane, nova: FakeNova, grants: Grants
) -> None:
    line = Line()
    unlucky = by(plane, nova, line)
    nova.put(1, memory_mib="100", compute="10")
    assert unlucky.reconcile() == 1
    two = nova.put(2, memory_mib="100", compute="10")
    line.loses = True
    with pytest.raises(Unanswered, match="does not answer"):
        unlucky.reconcile_changes()
    line.loses = False
    assert unlucky.reconcile_changes() == 0, "it was made, and is found"
    found = plane.rest.get("/reservations").json()["reservations"]
    assert [each["owner"] for each in found].count(two) == 1
    # and what never came there is done then
    three = nova.put(3, memory_mib="100", compute="10")
    plane.stop("controller")
    with pytest.raises(Unanswered, match="does not answer"):
        unlucky.reconcile_changes()
    plane.start_controller()
    wait_for(lambda: plane.node_state() == "up")
    assert unlucky.reconcile_changes() == 1
    assert three in held(plane)


def test_access_goes_with_the_instance(plane: ControlPlane, nova: FakeNova, grants: Grants) -> None:
    uuid, other = (nova.put(n, memory_mib="100", compute="10") for n in (1, 2))
    grants.reconcile()
    for name, vm in (
        (f"{ORIGIN} instance {uuid}", uuid),
        (f"{ORIGIN} instance {other}", other),
        ("openstack.R2 instance x", uuid),  # another cloud's is its own adapter's
    ):
        body = {"name": name, "project": "p1", "vm": vm}
        assert plane.rest.post("/enrolments", json=body).status_code == 201

    def live() -> list[str]:
        found = plane.rest.get("/enrolments").json()["enrolments"]
        return sorted(each["name"] for each in found)

    assert grants.reconcile() == 0
    assert len(live()) == 3
    nova.put(1, status="DELETED", memory_mib="100", compute="10")
    grants.look(uuid)
    assert live() == [f"{ORIGIN} instance {other}", "openstack.R2 instance x"]
    # one that held nothing any more when it went is found by a full pass
    [reservation] = plane.rest.get("/reservations").json()["reservations"]
    plane.rest.delete(f"/reservations/{reservation['id']}")
    del nova.table[other]
    grants.reconcile()
    assert live() == ["openstack.R2 instance x"]


def test_another_adapter_goes_on_where_one_ended(
    plane: ControlPlane, nova: FakeNova, grants: Grants, tmp_path: Path
) -> None:
    nova.put(1, memory_mib="100", compute="10")
    grants.reconcile()
    controller = PoolClient(Access([f"127.0.0.1:{plane.rest_port}"]))
    other = Grants(nova, controller, ORIGIN)  # type: ignore[arg-type]
    assert other.reconcile() == 0
