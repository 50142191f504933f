# SPDX-License-Identifier: Apache-2.0
"""The cluster's pods and nodes: what is over is given back, and who waits for room is woken.

Run by `sluice-kubernetes extender`, beside extender.py. The scheduler tries a pod again when the
cluster changes, and room is the pool's to give: so a pod that found none gets an annotation once
there is some, and that the scheduler sees. It keeps no state that is not found again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sluice.kubernetes.cluster import Cluster, ClusterError
from sluice.kubernetes.configuration import ClusterSection
from sluice.kubernetes.extender import Extender
from sluice.kubernetes.node_devices import count_of
from sluice.kubernetes.pod_requests import PodRequestError, PodWant, read_pod
from sluice.kubernetes.pool_follower import PoolFollower
from sluice.pool_client.errors import PoolError

log = logging.getLogger("sluice.kubernetes")

RETRY_SECONDS = 1.0
#: Pods of a turn that are told: as many more when the next one comes.
MOST_WOKEN = 256
ANNOTATION = "sluice.io/waiting"
OVER = ("Succeeded", "Failed")
Shape = tuple[tuple[int, int | None, int | None], ...]  # what each container asks for


class Pods:
    """Follows the pods. Methods raise PoolError and ClusterError."""

    def __init__(
        self,
        section: ClusterSection,
        cluster: Cluster,
        pool_follower: PoolFollower,
        extender: Extender,
    ) -> None:
        self._section = section
        self._cluster = cluster
        self._pool_follower = pool_follower
        self._extender = extender
        self._doubtful: set[str] = set()  # parts without a bound pod, of the look before
        self.given_back = 0
        self.woken = 0

    async def look(self) -> str:
        """Gives back every part whose pod is over; returns from where to follow the pods."""
        # parts first: of one that is made meanwhile the pod may not be in the list
        labels = set(self._pool_follower.availability.container_parts())
        pods, version = await self._cluster.pods()
        bound: set[str] = set()
        unbound: set[str] = set()
        alive: set[str] = set()
        for pod in pods.values():
            if is_over(pod) or not (wanted := _wanted(pod)):
                continue
            alive.add(wanted.uid)
            if node := (pod.get("spec") or {}).get("nodeName"):
                bound.update(wanted.labels())
                self._extender.devices.take_pod(wanted, str(node))
                continue
            unbound.update(wanted.labels())
            if (pod.get("spec") or {}).get("schedulingGates"):
                continue  # nobody has looked for room for it
            if wanted.uid not in self._extender.waiting:  # an extender of before had it
                self._extender.remember(wanted, "", pod)
        self._extender.devices.keep_pods(alive)
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
            wanted = _wanted(pod)
            if wanted is None:
                continue
            if kind != "DELETED" and not is_over(pod):
                if node := (pod.get("spec") or {}).get("nodeName"):
                    self._extender.devices.take_pod(wanted, str(node))
                continue
            self._extender.devices.drop_pod(wanted.uid)
            self._extender.waiting.pop(wanted.uid, None)
            for label in wanted.labels():
                if label in self._pool_follower.availability.parts:
                    await self._give_back(label)

    async def look_at_nodes(self) -> str:
        """At what every kubelet has; returns from where to follow the nodes."""
        nodes, version = await self._cluster.nodes()
        self._extender.devices.keep_nodes([node["metadata"]["name"] for node in nodes])
        for node in nodes:
            self._take_node(node)
        return version

    async def follow_nodes(self, version: str) -> None:
        """The same for each node that changes; returns when that is said no more."""
        async for kind, node in self._cluster.follow_nodes(version):
            if kind == "DELETED":
                self._extender.devices.drop_node(node["metadata"]["name"])
            else:
                self._take_node(node)

    def _take_node(self, node: Mapping[str, Any]) -> None:
        if self._extender.devices.take_node(node):
            self._pool_follower.changed.set()

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
        room = self._pool_follower.availability
        found: list[PodWant] = []
        booked: list[str] = []
        devices = self._extender.devices
        nodes = devices.names()
        nowhere: set[Shape] = set()  # what was booked meanwhile leaves it less room yet
        waiting = sorted(self._extender.waiting.values(), key=lambda each: -each.priority)
        for wanted in (each.pod for each in waiting):
            shape = tuple((c.count, c.memory_mib, c.compute_percent) for c in wanted.containers)
            if shape in nowhere:
                continue
            count = count_of(wanted)
            for node in nodes:
                if devices.lack(node, count):
                    continue
                parts = room.fits("" if room.reach_all else node, wanted)
                if isinstance(parts, str):
                    continue
                found.append(wanted)
                for part in parts:
                    if part.label not in room.parts:
                        room.take_part(part)
                        booked.append(part.label)
                break
            else:
                nowhere.add(shape)
            if len(found) == MOST_WOKEN:
                break
        for label in booked:
            room.drop_part(label)
        return found

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_for_ever("pods", self.look, self.follow))
            tasks.create_task(self._follow_for_ever("nodes", self.look_at_nodes, self.follow_nodes))
            tasks.create_task(self._wake_for_ever())

    async def _follow_for_ever(
        self,
        what: str,
        look: Callable[[], Awaitable[str]],
        follow: Callable[[str], Awaitable[None]],
    ) -> None:
        told = ""
        while True:
            if not self._pool_follower.is_known:
                await asyncio.sleep(RETRY_SECONDS / 4)
                continue
            try:
                version = await look()
                told = ""
                async with asyncio.timeout(self._section.publish_seconds * 4):
                    await follow(version)
            except TimeoutError:
                continue
            except (PoolError, ClusterError) as error:
                if told != str(error):
                    log.warning("%s: %s", what, error)
                told = str(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _wake_for_ever(self) -> None:
        changed = self._pool_follower.changed
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
        if await self._pool_follower.give_back(label):
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
