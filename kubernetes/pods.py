# SPDX-License-Identifier: Apache-2.0
"""The cluster's pods: whose parts are over is given back, and who waits for room is woken.

Run by `sluice-kubernetes extender`, beside extender.py. The scheduler tries a pod again when the
cluster changes, and room is the pool's: so whoever found none has an annotation with the reason,
which is written anew when there is room, and that the scheduler sees. It keeps no state that is not
found again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from sluice.kubernetes.cluster import Cluster, ClusterError
from sluice.kubernetes.configuration import ClusterSection
from sluice.kubernetes.extender import Extender
from sluice.kubernetes.pod_requests import PodRequestError, PodWant, read_pod
from sluice.kubernetes.pool_room import PoolRoom
from sluice.pool_client.errors import PoolError

log = logging.getLogger("sluice.kubernetes")

RETRY_SECONDS = 1.0
#: Pods of a turn that are told: as many more when the next one comes.
MOST_WOKEN = 256
ANNOTATION = "sluice.io/waiting"
OVER = ("Succeeded", "Failed")


class Pods:
    """Follows the pods. Methods raise PoolError and ClusterError."""

    def __init__(
        self,
        section: ClusterSection,
        cluster: Cluster,
        pool_room: PoolRoom,
        extender: Extender,
    ) -> None:
        self._section = section
        self._cluster = cluster
        self._pool_room = pool_room
        self._extender = extender
        self._doubtful: set[str] = set()  # parts without a bound pod, of the look before
        self.given_back = 0
        self.woken = 0

    async def look(self) -> str:
        """Gives back every part whose pod is over; returns from where to follow the pods."""
        # parts first: of one that is made meanwhile the pod may not be in the list
        labels = set(self._pool_room.room.container_parts())
        pods, version = await self._cluster.pods()
        bound: set[str] = set()
        unbound: set[str] = set()
        for pod in pods.values():
            if is_over(pod) or not (wanted := _wanted(pod)):
                continue
            if (pod.get("spec") or {}).get("nodeName"):
                bound.update(wanted.labels())
                continue
            unbound.update(wanted.labels())
            if wanted.uid not in self._extender.waiting:  # an extender of before had it
                self._extender.remember(wanted, "", pod)
        # a part is kept before its pod is bound: who is not yet is looked at again
        doubtful = labels & unbound
        for label in (labels - bound - unbound) | (doubtful & self._doubtful):
            await self._give_back(label)
        self._doubtful = doubtful
        for uid in self._extender.waiting.keys() - pods.keys():
            self._extender.waiting.pop(uid, None)
        return version

    async def follow(self, version: str) -> None:
        """The same for each pod whose end is said; returns when that is said no more."""
        async for kind, pod in self._cluster.follow_pods(version):
            if kind != "DELETED" and not is_over(pod):
                continue
            wanted = _wanted(pod)
            if wanted is None:
                continue
            self._extender.waiting.pop(wanted.uid, None)
            for label in wanted.labels():
                if label in self._pool_room.room.parts:
                    await self._give_back(label)

    async def wake(self) -> int:
        """Tells those pods that wait and for which there is room now; returns how many."""
        found = self._with_room()
        for number, wanted in enumerate(found):
            text = f"there is room ({self.woken + number})"
            try:
                await self._cluster.annotate_pod(wanted.namespace, wanted.name, ANNOTATION, text)
            except ClusterError as error:
                if not error.is_not_found:
                    raise
            self._extender.waiting.pop(wanted.uid, None)  # the scheduler asks again
        self.woken += len(found)
        return len(found)

    def _with_room(self) -> list[PodWant]:
        """Those of the highest priority first, then of the longest wait; nothing stays booked."""
        room = self._pool_room.room
        found: list[PodWant] = []
        booked: list[str] = []
        nodes = [""] if room.reach_all else sorted({share.node for share in room.shares.values()})
        waiting = sorted(self._extender.waiting.values(), key=lambda each: -each.priority)
        for wanted in (each.pod for each in waiting):
            for node in nodes:
                parts = room.fits(node, wanted)
                if isinstance(parts, str):
                    continue
                found.append(wanted)
                for part in parts:
                    if part.label not in room.parts:
                        room.take_part(part)
                        booked.append(part.label)
                break
            if len(found) == MOST_WOKEN:
                break
        for label in booked:
            room.drop_part(label)
        return found

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_for_ever())
            tasks.create_task(self._wake_for_ever())

    async def _follow_for_ever(self) -> None:
        told = ""
        while True:
            if not self._pool_room.is_known:
                await asyncio.sleep(RETRY_SECONDS / 4)
                continue
            try:
                version = await self.look()
                told = ""
                async with asyncio.timeout(self._section.publish_seconds * 4):
                    await self.follow(version)
            except TimeoutError:
                continue
            except (PoolError, ClusterError) as error:
                if told != str(error):
                    log.warning("pods: %s", error)
                told = str(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _wake_for_ever(self) -> None:
        changed = self._pool_room.changed
        while True:
            await changed.wait()
            changed.clear()
            try:
                await self.wake()
            except ClusterError as error:
                log.warning("pods that wait are told later: %s", error)
                changed.set()
            await asyncio.sleep(RETRY_SECONDS / 4)

    async def _give_back(self, label: str) -> None:
        if await self._pool_room.give_back(label):
            self.given_back += 1
            log.info("%s: given back, its pod is over", label)


def is_over(pod: Mapping[str, Any]) -> bool:
    """Whether none of its containers runs, or will."""
    return (pod.get("status") or {}).get("phase") in OVER


def _wanted(pod: Mapping[str, Any]) -> PodWant | None:
    try:
        found = read_pod(pod)
    except PodRequestError:
        return None
    return found if found.containers else None
