# SPDX-License-Identifier: Apache-2.0
"""1,000 nodes and 2,000 claims: what is written and asked is as much as has changed.

Pool and API server are stood in for by tables that count; `SLUICE_KUBERNETES_CLAIMS=20000` by hand.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sluice.kubernetes.configuration import ClusterSection
from sluice.kubernetes.publishing import Leftovers, Publisher
from sluice.kubernetes.waiting import Holdings

NODES = 1000
CLAIMS = int(os.environ.get("SLUICE_KUBERNETES_CLAIMS", "2000"))


class CountingPool:
    """One GPU a node, all of it reserved for the cluster."""

    def __init__(self) -> None:
        self.gpus = {f"n{number}": gpu(f"n{number}") for number in range(NODES)}
        self.reservations = {name: reservation(number) for number, name in enumerate(self.gpus)}
        self.parts: list[str] = []
        self.deleted: list[str] = []

    async def every(self, path: str, member: str) -> list[dict[str, Any]]:
        if member == "reservations":
            part = {"owner_kind": "label", "state": "held", "project": "kubernetes.red"}
            parts = [{**part, "owner": label, "within": "x"} for label in self.parts]
            return [*self.reservations.values(), *parts]
        if member == "gpus":
            return list(self.gpus.values())
        return [{"name": name, "labels": {}} for name in self.gpus]

    async def delete(self, path: str) -> None:
        self.deleted.append(path)


def gpu(node: str) -> dict[str, Any]:
    return {
        "id": f"{node}:GPU-1",
        "node": node,
        "uuid": "GPU-1",
        "model": "NVIDIA H200",
        "architecture": "sm_90",
        "software": False,
        "memory_mib": 140000,
        "state": "up",
        "mode": "pooled",
        "health": "ok",
    }


def reservation(number: int) -> dict[str, Any]:
    slot = {"gpu": f"n{number}:GPU-1", "memory_mib": 1000, "compute_percent": 10}
    return {
        "id": f"{number:016x}",
        "owner_kind": "label",
        "owner": "kubernetes",
        "state": "held",
        "within": "",
        "project": "kubernetes",
        "slots": [slot] * 8,
    }


class CountingCluster:
    """Slices and claims as an API server keeps them."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.known: dict[str, dict[str, Any]] = {}
        self.asked = 0
        self.says: list[tuple[str, dict[str, Any]]] = []

    async def slices(self, driver: str) -> list[dict[str, Any]]:
        return list(self.stored.values())

    async def make_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        name = f"sluice-{len(self.writes)}"
        body["metadata"] = {**body["metadata"], "name": name}
        return self._keep(name, body)

    async def put_slice(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._keep(body["metadata"]["name"], body)

    async def delete_slice(self, name: str) -> None:
        self.writes.append(name)
        del self.stored[name]

    def _keep(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        self.writes.append(body["spec"]["pool"]["name"])
        self.stored[name] = copy.deepcopy(body)
        return self.stored[name]

    async def claims(self) -> tuple[dict[str, dict[str, Any]], str]:
        return self.known, "1"

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        self.asked += 1
        return self.known[name]

    async def follow_claims(self, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        for each in self.says:
            yield each


def claim(number: int, *, allocated: bool) -> dict[str, Any]:
    uid = str(number)
    found: dict[str, Any] = {"metadata": {"uid": uid, "namespace": "red", "name": uid}}
    if allocated:
        place = {"pool": f"n{number % NODES}", "device": "d"}
        consumed = {"memory": "1000Mi", "compute": "10", "slices": "1"}
        result = {"driver": "vgpu.sluice.io", "request": "g", "consumedCapacity": consumed, **place}
        found["status"] = {"allocation": {"devices": {"results": [result]}}}
    return found


def test_slices_are_written_where_they_differ_and_nowhere_else() -> None:
    pool, cluster = CountingPool(), CountingCluster()
    publisher = Publisher(ClusterSection(), cluster, pool)  # type: ignore[arg-type]

    def written() -> list[str]:
        cluster.writes.clear()
        asyncio.run(publisher.publish())
        return sorted(cluster.writes)

    assert written() == sorted(pool.gpus)
    assert written() == []
    pool.parts = [f"claim-{number}" for number in range(CLAIMS)]  # claims are no slice's business
    assert written() == []
    pool.reservations["n7"]["slots"] = pool.reservations["n7"]["slots"][:4]
    pool.gpus["n8"]["health"] = "fault"
    assert written() == ["n7", "n8"]
    pool.gpus["n8"]["health"] = "ok"
    del pool.reservations["n9"]
    gone = written()
    assert "n8" in gone
    assert len(gone) == 2
    assert len(cluster.stored) == NODES - 1


@pytest.mark.parametrize("ended", [1, CLAIMS // 2])
def test_claims_that_come_and_go_cost_what_ends(ended: int) -> None:
    pool, cluster = CountingPool(), CountingCluster()
    holdings = Holdings()
    follows = Leftovers(ClusterSection(), cluster, pool, pool, holdings)  # type: ignore[arg-type]
    asyncio.run(follows.look())
    cluster.known = {str(n): claim(n, allocated=True) for n in range(CLAIMS)}
    cluster.says = [
        (kind, claim(number, allocated=allocated))
        for number in range(CLAIMS)
        for kind, allocated in (("ADDED", False), ("MODIFIED", False), ("MODIFIED", True))
    ]
    asyncio.run(follows.follow("1"))
    assert (pool.deleted, cluster.asked) == ([], 0)
    assert holdings.taken("n0", "d").vgpus == len(range(0, CLAIMS, NODES))
    for number in range(ended):
        cluster.known[str(number)] = claim(number, allocated=False)
    cluster.says = [("MODIFIED", claim(number, allocated=False)) for number in range(ended)]
    asyncio.run(follows.follow("2"))
    assert pool.deleted == [f"/parts/claim-{number}" for number in range(ended)]
    assert cluster.asked == ended
