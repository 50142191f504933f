# SPDX-License-Identifier: Apache-2.0
"""How many of a node's `sluice.io/vgpu` are left: what the kubelet has less what pods have. Pure.

Kept by pods.py, asked by extender.py. The scheduler counts them as well; here they are counted so
that no pod is woken, bound, or has others evicted for it where it could not be admitted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sluice.kubernetes.naming import VGPU
from sluice.kubernetes.pod_requests import PodRequestError, PodWant, whole_number

MOST = 1_000_000


class NodeDevices:
    """Of every node."""

    def __init__(self) -> None:
        self._has: dict[str, int] = {}
        self._pods: dict[str, dict[str, int]] = defaultdict(dict)  # by node and the pod's UID
        self._where: dict[str, str] = {}

    def take_node(self, node: Mapping[str, Any]) -> bool:
        """A node as JSON; whether it has more devices than before."""
        name = str(node["metadata"]["name"])
        found = ((node.get("status") or {}).get("allocatable") or {}).get(VGPU, "0")
        try:
            count = whole_number(found, VGPU, least=0, most=MOST)
        except PodRequestError:
            count = 0
        before = self._has.get(name, 0)
        self._has[name] = count
        return count > before

    def drop_node(self, name: str) -> None:
        """A node that is gone."""
        self._has.pop(name, None)

    def keep_nodes(self, names: Iterable[str]) -> None:
        """All others are gone."""
        for gone in self._has.keys() - set(names):
            del self._has[gone]

    def take_pod(self, pod: PodWant, node: str) -> None:
        """A pod is on a node, and not over."""
        self.drop_pod(pod.uid)
        self._pods[node][pod.uid] = count_of(pod)
        self._where[pod.uid] = node

    def drop_pod(self, uid: str) -> None:
        """A pod that is over; one that was never there is as good."""
        node = self._where.pop(uid, None)
        if node is not None:
            self._pods[node].pop(uid, None)

    def keep_pods(self, uids: Iterable[str]) -> None:
        """All others are over."""
        for gone in self._where.keys() - set(uids):
            self.drop_pod(gone)

    def names(self) -> list[str]:
        """The nodes that have some."""
        return sorted(name for name, count in self._has.items() if count)

    def lack(self, node: str, count: int) -> str:
        """Why a node has not so many for another pod; "" where it has."""
        has = self._has.get(node, 0)
        taken = sum(self._pods[node].values()) if node in self._pods else 0
        if has - taken >= count:
            return ""
        if not has:
            return f"the kubelet has no {VGPU}: the device plugin does not run there, or not yet"
        return f"{count} {VGPU} are wanted; the kubelet has {has}, and pods there have {taken}"


def count_of(pod: PodWant) -> int:
    """The devices of all its containers."""
    return sum(each.count for each in pod.containers)
