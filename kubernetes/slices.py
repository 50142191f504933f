# SPDX-License-Identifier: Apache-2.0
"""What the cluster is told of the pool: ResourceSlices of what is reserved for it. Pure.

Called by publishing.py. There is one bookkeeper: a device is what a reservation for the cluster
holds of one GPU, never more, and never what the pool could give besides. Where the cluster knows
consumable capacity (DRAConsumableCapacity), a device is divided as claims ask; elsewhere each vGPU
of the reservation is a device of its own. A device whose GPU takes nothing new has a taint where
the cluster knows them (DRADeviceTaints), and elsewhere is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.kubernetes.naming import (
    COMPUTE,
    DRIVER,
    LONGEST_TEXT,
    MEMORY,
    SLICES,
    attribute_name,
    device_name,
)

API_VERSION = "resource.k8s.io/v1"
#: Kubernetes takes no more in one slice, and half as many where a device has a taint.
MOST_DEVICES = 128
MOST_DEVICES_TAINTED = 64
#: Of devices whose GPU takes nothing new; its value says why: fault, held, lost, drained.
TAINT = f"{DRIVER}/condition"
MOST_ATTRIBUTES = 32
OWNED_BY = {"app.kubernetes.io/managed-by": "sluice"}


@dataclass(frozen=True)
class Reach:
    """Which nodes of the cluster use GPUs: each its own, or those of a label all of the pool's."""

    selector: tuple[str, str] | None = None

    def of(self, node: str) -> dict[str, Any]:
        """The part of a slice's spec that says so."""
        if self.selector is None:
            return {"nodeName": node}
        key, value = self.selector
        term = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
        return {"nodeSelector": {"nodeSelectorTerms": [term]}}


def is_for(reservation: Mapping[str, Any], label: str) -> bool:
    """Whether a reservation of REST is the cluster's own, and no part of it."""
    return (
        reservation["owner_kind"] == "label"
        and reservation["owner"] == label
        and reservation["state"] == "held"
        and not reservation["within"]
    )


def is_usable(gpu: Mapping[str, Any]) -> bool:
    """Whether the pool lets something new begin on a GPU."""
    return bool(
        gpu["state"] == "up" and gpu["mode"] == "pooled" and gpu["health"] not in ("fault", "held")
    )


def taint_of(gpu: Mapping[str, Any]) -> dict[str, str] | None:
    """What keeps claims off a GPU; None: nothing.

    What runs on a GPU with a fault has been ended, so its pods are to be made anew elsewhere
    (NoExecute); on all others it goes on (NoSchedule).
    """
    if is_usable(gpu):
        return None
    value = "drained"
    if gpu["health"] == "fault":
        value = "fault"
    elif gpu["state"] != "up":
        value = "lost"
    elif gpu["health"] == "held":
        value = "held"
    effect = "NoExecute" if value == "fault" else "NoSchedule"
    return {"key": TAINT, "value": value, "effect": effect}


def devices_of(
    reservations: Iterable[Mapping[str, Any]],
    gpus: Mapping[str, Mapping[str, Any]],
    labels: Mapping[str, Mapping[str, str]],
    *,
    divided: bool,
    tainted: bool = False,
) -> dict[str, list[dict[str, Any]]]:
    """The devices by the pool's node; `gpus` by id, `labels` of nodes by name.

    `divided`: with consumable capacity. `tainted`: what takes nothing new is there, with a taint.
    """
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for reservation in reservations:
        by_gpu: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for slot in reservation["slots"]:
            by_gpu[slot["gpu"]].append(slot)
        for gpu_id, slots in by_gpu.items():
            gpu = gpus.get(gpu_id)
            if gpu is None or not (tainted or is_usable(gpu)):
                continue
            taint = taint_of(gpu)
            taints = {"taints": [taint]} if taint else {}
            attributes = _attributes(gpu, labels.get(gpu["node"], {}))
            if divided:
                name = device_name(gpu["uuid"], reservation["id"])
                found[gpu["node"]].append(_divided(name, attributes, slots) | taints)
                continue
            for number, slot in enumerate(slots):
                name = device_name(gpu["uuid"], reservation["id"], number)
                found[gpu["node"]].append(_whole(name, attributes, slot) | taints)
    return {node: sorted(of_node, key=lambda d: d["name"]) for node, of_node in found.items()}


