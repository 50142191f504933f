# SPDX-License-Identifier: Apache-2.0
"""The scheduler's extender: pods that ask for vGPUs go where the pool has room, and hold it there.

Called by https_service.py for kube-scheduler. `filter`, `prioritize` and `preempt` look at the copy
of the pool's books; `bind` has the controller keep the pod's parts, and binds the pod only then. So
there is one bookkeeper, whatever was seen before: two pods never get the same room, and a pod that
got none stays Pending, with the pool's reason in its event.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.kubernetes.availability import Part
from sluice.kubernetes.cluster import Cluster, ClusterError
from sluice.kubernetes.configuration import ClusterSection
from sluice.kubernetes.extender_arguments import (
    ArgumentsError,
    Binding,
    filter_error,
    filtered,
    read_binding,
    read_nodes,
    read_pod_object,
    read_victims,
    said,
    scored,
)
from sluice.kubernetes.node_devices import NodeDevices, count_of
from sluice.kubernetes.pod_requests import PodRequestError, PodWant, names_vgpus, read_pod
from sluice.kubernetes.pool_follower import PoolFollower
from sluice.pool_client.errors import PoolError

log = logging.getLogger("sluice.kubernetes")

#: Pods that are remembered as waiting for room; who is forgotten is woken by the scheduler alone.
MOST_WAITING = 20_000
UNKNOWN = "what the pool has reserved is not known yet: see the log of sluice-kubernetes extender"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that found no room; `priority` is Kubernetes' own."""

    pod: PodWant
    why: str
    priority: int


class Extender:
    """Answers the scheduler. No method raises: what is wrong is in the answer."""

    def __init__(
        self, section: ClusterSection, cluster: Cluster, pool_follower: PoolFollower
    ) -> None:
        self._section = section
        self._cluster = cluster
        self._pool_follower = pool_follower
        self._binding: dict[str, asyncio.Lock] = {}
        self.devices = NodeDevices()
        self.waiting: OrderedDict[str, Waiting] = OrderedDict()  # by UID, oldest first

    def filter(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Where there is room."""
        try:
            nodes = read_nodes(arguments)
            found_pod = read_pod_object(arguments)
            pod = read_pod(found_pod)
        except (ArgumentsError, PodRequestError) as error:
            return filter_error(str(error))
        if not self._pool_follower.is_known:
            return filter_error(UNKNOWN)
        if not pod.containers:  # it names vGPUs, and wants none
            return filtered(nodes, {})
        failed: dict[str, str] = {}
        having: list[str] = []
        count = count_of(pod)
        for node in nodes:
            if why := self.devices.lack(node, count):
                failed[node] = why
            else:
                having.append(node)
        fitting, full = self._pool_follower.availability.rooms(having, pod)
        failed |= full
        if fitting:
            self.waiting.pop(pod.uid, None)
        elif failed and pod.containers:
            self.remember(pod, next(iter(failed.values())), found_pod)
        return filtered(fitting, failed)

    def prioritize(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The fullest first, as the pool's own bin-packing does."""
        try:
            nodes = read_nodes(arguments)
        except ArgumentsError as error:
            log.warning("prioritize: %s", error)
            return []
        room = self._pool_follower.availability
        if room.reach_all:
            return scored(dict.fromkeys(nodes, 0.0))
        return scored({node: room.fullness(node) for node in nodes})

    def preempt(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """On which nodes pods may be evicted for a pod: none for a vGPU, as the pool gives those.

        Only where it has its vGPUs already, and the scheduler lacks something else. An empty answer
        is one too: then nobody is evicted.
        """
        try:
            victims = read_victims(arguments)
            pod = read_pod(read_pod_object(arguments))
        except (ArgumentsError, PodRequestError) as error:
            log.warning("preempt: %s", error)
            return {"NodeNameToMetaVictims": {}}
        room = self._pool_follower.availability
        count = count_of(pod)
        kept = {
            node: of_node
            for node, of_node in victims.items()
            if self._pool_follower.is_known
            and not self.devices.lack(node, count)
            and not isinstance(room.fits("" if room.reach_all else node, pod), str)
        }
        return {"NodeNameToMetaVictims": kept}

    async def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Keeps the pod's parts in the pool, then binds it; else nothing is kept."""
        try:
            wanted = read_binding(arguments)
        except ArgumentsError as error:
            return {"Error": said(str(error))}
        lock = self._binding.setdefault(wanted.uid, asyncio.Lock())
        try:
            async with lock:
                await self._bind(wanted)
        except (PodRequestError, PoolError, ClusterError) as error:
            log.info("pod %s/%s: not bound: %s", wanted.namespace, wanted.name, error)
            return {"Error": said(str(error))}
        finally:
            self._binding.pop(wanted.uid, None)
        self.waiting.pop(wanted.uid, None)
        return {"Error": ""}

    async def _bind(self, wanted: Binding) -> None:
        found = await self._cluster.pod(wanted.namespace, wanted.name)
        pod = read_pod(found)
        if pod.uid != wanted.uid:
            raise PodRequestError(f"pod {pod.namespace}/{pod.name} is another one now")
        if not names_vgpus(found["spec"]):
            raise PodRequestError("the pod names no vGPU: another binds it")
        bound = found["spec"].get("nodeName")
        if bound == wanted.node:
            return  # the scheduler asks again, as it did not hear the answer
        if bound:
            raise PodRequestError(f"the pod is on node {bound} already")
        if not self._pool_follower.is_known:
            raise PodRequestError(UNKNOWN)
        room = self._pool_follower.availability
        parts = room.fits("" if room.reach_all else wanted.node, pod)
        if isinstance(parts, str):
            self.remember(pod, parts, found)
            raise PodRequestError(parts)
        if why := self.devices.lack(wanted.node, count_of(pod)):
            self.remember(pod, why, found)
            raise PodRequestError(why)
        self.devices.take_pod(pod, wanted.node)  # before the next one is looked at
        priority = self._section.priority_of(found)
        fresh = [part for part in parts if room.parts.get(part.label) != part]
        kept: list[Part] = []
        try:
            for part in fresh:
                kept.append(part)  # of one that was not answered it is not known
                await self._pool_follower.keep(part, pod.namespace, priority)
            await self._cluster.bind(wanted.namespace, wanted.name, wanted.uid, wanted.node)
        except BaseException as error:
            if isinstance(error, ClusterError) and not error.status:
                raise  # it may be bound: pods.py sees whether it is
            self.devices.drop_pod(pod.uid)
            for part in kept:
                try:
                    await self._pool_follower.give_back(part.label)
                except PoolError as error:  # pods.py finds it
                    log.warning("%s: is given back later: %s", part.label, error)
            raise
        log.info("pod %s/%s: bound to %s", pod.namespace, pod.name, wanted.node)

    def remember(self, pod: PodWant, why: str, found: Mapping[str, Any]) -> None:
        """A pod waits for room; `found` is the pod as JSON."""
        spec = found.get("spec")
        priority = spec.get("priority") if isinstance(spec, Mapping) else None
        if not isinstance(priority, int):
            priority = 0
        self.waiting[pod.uid] = Waiting(pod, why, priority)
        while len(self.waiting) > MOST_WAITING:
            self.waiting.popitem(last=False)
