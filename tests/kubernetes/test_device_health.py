# SPDX-License-Identifier: Apache-2.0
"""What the kubelet is told of devices is this host's word on its own GPUs, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

from sluice.kubernetes.cluster import ClusterError
from sluice.kubernetes.device_health import DeviceHealth, Named, response, states_of
from sluice.kubernetes.naming import device_name
from sluice.kubernetes.server_socket import HostCondition, ServerError
from sluice.rpc import dra_health_v1_pb2 as health

UUIDS = [f"GPU-53c0a8e4-0000-4000-8000-00000000000{digit}" for digit in "012"]
ID = "0123456789abcdef"
UID = "6d964394-9a24-451d-a0e4-2499d34c6c33"
UNKNOWN, HEALTHY, UNHEALTHY = (
    health.HealthStatus.UNKNOWN,
    health.HealthStatus.HEALTHY,
    health.HealthStatus.UNHEALTHY,
)


def named(number: int, pool: str = "n1") -> Named:
    return Named(pool, device_name(UUIDS[number], ID))


def test_a_fault_is_unhealthy_and_what_takes_nothing_new_is_not() -> None:
    conditions = {
        UUIDS[0]: HostCondition("n1", "XID 79", "", ""),
        UUIDS[1]: HostCondition("n1", "", "its acceptance checks run", ""),
    }
    listed = [named(0), named(1), named(2), named(0, "n2"), Named("n1", "no device of ours")]
    found = states_of(listed, conditions)
    assert found[named(0)] == (UNHEALTHY, "XID 79")
    assert found[named(1)] == (HEALTHY, "its acceptance checks run")
    assert found[named(2)] == (UNHEALTHY, "this host does not offer the GPU any more")
    assert len(found) == 3  # of another host's, and of what is none, nothing is said
    answer = response(found, 1_700_000_000)
    assert {each.device.device_name for each in answer.devices} == {d.device for d in found}
    assert all(each.last_updated_time == 1_700_000_000 for each in answer.devices)


def test_the_longest_reason_is_cut() -> None:
    conditions = {UUIDS[0]: HostCondition("n1", "x" * 5000, "", "")}
    assert len(states_of([named(0)], conditions)[named(0)].message) == 1024


class FakeServer:
    """A host's server that can be away."""

    def __init__(self) -> None:
        self.listed = {UID: "red/c"}
        self.is_away = False

    async def claims(self) -> dict[str, str]:
        if self.is_away:
            raise ServerError("sluice-server does not answer")
        return self.listed

    async def conditions(self) -> dict[str, HostCondition]:
        return {UUIDS[0]: HostCondition("n1", "", "", "")}


class FakeCluster:
    """A cluster with one claim, asked so many times."""

    def __init__(self) -> None:
        self.asked = 0
        self.status = 500

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        self.asked += 1
        if self.status:
            raise ClusterError("not now", self.status)
        one = {"driver": "vgpu.sluice.io", "request": "g", **named(0)._asdict()}
        return {
            "metadata": {"uid": UID, "namespace": namespace, "name": name},
            "status": {"allocation": {"devices": {"results": [one]}}},
        }


def test_claims_are_read_once_and_a_server_that_is_away_makes_them_unknown() -> None:
    cluster, server = FakeCluster(), FakeServer()
    follows = DeviceHealth(cluster, server)  # type: ignore[arg-type]
    assert asyncio.run(follows.states()) == {}
    cluster.status = 0
    for _ in range(3):
        assert asyncio.run(follows.states()) == {named(0): (HEALTHY, "")}
    assert cluster.asked == 2
    server.is_away = True
    assert asyncio.run(follows.states())[named(0)].status == UNKNOWN
    server.is_away = False
    server.listed = {}
    assert asyncio.run(follows.states()) == {}


def test_a_claim_that_is_gone_is_not_asked_for_again() -> None:
    cluster, server = FakeCluster(), FakeServer()
    cluster.status = 404
    follows = DeviceHealth(cluster, server)  # type: ignore[arg-type]
    for _ in range(3):
        assert asyncio.run(follows.states()) == {}
    assert cluster.asked == 1
