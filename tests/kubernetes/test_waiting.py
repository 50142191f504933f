# SPDX-License-Identifier: Apache-2.0
"""Pods that wait are told why, in numbers that are right; by whom they are told is stood in for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.kubernetes import waiting_events
from sluice.kubernetes.cluster import ClusterError
from sluice.kubernetes.waiting import (
    ROOM,
    Holdings,
    Request,
    is_ours,
    requests_of_claim,
    requests_of_pod,
    why,
)
from sluice.kubernetes.waiting_events import HAS_ROOM, MOST_PODS, WaitingEvents, event

CLASS = "vgpu.sluice.io"


def device(name: str = "d", *, tainted: bool = False, divided: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": name,
        "capacity": {
            "memory": {"value": "4000Mi", "requestPolicy": {"default": "1000Mi"}},
            "compute": {"value": "80", "requestPolicy": {"default": "20"}},
            "slices": {"value": "4"},
        },
    }
    if not divided:
        found["capacity"] = {"memory": {"value": "1000Mi"}, "compute": {"value": "20"}}
    return found | ({"taints": [{"key": "k"}]} if tainted else {})


def held(uid: str, memory: str, compute: str, name: str = "d") -> dict[str, Any]:
    result = {
        "driver": CLASS,
        "request": "gpu",
        "pool": "n1",
        "device": name,
        "consumedCapacity": {"memory": memory, "compute": compute, "slices": "1"},
    }
    return {
        "metadata": {"uid": uid, "namespace": "red", "name": uid},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def claim(**exactly: Any) -> dict[str, Any]:
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS, **exactly}}
    return {
        "metadata": {"uid": "w", "namespace": "red", "name": "wants"},
        "spec": {"devices": {"requests": [request]}},
    }


def asked(memory: str, compute: str, count: int = 1) -> Request:
    capacity = {"requests": {"memory": memory, "compute": compute}}
    [[found]] = requests_of_claim(claim(capacity=capacity, count=count), [CLASS])
    return found


def test_what_claims_hold_is_counted_once_and_given_back() -> None:
    holdings = Holdings()
    one = held("one", "1Gi", "30")
    for _ in range(3):
        holdings.take("one", one)
    holdings.take("two", held("two", "512Mi", "10"))
    assert holdings.taken("n1", "d") == (1536, 40, 2)
    holdings.take("one", {**one, "status": {}})
    assert holdings.taken("n1", "d") == (512, 10, 1)
    holdings.take_all({"one": one})
    assert holdings.taken("n1", "d") == (1024, 30, 1)
    holdings.drop("one")
    holdings.drop("one")
    assert holdings.taken("n1", "d") == (0, 0, 0)


def test_the_reason_has_what_is_wanted_and_what_is_free() -> None:
    holdings = Holdings()
    holdings.take("one", held("one", "3000Mi", "30"))
    devices = {"n1": [device()]}
    assert why(asked("1000Mi", "50"), devices, holdings) == ROOM
    for request in (asked("1001Mi", "50"), asked("1000Mi", "51"), asked("1Mi", "1", count=4)):
        said = why(request, devices, holdings)
        assert said.startswith("request gpu of claim red/wants wants")
        assert said.endswith("at most 1000 MiB, 50 % and 3 vGPU(s) of a GPU are free")
    plain = Request("container c", 1)  # of the reservation's own size
    assert why(plain, devices, holdings) == ROOM
    holdings.take("two", held("two", "1Mi", "1"))
    assert "1 vGPU(s) of 1000 MiB and 20 %" in why(plain, devices, holdings)
    assert why(plain, {"n1": [device(tainted=True)]}, holdings).endswith("can be used now")
    assert why(plain, {"n1": []}, holdings) == "the pool has nothing reserved for this cluster"


def test_vgpus_of_a_claim_are_on_one_node_and_whole_devices_are_taken_whole() -> None:
    two = asked("1000Mi", "20", count=2)
    apart = {node: [device(f"{node}-0", divided=False)] for node in ("n1", "n2")}
    assert why(two, apart, Holdings()) != ROOM
    beside = {"n1": [device("a", divided=False), device("b", divided=False)]}
    assert why(two, beside, Holdings()) == ROOM
    holdings = Holdings()
    holdings.take("one", held("one", "1000Mi", "20", "a"))
    assert why(asked("1000Mi", "20"), beside, holdings) == ROOM
    assert "and 2 vGPU(s)" not in why(two, beside, holdings)


def test_requests_are_those_for_classes_of_ours() -> None:
    other = claim(deviceClassName="other")
    assert list(requests_of_claim(other, [CLASS])) == []
    both = [{"name": "a", "deviceClassName": CLASS}, {"name": "b", "deviceClassName": "other"}]
    other["spec"]["devices"]["requests"] = [{"name": "gpu", "firstAvailable": both}]
    [[found]] = requests_of_claim(other, [CLASS])
    assert (found.count, found.memory_mib) == (1, None)
    limits = {"resources": {"limits": {"sluice.io/vgpu": "2"}}}
    pod = {"spec": {"containers": [{"name": "c", **limits}, {"name": "d"}]}}
    assert list(requests_of_pod(pod)) == [[Request("container c", 2)]]
    selects = {"cel": {"expression": f'device.driver == "{CLASS}"'}}
    assert is_ours({"spec": {"selectors": [selects]}})
    assert not is_ours({"spec": {}})


class FakeCluster:
    """A cluster whose pods wait for a claim that asks for more than there is."""

    def __init__(self, pods: int) -> None:
        self.pods = [waiting_pod(f"p{number}") for number in range(pods)]
        self.wants = "9000Mi"
        self.events: list[dict[str, Any]] = []

    async def unplaced_pods(self) -> list[dict[str, Any]]:
        return self.pods

    async def classes(self) -> list[dict[str, Any]]:
        selector = {"cel": {"expression": f'device.driver == "{CLASS}"'}}
        return [{"metadata": {"name": CLASS}, "spec": {"selectors": [selector]}}]

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        if name == "gone":
            raise ClusterError("404", 404)
        return claim(capacity={"requests": {"memory": self.wants}})

    async def make_event(self, body: dict[str, Any]) -> None:
        self.events.append(body)


def waiting_pod(name: str, claim_name: str = "wants") -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    metadata = {"uid": name, "namespace": "red", "name": name, "resourceVersion": "1"}
    return {
        "metadata": metadata,
        "spec": {"resourceClaims": [{"name": "g", "resourceClaimName": claim_name}]},
        "status": {"conditions": [condition]},
    }


def events_of(cluster: FakeCluster) -> WaitingEvents:
    return WaitingEvents(cluster, lambda: {"n1": [device()]}, Holdings())  # type: ignore[arg-type]


def test_each_pod_is_told_once_and_no_flood_comes_of_many() -> None:
    cluster = FakeCluster(MOST_PODS + 5)
    tells = events_of(cluster)
    for told in (MOST_PODS, MOST_PODS + 5, MOST_PODS + 5):
        asyncio.run(tells.look())
        assert len(cluster.events) == told
    assert len({each["involvedObject"]["uid"] for each in cluster.events}) == MOST_PODS + 5


def test_a_pod_is_told_again_when_something_else_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_events, "AGAIN_SECONDS", 0.0)
    cluster = FakeCluster(2)
    tells = events_of(cluster)
    for _ in range(3):
        asyncio.run(tells.look())
    assert len(cluster.events) == 2
    cluster.wants = "8000Mi"
    asyncio.run(tells.look())
    assert len(cluster.events) == 4
    assert "8000 MiB" in cluster.events[-1]["message"]


def test_pods_that_have_room_keep_nobody_else_from_being_told() -> None:
    cluster = FakeCluster(3 * MOST_PODS)
    cluster.wants = "1000Mi"
    tells = events_of(cluster)
    for _ in range(6):
        asyncio.run(tells.look())
    assert len({each["involvedObject"]["uid"] for each in cluster.events}) == 3 * MOST_PODS


def test_room_that_is_not_taken_is_said_when_it_stays() -> None:
    cluster = FakeCluster(1)
    cluster.wants = "1000Mi"
    tells = events_of(cluster)
    asyncio.run(tells.look())
    assert cluster.events == []
    asyncio.run(tells.look())
    assert [each["message"] for each in cluster.events] == [HAS_ROOM]


def test_pods_that_are_not_ours_to_speak_of_are_told_nothing() -> None:
    cluster = FakeCluster(0)
    gated = waiting_pod("gated")
    gated["status"]["conditions"][0]["reason"] = "SchedulingGated"
    placed = waiting_pod("placed")
    placed["spec"]["nodeName"] = "n1"
    bare = waiting_pod("bare")
    bare["spec"] = {"containers": [{"name": "c"}]}
    odd = waiting_pod("odd")
    odd["spec"] = {"containers": [{"name": "c", "resources": {"limits": {"sluice.io/vgpu": "x"}}}]}
    cluster.pods = [gated, placed, bare, odd, waiting_pod("early", "gone"), {**bare, "status": {}}]
    asyncio.run(events_of(cluster).look())
    assert cluster.events == []


def test_an_event_of_a_pod_with_the_longest_name_is_one() -> None:
    made = event(waiting_pod("x" * 253), "w" * 2000)
    assert len(made["metadata"]["generateName"]) + 5 <= 253
    assert len(made["message"]) == 1024