def _divided(
    name: str, attributes: dict[str, Any], slots: list[Mapping[str, Any]]
) -> dict[str, Any]:
    # each part is charged a context besides its memory, and the reservation has room for one a
    # vGPU: so there are no more parts than vGPUs
    memory = sum(slot["memory_mib"] for slot in slots)
    compute = min(100, sum(slot["compute_percent"] for slot in slots))
    return {
        "name": name,
        "attributes": attributes,
        "allowMultipleAllocations": True,
        "capacity": {
            MEMORY: _capacity(memory, slots[0]["memory_mib"], "Mi"),
            COMPUTE: _capacity(compute, slots[0]["compute_percent"], ""),
            SLICES: {
                "value": str(len(slots)),
                "requestPolicy": {"default": "1", "validValues": ["1"]},
            },
        },
    }


def _capacity(value: int, default: int, unit: str) -> dict[str, Any]:
    policy: dict[str, Any] = {"default": f"{default}{unit}"}
    if value > 1:
        policy["validRange"] = {"min": f"1{unit}", "step": f"1{unit}"}
    else:  # Kubernetes takes no range without a second step
        policy["validValues"] = [f"1{unit}"]
    return {"value": f"{value}{unit}", "requestPolicy": policy}


def _whole(name: str, attributes: dict[str, Any], slot: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "attributes": attributes,
        "capacity": {
            MEMORY: {"value": f"{slot['memory_mib']}Mi"},
            COMPUTE: {"value": str(slot["compute_percent"])},
        },
    }


def _attributes(gpu: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """For CEL: device.attributes["vgpu.sluice.io"].model and so on."""
    texts = {
        "model": gpu["model"],
        "architecture": gpu["architecture"],
        "uuid": gpu["uuid"],
        "node": gpu["node"],
    }
    found: dict[str, Any] = {
        name: {"string": text[:LONGEST_TEXT]} for name, text in texts.items() if text
    }
    found["software"] = {"bool": bool(gpu["software"])}
    found["gpu_memory_mib"] = {"int": int(gpu["memory_mib"])}
    for label, value in sorted(labels.items()):
        if len(found) < MOST_ATTRIBUTES:
            found.setdefault(attribute_name(label), {"string": value[:LONGEST_TEXT]})
    return found


def slices_of(node: str, devices: list[dict[str, Any]], reach: Reach) -> list[dict[str, Any]]:
    """The specs of a pool's slices, without its generation."""
    most = MOST_DEVICES_TAINTED if any(d.get("taints") for d in devices) else MOST_DEVICES
    parts = [devices[at : at + most] for at in range(0, len(devices), most)]
    return [
        {
            "driver": DRIVER,
            "pool": {"name": node, "resourceSliceCount": len(parts)},
            **reach.of(node),
            "devices": part,
        }
        for part in parts
    ]


def lacks_division(published: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the API server dropped what it does not know of devices that are to be divided."""
    return any(
        SLICES in device.get("capacity", {}) and not device.get("allowMultipleAllocations")
        for spec in published
        for device in spec.get("devices") or ()
    )


def lacks_taints(
    wanted: Mapping[str, list[dict[str, Any]]], published: Iterable[Mapping[str, Any]]
) -> bool:
    """Whether the API server dropped the taints of devices that were to have some."""
    named = {
        (node, device["name"])
        for node, devices in wanted.items()
        for device in devices
        if device.get("taints")
    }
    return any(
        (spec["pool"]["name"], device["name"]) in named and not device.get("taints")
        for spec in published
        for device in spec.get("devices") or ()
    )


def keep_times(wanted: Iterable[dict[str, Any]], published: Iterable[Mapping[str, Any]]) -> None:
    """A taint that stays began when it began: the API server would say now."""
    known = {
        (device["name"], taint["key"], taint.get("value"), taint["effect"]): taint["timeAdded"]
        for spec in published
        for device in spec.get("devices") or ()
        for taint in device.get("taints") or ()
        if taint.get("timeAdded")
    }
    for spec in wanted:
        for device in spec["devices"]:
            for taint in device.get("taints") or ():
                key = (device["name"], taint["key"], taint["value"], taint["effect"])
                if key in known:
                    taint["timeAdded"] = known[key]


def same_spec(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a published spec says what is wanted, generations apart."""
    pool = {**found.get("pool", {})}
    pool.pop("generation", None)
    return bool(_plain(wanted) == _plain({**found, "pool": pool}))


def _plain(value: Any) -> Any:
    """Without what the API server adds."""
    if isinstance(value, Mapping):
        return {
            name: _plain(item)
            for name, item in value.items()
            if item not in (None, [], {}) and name != "timeAdded"
        }
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
