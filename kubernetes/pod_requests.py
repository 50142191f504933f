# SPDX-License-Identifier: Apache-2.0
"""What the containers of a pod ask of the pool by extended resources. Pure.

Read by the webhook, the scheduler extender and the device plugin, which so understand a pod alike.
`sluice.io/vgpu` is how many vGPUs a container has, the two other resources are what each of them
is to be. A pod is its user's word: whatever is wrong with it is refused with the field and the fix.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from sluice.kubernetes.naming import VGPU, VGPU_COMPUTE, VGPU_MEMORY, container_label
from sluice.resources.vgpu_request import COMPUTE_PERCENT, COUNT, I32

#: A longer quantity is no number of anything.
LONGEST_QUANTITY = 32
MOST_CONTAINERS = 512
OWN = (VGPU, VGPU_MEMORY, VGPU_COMPUTE)


class PodRequestError(ValueError):
    """A pod asks for what cannot be; the text says which field, and what to do."""


@dataclass(frozen=True, slots=True)
class ContainerWant:
    """What one container asks for; None: the reservation's own size."""

    name: str
    count: int
    memory_mib: int | None = None
    compute_percent: int | None = None


@dataclass(frozen=True, slots=True)
class PodWant:
    """A pod, and those of its containers that ask for vGPUs."""

    uid: str
    namespace: str
    name: str
    containers: tuple[ContainerWant, ...]

    def labels(self) -> dict[str, ContainerWant]:
        """The labels of its parts."""
        return {container_label(self.uid, each.name): each for each in self.containers}

    def of(self, container: str) -> ContainerWant:
        """What that container asks for; raises PodRequestError."""
        for each in self.containers:
            if each.name == container:
                return each
        raise PodRequestError(f"container {container} of this pod asks for no {VGPU}")


def read_pod(pod: Mapping[str, Any]) -> PodWant:
    """What a pod as JSON asks for; raises PodRequestError."""
    metadata = _mapping(pod, "metadata", "the pod")
    uid, namespace, name = (
        _text(metadata, key, f"metadata.{key}") for key in ("uid", "namespace", "name")
    )
    return PodWant(uid, namespace, name, tuple(wants_of(_mapping(pod, "spec", "the pod"))))


def wants_of(spec: Mapping[str, Any]) -> Iterator[ContainerWant]:
    """Of a pod's spec; raises PodRequestError."""
    for path, container, lives_on in containers_of(spec):
        found = limits_of(container, path)
        if not any(name in found for name in OWN):
            continue
        want = _want(_text(container, "name", f"{path}.name"), path, found)
        if want is None:
            continue
        if not lives_on:
            raise PodRequestError(
                f"{path}: an init container cannot have {VGPU} where there is no DRA, as the "
                "kubelet tells nobody which pod it is of: ask for it in a container, or in a "
                "sidecar (restartPolicy: Always)"
            )
        yield want


def names_vgpus(spec: Mapping[str, Any]) -> bool:
    """Whether a pod names a resource of ours, though it be none of it; raises PodRequestError."""
    return any(
        name in limits_of(container, path)
        for path, container, _ in containers_of(spec)
        for name in OWN
    )


def containers_of(
    spec: Mapping[str, Any],
) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Path, container, and whether it is one that lives as long as the pod."""
    total = 0
    for kind in ("initContainers", "containers"):
        listed = spec.get(kind)
        if listed is None:
            continue
        if not isinstance(listed, list):
            raise PodRequestError(f"spec.{kind} is no list")
        total += len(listed)
        if total > MOST_CONTAINERS:
            raise PodRequestError(f"spec.{kind}: a pod has at most {MOST_CONTAINERS} containers")
        for number, container in enumerate(listed):
            path = f"spec.{kind}[{number}]"
            if not isinstance(container, Mapping):
                raise PodRequestError(f"{path} is no object")
            yield (
                path,
                container,
                kind == "containers" or container.get("restartPolicy") == ("Always"),
            )


def limits_of(container: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """A container's limits, with requests that have no limit; raises PodRequestError."""
    resources = container.get("resources") or {}
    if not isinstance(resources, Mapping):
        raise PodRequestError(f"{path}.resources is no object")
    merged: dict[str, Any] = {}
    for kind in ("requests", "limits"):
        found = resources.get(kind) or {}
        if not isinstance(found, Mapping):
            raise PodRequestError(f"{path}.resources.{kind} is no object")
        merged.update(found)
    return merged


def whole_number(value: Any, field: str, *, least: int, most: int) -> int:
    """A quantity that is a whole number; raises PodRequestError."""
    shown = str(value)[:LONGEST_QUANTITY]
    allowed = f"give a whole number, {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise PodRequestError(f"{field}={shown}: {allowed}")
    if isinstance(value, str) and len(value) > LONGEST_QUANTITY:
        raise PodRequestError(f"{field}={shown}…: {allowed}")
    try:
        number = parse_quantity(value)
        # before it is made an integer: 1e999999999 is a quantity, too, and so is Infinity
        if least <= number <= most and number == int(number):
            return int(number)
    except (ValueError, ArithmeticError):
        pass
    raise PodRequestError(f"{field}={shown}: {allowed}")


def _want(name: str, path: str, found: Mapping[str, Any]) -> ContainerWant | None:
    def number(resource: str, most: int) -> int | None:
        if resource not in found:
            return None
        field = f"{path}.resources.limits[{resource}]"
        return whole_number(found[resource], field, least=0, most=most) or None

    count = number(VGPU, COUNT.high)
    memory, compute = number(VGPU_MEMORY, I32.high), number(VGPU_COMPUTE, COMPUTE_PERCENT.high)
    if count is None:
        if memory is None and compute is None:
            return None
        raise PodRequestError(
            f"{path}.resources.limits names {VGPU_MEMORY if memory else VGPU_COMPUTE} and no "
            f"{VGPU}: add `{VGPU}: 1`, as the webhook does where it runs"
        )
    return ContainerWant(name, count, memory, compute)


def _mapping(found: Mapping[str, Any], key: str, of: str) -> Mapping[str, Any]:
    value = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(value, Mapping):
        raise PodRequestError(f"{key} of {of} is missing, or no object")
    return value


def _text(found: Mapping[str, Any], key: str, field: str) -> str:
    value = found.get(key)
    if not isinstance(value, str) or not 1 <= len(value) <= 253 or not value.isprintable():
        raise PodRequestError(f"{field} is missing, or no text of 1 to 253 signs")
    return value
