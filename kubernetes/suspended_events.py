# SPDX-License-Identifier: Apache-2.0
"""Tells pods that their vGPU is suspended, and that it goes on: an event of each.

Run by `sluice-kubernetes controller` beside waiting_events.py, where there is DRA: a claim says
whose it is. Whom the pool suspends is the pool's to decide; the pod stays bound and its claim
allocated, so nobody in the cluster would know why its programs stand still. It asks about a grant
when the pool's event log names it, and about all of them when it begins or has missed something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.kubernetes.cluster import Cluster
from sluice.kubernetes.naming import claim_of_label
from sluice.kubernetes.waiting_events import event
from sluice.pool_client.async_client import AsyncPoolClient
from sluice.pool_client.errors import Refused

SUSPENDED, RESUMED = "VGPUSuspended", "VGPUResumed"
_CHANGED = ("grant.suspended", "grant.resumed")


class SuspendedEvents:
    """The events. Methods raise PoolError and ClusterError."""

    def __init__(self, cluster: Cluster, viewer: AsyncPoolClient) -> None:
        self._cluster = cluster
        self._viewer = viewer
        self._is_stale = True
        self._due: set[str] = set()  # grants
        self._told: set[str] = set()  # grants of which pods were told that they are suspended
        self.written = 0

    def heard(self, said: Mapping[str, Any]) -> bool:
        """An event of the pool's, {} where some may have been missed; whether it is of these."""
        if not said:
            self._is_stale = True
        elif said.get("kind") in _CHANGED:
            self._due.add(str(said["subject"]))
        elif said.get("kind") == "grant.ended":
            self._told.discard(str(said["subject"]))
            return False
        else:
            return False
        return True

    async def look(self) -> None:
        """At what has changed; what fails is looked at again."""
        if self._is_stale:
            grants = await self._viewer.every("/grants", "grants")
            suspended = {each["id"] for each in grants if each["suspension"]}
            self._told &= {each["id"] for each in grants}
            self._due |= suspended ^ self._told
            self._is_stale = False
        for grant_id in list(self._due):
            await self._tell(grant_id)
            self._due.discard(grant_id)

    async def _tell(self, grant_id: str) -> None:
        try:
            grant = await self._viewer.get(f"/grants/{grant_id}")
            if grant["state"] != "live" or not grant["reservation"]:
                self._told.discard(grant_id)
                return
            part = await self._viewer.get(f"/reservations/{grant['reservation']}")
        except Refused as refused:
            if not refused.is_not_found:
                raise
            self._told.discard(grant_id)
            return
        suspension = grant["suspension"]
        if suspension and suspension["state"] != "suspended":
            return  # the log says what comes of it
        if bool(suspension) == (grant_id in self._told):
            return
        text = _suspended(grant_id, suspension) if suspension else "its vGPU goes on"
        for pod in await self._pods(claim_of_label(part["owner"])):
            reason, kind = (SUSPENDED, "Warning") if suspension else (RESUMED, "Normal")
            await self._cluster.make_event(event(pod, text, reason, kind))
            self.written += 1
        if suspension:
            self._told.add(grant_id)
        else:
            self._told.discard(grant_id)

    async def _pods(self, claim_uid: str) -> list[Mapping[str, Any]]:
        if not claim_uid:
            return []
        claims, _ = await self._cluster.claims()
        claim = claims.get(claim_uid)
        return list(_users(claim)) if claim else []


def _users(claim: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The pods that a claim is reserved for, as much of each as an event names."""
    for user in (claim.get("status") or {}).get("reservedFor") or ():
        if user.get("resource") == "pods":
            namespace = claim["metadata"]["namespace"]
            yield {"metadata": {"namespace": namespace, "name": user["name"], "uid": user["uid"]}}


def _suspended(grant_id: str, suspension: Mapping[str, Any]) -> str:
    then = (
        "it goes on by itself when there is room"
        if suspension["resumes"]
        else f"it goes on when the pool's operator says so (sluice grant resume {grant_id})"
    )
    return (
        f"its vGPU is suspended ({suspension['note']}): its programs stand still, the pod keeps "
        f"its node and its claim, and {then}"
    )
