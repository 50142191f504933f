# SPDX-License-Identifier: Apache-2.0
"""Keeps the cluster true to the pool, and the pool to the cluster: `sluice-kubernetes controller`.

Run by __main__.py, once for a cluster. Towards the cluster: ResourceSlices of what is reserved for
it, written only where they differ, and events of pods that wait (waiting_events.py) or stand still
(suspended_events.py). Towards the pool: a part whose claim is gone or holds nothing any more is
given back, whoever was to do it and could not (a node that is lost, a plugin that was down). Both
are looked at whole now and then, and in between where something is said to have changed. It keeps
no state that is not found again; whoever does not answer is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sluice.kubernetes.claims import is_allocated
from sluice.kubernetes.cluster import Cluster, ClusterError
from sluice.kubernetes.configuration import ClusterSection
from sluice.kubernetes.naming import DRIVER, claim_label, claim_of_label
from sluice.kubernetes.slices import (
    API_VERSION,
    OWNED_BY,
    Reach,
    devices_of,
    is_for,
    keep_times,
    lacks_division,
    lacks_taints,
    same_spec,
    slices_of,
)
from sluice.kubernetes.suspended_events import SuspendedEvents
from sluice.kubernetes.waiting import Holdings
from sluice.kubernetes.waiting_events import WaitingEvents
from sluice.pool_client.async_client import AsyncPoolClient
from sluice.pool_client.errors import PoolError, Refused

log = logging.getLogger("sluice.kubernetes")

RETRY_SECONDS = 1.0
#: Changes of the pool that come together are published together.
SETTLE_SECONDS = 0.5
#: Kinds of the pool's events after which slices may be others.
_TELLING = ("reservation.", "node.", "gpu.")


class Publisher:
    """ResourceSlices. Methods raise PoolError and ClusterError."""

    def __init__(self, section: ClusterSection, cluster: Cluster, viewer: AsyncPoolClient) -> None:
        self._section = section
        self._cluster = cluster
        self._viewer = viewer
        self._reach = Reach(section.reach)
        self._divided = True
        self._tainted = True
        self.devices: dict[str, list[dict[str, Any]]] = {}  # by node, as they are published
        self.is_done = False  # once at least
        self.written = 0  # slices that were made, changed or removed

    async def publish(self) -> None:
        """Makes the slices say what the pool has reserved now."""
        reservations = [
            each
            for each in await self._viewer.every("/reservations", "reservations")
            if is_for(each, self._section.label)
        ]
        gpus = {each["id"]: each for each in await self._viewer.every("/gpus", "gpus")}
        labels = {n["name"]: n["labels"] for n in await self._viewer.every("/nodes", "nodes")}
        while True:
            wanted = devices_of(
                reservations, gpus, labels, divided=self._divided, tainted=self._tainted
            )
            stored = await self._bring_in_line(wanted)
            if self._divided and lacks_division(stored):
                log.warning(
                    "this cluster has no consumable capacity (DRAConsumableCapacity): each vGPU of "
                    "the reservations is a device of its own, of that size"
                )
                self._divided = False
            elif self._tainted and lacks_taints(wanted, stored):
                log.warning(
                    "this cluster has no taints of devices (DRADeviceTaints): those of GPUs that "
                    "take nothing new leave the slices"
                )
                self._tainted = False
            else:
                self.devices = wanted
                self.is_done = True
                return

    async def _bring_in_line(
        self, devices: Mapping[str, list[dict[str, Any]]]
    ) -> list[Mapping[str, Any]]:
        """Writes what differs; returns what is stored now."""
        found: dict[str, list[dict[str, Any]]] = {}
        for each in await self._cluster.slices(DRIVER):
            found.setdefault(each["spec"]["pool"]["name"], []).append(each)
        stored: list[Mapping[str, Any]] = []
        refused: ClusterError | None = None
        for node in sorted({*devices, *found}):
            wanted = slices_of(node, devices.get(node, []), self._reach)
            try:
                stored += await self._bring_pool_in_line(wanted, found.get(node, []))
            except ClusterError as error:  # one node's stops no other's
                refused = refused or error
        if refused:
            raise refused
        return stored

    async def _bring_pool_in_line(
        self, wanted: list[dict[str, Any]], found: list[dict[str, Any]]
    ) -> list[Mapping[str, Any]]:
        specs = [each["spec"] for each in found]
        if len(wanted) == len(specs) and all(
            any(same_spec(want, have) for have in specs) for want in wanted
        ):
            return list(specs)
        keep_times(wanted, specs)
        # all slices of a pool are of one generation, and those of older ones count for nothing
        newest = max((spec["pool"].get("generation", 0) for spec in specs), default=0)
        stored = []
        for number, spec in enumerate(wanted):
            spec["pool"]["generation"] = newest + 1
            stored.append(await self._write(spec, found[number] if number < len(found) else None))
        for extra in found[len(wanted) :]:
            await self._cluster.delete_slice(extra["metadata"]["name"])
            self.written += 1
        return stored

    async def _write(
        self, spec: dict[str, Any], over: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        self.written += 1
        if over is not None and _placed(over["spec"]) == _placed(spec):
            body = {**over, "spec": spec}
            answer = await self._cluster.put_slice(body)
        else:
            if over is not None:  # where a slice is for cannot be changed
                await self._cluster.delete_slice(over["metadata"]["name"])
            metadata = {"generateName": "sluice-", "labels": OWNED_BY}
            answer = await self._cluster.make_slice(
                {
                    "apiVersion": API_VERSION,
                    "kind": "ResourceSlice",
                    "metadata": metadata,
                    "spec": spec,
                }
            )
        stored: Mapping[str, Any] = answer["spec"]
        return stored


def _placed(spec: Mapping[str, Any]) -> tuple[Any, Any]:
    return spec.get("nodeName"), spec.get("nodeSelector")


class Leftovers:
    """Parts of claims that are over. Methods raise PoolError and ClusterError."""

    def __init__(
        self,
        section: ClusterSection,
        cluster: Cluster,
        viewer: AsyncPoolClient,
        pool: AsyncPoolClient,
        holdings: Holdings,
    ) -> None:
        """`holdings` is kept true to the claims."""
        self._section = section
        self._cluster = cluster
        self._viewer = viewer
        self._pool = pool
        self._holdings = holdings
        self.given_back = 0
        self.is_known = False  # the claims were looked at once

    async def look(self) -> str:
        """Gives back every part whose claim is over; returns from where to follow the claims."""
        # parts first: one that is made meanwhile is not in the list, and its claim may not be in
        # that of the claims
        parts = await self._parts()
        claims, version = await self._cluster.claims()
        self._holdings.take_all(claims)
        self.is_known = True
        for label in parts:
            claim = claims.get(claim_of_label(label))
            if claim is None or not is_allocated(claim):
                await self._give_back(label, "its claim is over")
        return version

    async def follow(self, version: str) -> None:
        """The same for each claim whose end is said; returns when that is said no more."""
        async for kind, claim in self._cluster.follow_claims(version):
            uid = claim["metadata"]["uid"]
            held = self._holdings.has(uid)
            if kind != "DELETED" and is_allocated(claim):
                self._holdings.take(uid, claim)
                continue
            self._holdings.drop(uid)
            # what is said may be old: a claim is changed before it is allocated, too, and while
            # that is read here it may have been prepared
            if kind == "DELETED" or (held and not await self._is_allocated_now(claim)):
                await self._give_back(claim_label(uid), "its claim is over")

    async def _is_allocated_now(self, claim: Mapping[str, Any]) -> bool:
        metadata = claim["metadata"]
        try:
            found = await self._cluster.claim(metadata["namespace"], metadata["name"])
        except ClusterError as error:
            if not error.is_not_found:
                raise
            return False
        return found["metadata"]["uid"] == metadata["uid"] and is_allocated(found)

    async def _parts(self) -> list[str]:
        prefix = f"{self._section.project}."
        return [
            each["owner"]
            for each in await self._viewer.every("/reservations", "reservations")
            if each["owner_kind"] == "label"
            and claim_of_label(each["owner"])
            and each["project"].startswith(prefix)
        ]

    async def _give_back(self, label: str, why: str) -> None:
        try:
            await self._pool.delete(f"/parts/{label}")
        except Refused as refused:
            if refused.is_not_found:
                return
            raise
        self.given_back += 1
        log.info("%s: given back, %s", label, why)


class KubernetesController:
    """All of it, until cancelled."""

    def __init__(
        self,
        section: ClusterSection,
        publisher: Publisher,
        leftovers: Leftovers,
        waiting: WaitingEvents,
        suspended: SuspendedEvents,
        viewer: AsyncPoolClient,
    ) -> None:
        self._section = section
        self._publisher = publisher
        self._leftovers = leftovers
        self._waiting = waiting
        self._suspended = suspended
        self._viewer = viewer
        self._changed = asyncio.Event()
        self._suspensions = asyncio.Event()
        self._told: dict[str, str] = {}

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_pool())
            tasks.create_task(self._for_ever("slices", self._publish_once))
            tasks.create_task(self._for_ever("claims", self._follow_claims_once))
            tasks.create_task(self._for_ever("pods that wait", self._tell_pods_once))
            tasks.create_task(self._for_ever("suspended pods", self._tell_suspended_once))

    async def _publish_once(self) -> None:
        self._changed.clear()
        await self._publisher.publish()
        await asyncio.sleep(SETTLE_SECONDS)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), self._section.publish_seconds)

    async def _follow_claims_once(self) -> None:
        version = await self._leftovers.look()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(
                self._leftovers.follow(version), self._section.publish_seconds * 4
            )

    async def _tell_pods_once(self) -> None:
        if self._publisher.is_done and self._leftovers.is_known:
            await self._waiting.look()
            await asyncio.sleep(self._section.publish_seconds)
        else:
            await asyncio.sleep(RETRY_SECONDS / 4)

    async def _tell_suspended_once(self) -> None:
        self._suspensions.clear()
        await self._suspended.look()
        await self._suspensions.wait()

    async def _follow_pool(self) -> None:
        def broke(error: Exception) -> None:
            self._tell("events", str(error))

        async for event in self._viewer.events(broke):
            if not event or str(event.get("kind", "")).startswith(_TELLING):
                self._changed.set()
            if self._suspended.heard(event):
                self._suspensions.set()

    async def _for_ever(self, what: str, once: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await once()
                self._told.pop(what, None)
            except (PoolError, ClusterError) as error:
                self._tell(what, str(error))
                await asyncio.sleep(RETRY_SECONDS)

    def _tell(self, what: str, text: str) -> None:
        """A trouble that lasts is said once."""
        if self._told.get(what) != text:
            log.warning("%s: %s", what, text)
        self._told[what] = text
