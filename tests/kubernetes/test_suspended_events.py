# SPDX-License-Identifier: Apache-2.0
"""Pods are told that their vGPU is suspended and goes on, once each; pool and cluster stand in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.kubernetes.cluster import ClusterError
from sluice.kubernetes.suspended_events import SuspendedEvents
from sluice.pool_client.errors import Refused

PODS = [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in ("one", "two")]


class FakeViewer:
    """A pool with one grant, which draws on a claim's part."""

    def __init__(self) -> None:
        self.state = ""
        self.resumes = False
        self.is_live = True
        self.owner = "claim-c"

    def grant(self) -> dict[str, Any]:
        suspension = {"state": self.state, "resumes": self.resumes, "note": "maintenance"}
        return {
            "id": "g",
            "state": "live",
            "reservation": "part",
            "suspension": suspension if self.state else None,
        }

    async def every(self, path: str, name: str) -> list[dict[str, Any]]:
        assert (path, name) == ("/grants", "grants")
        return [self.grant()] if self.is_live else []

    async def get(self, path: str) -> dict[str, Any]:
        if path == "/grants/g" and self.is_live:
            return self.grant()
        if path == "/reservations/part":
            return {"owner": self.owner}
        raise Refused("no such thing", 404)


class FakeCluster:
    """A cluster with one claim, which two pods share."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.is_away = False

    async def claims(self) -> tuple[dict[str, dict[str, Any]], str]:
        if self.is_away:
            raise ClusterError("the API server does not answer")
        claim = {"metadata": {"namespace": "red", "name": "c"}, "status": {"reservedFor": PODS}}
        return {"c": claim}, "1"

    async def make_event(self, body: dict[str, Any]) -> None:
        self.events.append(body)

    def told(self) -> list[tuple[str, str]]:
        return [(each["involvedObject"]["name"], each["reason"]) for each in self.events]


def made() -> tuple[SuspendedEvents, FakeViewer, FakeCluster]:
    viewer, cluster = FakeViewer(), FakeCluster()
    return SuspendedEvents(cluster, viewer), viewer, cluster  # type: ignore[arg-type]


def said(kind: str) -> dict[str, str]:
    return {"kind": kind, "subject": "g"}


SUSPENDED = [("one", "VGPUSuspended"), ("two", "VGPUSuspended")]
RESUMED = [("one", "VGPUResumed"), ("two", "VGPUResumed")]


def test_each_pod_of_a_claim_is_told_once_of_each() -> None:
    tells, viewer, cluster = made()
    asyncio.run(tells.look())
    assert cluster.events == []
    viewer.state = "suspended"
    for _ in range(2):
        assert tells.heard(said("grant.suspended"))
        asyncio.run(tells.look())
        assert cluster.told() == SUSPENDED
    message = cluster.events[0]["message"]
    assert "(maintenance)" in message
    assert "sluice grant resume g" in message
    assert cluster.events[0]["involvedObject"]["namespace"] == "red"
    viewer.state = "resuming"
    tells.heard(said("grant.suspended"))
    asyncio.run(tells.look())
    viewer.state = ""
    tells.heard(said("grant.resumed"))
    asyncio.run(tells.look())
    assert cluster.told() == SUSPENDED + RESUMED


def test_one_that_comes_back_by_itself_says_so() -> None:
    tells, viewer, cluster = made()
    viewer.state, viewer.resumes = "suspended", True
    asyncio.run(tells.look())
    assert "goes on by itself" in cluster.events[0]["message"]


def test_what_was_missed_is_told_when_the_events_are_followed_again() -> None:
    tells, viewer, cluster = made()
    viewer.state = "suspended"
    asyncio.run(tells.look())  # as it begins
    viewer.state = ""
    asyncio.run(tells.look())
    assert cluster.told() == SUSPENDED
    assert tells.heard({})
    asyncio.run(tells.look())
    assert cluster.told() == SUSPENDED + RESUMED


def test_what_could_not_be_told_is_told_later() -> None:
    tells, viewer, cluster = made()
    viewer.state, cluster.is_away = "suspended", True
    with pytest.raises(ClusterError):
        asyncio.run(tells.look())
    cluster.is_away = False
    asyncio.run(tells.look())
    assert cluster.told() == SUSPENDED


def test_what_is_no_claims_or_has_ended_is_nobodys_to_tell() -> None:
    tells, viewer, cluster = made()
    viewer.state, viewer.owner = "suspended", "container-1"
    asyncio.run(tells.look())
    viewer.is_live = False
    tells.heard(said("grant.suspended"))
    asyncio.run(tells.look())
    assert cluster.events == []
    assert not tells.heard(said("grant.ended"))
    assert not tells.heard({"kind": "node.up", "subject": "n"})
