# SPDX-License-Identifier: Apache-2.0
"""What the scheduler says to its extender, and what it is answered. Pure.

The forms are those of k8s.io/kube-scheduler/extender/v1. Used by extender.py. Whoever reaches the
port can say anything: what is wrong is refused with the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: As many nodes as Kubernetes says a cluster has at most, and three times that.
MOST_NODES = 15_000
LONGEST_NAME = 253
MOST_SCORE = 10


class ArgumentsError(ValueError):
    """What was said cannot be read; the text names the field."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A pod that is to be bound to a node."""

    namespace: str
    name: str
    uid: str
    node: str


def read_nodes(arguments: Mapping[str, Any]) -> list[str]:
    """The nodes' names; raises ArgumentsError."""
    names = arguments.get("NodeNames", arguments.get("nodenames"))
    if names is None:
        raise ArgumentsError("NodeNames is missing: set nodeCacheCapable: true for this extender")
    if not isinstance(names, list) or len(names) > MOST_NODES:
        raise ArgumentsError(f"NodeNames is no list of at most {MOST_NODES} names")
    for name in names:
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
            raise ArgumentsError(f"NodeNames holds what is no name of 1 to {LONGEST_NAME} signs")
    return names


def read_pod_object(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pod as JSON; raises ArgumentsError."""
    pod = arguments.get("Pod", arguments.get("pod"))
    if not isinstance(pod, Mapping):
        raise ArgumentsError("Pod is missing, or no object")
    return pod


def read_binding(arguments: Mapping[str, Any]) -> Binding:
    """Raises ArgumentsError."""

    def text(key: str) -> str:
        value = arguments.get(key, arguments.get(key[0].lower() + key[1:]))
        if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_NAME:
            raise ArgumentsError(f"{key} is missing, or no text of 1 to {LONGEST_NAME} signs")
        return value

    return Binding(text("PodNamespace"), text("PodName"), text("PodUID"), text("Node"))


def read_victims(arguments: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Whom the scheduler would evict on which nodes, by UIDs; raises ArgumentsError."""
    key = "NodeNameToMetaVictims"
    found = arguments.get(key)
    if found is None:
        raise ArgumentsError(f"{key} is missing: set nodeCacheCapable: true for this extender")
    if not isinstance(found, Mapping) or len(found) > MOST_NODES:
        raise ArgumentsError(f"{key} is no object of at most {MOST_NODES} nodes")
    victims: dict[str, dict[str, Any]] = {}
    for node, of_node in found.items():
        if not 1 <= len(node) <= LONGEST_NAME:
            raise ArgumentsError(f"{key} holds what is no name of 1 to {LONGEST_NAME} signs")
        pods = of_node.get("Pods") if isinstance(of_node, Mapping) else None
        if not isinstance(pods, list) or not all(isinstance(pod, Mapping) for pod in pods):
            raise ArgumentsError(f"{key}[{node}].Pods is missing, or no list of objects")
        broken = of_node.get("NumPDBViolations", 0)
        if not isinstance(broken, int):
            raise ArgumentsError(f"{key}[{node}].NumPDBViolations is no number")
        victims[node] = {"Pods": pods, "NumPDBViolations": broken}
    return victims


def filtered(fitting: list[str], failed: Mapping[str, str]) -> dict[str, Any]:
    """An ExtenderFilterResult. No pod is evicted for room, which is the pool's to give."""
    return {
        "NodeNames": fitting,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {node: said(why) for node, why in failed.items()},
        "Error": "",
    }


def said(text: str) -> str:
    """A reason as an event shows it: the scheduler takes it for a format of its own."""
    return "sluice: " + text.replace(" %", " percent").replace("%", "")


def filter_error(text: str) -> dict[str, Any]:
    """An ExtenderFilterResult of a filter that could not be."""
    return {"NodeNames": None, "FailedNodes": {}, "Error": said(text)}


def scored(scores: Mapping[str, float]) -> list[dict[str, Any]]:
    """A HostPriorityList of numbers from 0 to 1."""
    return [{"Host": node, "Score": round(score * MOST_SCORE)} for node, score in scores.items()]
