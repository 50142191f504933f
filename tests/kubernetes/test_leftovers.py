# SPDX-License-Identifier: Apache-2.0
"""Parts are given back when their claims are over, and never for what was so a moment ago."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from sluice.kubernetes.cluster import ClusterError
from sluice.kubernetes.configuration import ClusterSection
from sluice.kubernetes.publishing import Leftovers
from sluice.kubernetes.waiting import Holdings


def claim(uid: str, *, allocated: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"metadata": {"uid": uid, "namespace": "red", "name": uid}}
    if allocated:
        result = {"driver": "vgpu.sluice.io", "request": "g", "pool": "n1", "device": "d"}
        found["status"] = {"allocation": {"devices": {"results": [result]}}}
    return found


class FakeCluster:
    """Its claims as they are now, and what is said of them, which may be old."""

    def __init__(self, *claims: dict[str, Any]) -> None:
        self.now = {each["metadata"]["uid"]: each for each in claims}
        self.says: list[tuple[str, dict[str, Any]]] = []

    async def claims(self) -> tuple[dict[str, dict[str, Any]], str]:
        return self.now, "7"

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        if name not in self.now:
            raise ClusterError("404", 404)
        return self.now[name]

    async def follow_claims(self, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        for each in self.says:
            yield each


class FakePool:
    """A pool that has parts of these labels."""

    def __init__(self, *labels: str) -> None:
        self.labels = list(labels)
        self.gone: list[str] = []

    async def every(self, path: str, member: str) -> list[dict[str, Any]]:
        part = {"owner_kind": "label", "project": "kubernetes.red"}
        return [{**part, "owner": label} for label in self.labels]

    async def delete(self, path: str) -> None:
        self.gone.append(path.rpartition("/")[2])


def leftovers(cluster: FakeCluster, pool: FakePool) -> Leftovers:
    section = ClusterSection()
    return Leftovers(section, cluster, pool, pool, Holdings())  # type: ignore[arg-type]


def test_what_has_no_claim_is_given_back() -> None:
    cluster = FakeCluster(claim("a", allocated=True), claim("b", allocated=False))
    pool = FakePool("claim-a", "claim-b", "claim-c", "container-d", "team")
    asyncio.run(leftovers(cluster, pool).look())
    assert pool.gone == ["claim-b", "claim-c"]


def test_a_claim_that_was_not_allocated_yet_when_it_changed_keeps_its_part() -> None:
    """Its scheduler adds a finalizer before it allocates: that may be read after it is prepared."""
    cluster = FakeCluster()
    pool = FakePool()
    looks = leftovers(cluster, pool)
    asyncio.run(looks.look())
    pool.labels = ["claim-a"]
    cluster.now = {"a": claim("a", allocated=True)}
    cluster.says = [
        ("ADDED", claim("a", allocated=False)),
        ("MODIFIED", claim("a", allocated=False)),
        ("MODIFIED", claim("a", allocated=True)),
    ]
    asyncio.run(looks.follow("7"))
    assert pool.gone == []
    # the same for one that was given up and has been allocated anew meanwhile
    cluster.says = [("MODIFIED", claim("a", allocated=False))]
    asyncio.run(looks.follow("8"))
    assert pool.gone == []


def test_a_claim_that_is_given_up_or_deleted_gives_its_part_back() -> None:
    cluster = FakeCluster(claim("a", allocated=True), claim("b", allocated=True))
    pool = FakePool()
    looks = leftovers(cluster, pool)
    asyncio.run(looks.look())
    cluster.now = {"a": claim("a", allocated=False)}
    cluster.says = [
        ("MODIFIED", claim("a", allocated=False)),
        ("DELETED", claim("b", allocated=True)),
    ]
    asyncio.run(looks.follow("7"))
    assert pool.gone == ["claim-a", "claim-b"]
    asyncio.run(looks.follow("8"))
    assert pool.gone == ["claim-a", "claim-b", "claim-b"]  # one that is gone is as good
