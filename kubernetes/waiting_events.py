# SPDX-License-Identifier: Apache-2.0
"""Tells pods with claims why they wait: an event of each, as `kubectl describe pod` shows them.

Run by `sluice-kubernetes controller` beside publishing.py, where there is DRA; elsewhere the
extender's reason is in the scheduler's own event. It looks at pods that no node has and that the
scheduler has tried, and at no others. It is bounded: so many pods of a look, and one event of a pod
in a minute, as what is free changes faster than anybody reads.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sluice.kubernetes.claims import ClaimError
from sluice.kubernetes.cluster import Cluster, ClusterError
from sluice.kubernetes.pod_requests import PodRequestError
from sluice.kubernetes.waiting import (
    ROOM,
    Holdings,
    Request,
    is_ours,
    requests_of_claim,
    requests_of_pod,
    why,
)

log = logging.getLogger("sluice.kubernetes")

REASON = "WaitsForVGPU"
COMPONENT = "sluice-kubernetes"
MOST_PODS = 64
AGAIN_SECONDS = 60.0
LONGEST_MESSAGE = 1024
#: Of an event's generateName, to which Kubernetes adds five signs.
LONGEST_NAME = 240
_NAMED = ("namespace", "name", "uid", "resourceVersion")
HAS_ROOM = (
    "the pool has room for what it asks for, and the scheduler takes none of it: look at the "
    "claim's selectors, constraints and tolerations, and at what else the pod asks of its node"
)


class Told(NamedTuple):
    """What a pod was told last, whether there was room for it then, and when it is looked at."""

    text: str
    had_room: bool
    again: float  # monotonic


class WaitingEvents:
    """The events. Methods raise ClusterError."""

    def __init__(
        self,
        cluster: Cluster,
        devices: Callable[[], Mapping[str, Sequence[Mapping[str, Any]]]],
        holdings: Holdings,
    ) -> None:
        """`devices`: by the pool's node, as they are published now."""
        self._cluster = cluster
        self._devices = devices
        self._holdings = holdings
        self._told: dict[str, Told] = {}  # by the pod's UID
        self.written = 0

    async def look(self) -> None:
        """At pods that wait: those first at which it was looked longest ago, or never."""
        pods = [pod for pod in await self._cluster.unplaced_pods() if is_unschedulable(pod)]
        for gone in self._told.keys() - {pod["metadata"]["uid"] for pod in pods}:
            del self._told[gone]
        now = time.monotonic()
        never = Told("", False, 0.0)
        due = [
            (told.again, number, pod, told)
            for number, pod in enumerate(pods)
            for told in [self._told.get(pod["metadata"]["uid"], never)]
            if told.again <= now
        ]
        if not due:
            return
        classes = [
            each["metadata"]["name"] for each in await self._cluster.classes() if is_ours(each)
        ]
        for _, _, pod, told in sorted(due, key=lambda each: each[:2])[:MOST_PODS]:
            text = await self._why(pod, classes)
            has_room = text == ROOM
            if has_room:  # it may have come this moment, and the scheduler has yet to look
                text = HAS_ROOM if told.had_room else ""
            if text and text != told.text:
                await self._cluster.make_event(event(pod, text))
                self.written += 1
            again = now + (0.0 if has_room and not told.had_room else AGAIN_SECONDS)
            self._told[pod["metadata"]["uid"]] = Told(text or told.text, has_room, again)

    async def _why(self, pod: Mapping[str, Any], classes: list[str]) -> str:
        """`ROOM` where all that it asks for is there; "" where it asks for nothing of ours."""
        found = ""
        for alternatives in await self._requests(pod, classes):
            reasons = [why(each, self._devices(), self._holdings) for each in alternatives]
            if ROOM not in reasons:
                return reasons[0]
            found = ROOM
        return found

    async def _requests(self, pod: Mapping[str, Any], classes: list[str]) -> list[list[Request]]:
        found: list[list[Request]] = []
        try:
            found += requests_of_pod(pod)
            for name in claims_of(pod):
                claim = await self._cluster.claim(pod["metadata"]["namespace"], name)
                if not (claim.get("status") or {}).get("allocation"):
                    found += requests_of_claim(claim, classes)
        except (ClaimError, PodRequestError) as error:
            log.debug("pod %s: %s", pod["metadata"]["name"], error)  # the scheduler's own to say
        except ClusterError as error:
            if not error.is_not_found:
                raise
        return found


def is_unschedulable(pod: Mapping[str, Any]) -> bool:
    """Whether the scheduler has looked for a place for it, and found none."""
    status = pod.get("status") or {}
    return not (pod.get("spec") or {}).get("nodeName") and any(
        each.get("type") == "PodScheduled" and each.get("reason") == "Unschedulable"
        for each in status.get("conditions") or ()
    )


def claims_of(pod: Mapping[str, Any]) -> list[str]:
    """The names of a pod's claims that there are."""
    made = {
        each.get("name"): each.get("resourceClaimName")
        for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    }
    listed = (pod.get("spec") or {}).get("resourceClaims") or ()
    names = [each.get("resourceClaimName") or made.get(each.get("name")) for each in listed]
    return [name for name in names if name]


def event(
    pod: Mapping[str, Any], text: str, reason: str = REASON, kind: str = "Warning"
) -> dict[str, Any]:
    """An Event (v1) of a pod, of which the metadata is enough."""
    metadata = pod["metadata"]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "generateName": f"{metadata['name'][:LONGEST_NAME].rstrip('-.')}.",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            **{key: metadata[key] for key in _NAMED if key in metadata},
        },
        "reason": reason,
        "message": text[:LONGEST_MESSAGE],
        "type": kind,
        "source": {"component": COMPONENT},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
