# SPDX-License-Identifier: Apache-2.0
"""What Placement has to say of the pool, and how that differs from what it says. Pure.

Used by placement.py, which asks and changes. The pool is one provider that shares its inventory
with the compute hosts of an aggregate: `total` is what the GPUs in service have, `reserved` what
is held by others than this cloud's instances, and Placement counts the instances by itself.
"""

from __future__ import annotations

import fnmatch
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.nova_driver.compute.extra_specs import COMPUTE_CLASS, MEMORY_CLASS
from sluice.nova_driver.differences import Difference, Kind

SHARES_TRAIT = "MISC_SHARES_VIA_AGGREGATE"
POOL_TRAIT = "CUSTOM_SLUICE_POOL"
#: Set by the virt driver on compute hosts that give instances a channel of their own.
CHANNEL_TRAIT = "CUSTOM_SLUICE_CHANNEL"
TRAITS = (POOL_TRAIT, CHANNEL_TRAIT)
CLASSES = (MEMORY_CLASS, COMPUTE_CLASS)
WHOLE_GPU_PERCENT = 100

#: Inventories of Placement, by resource class.
Inventories = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Amount:
    """Of one resource: what there is, and what others hold of it."""

    total: int
    reserved: int

    def inventory(self) -> dict[str, Any]:
        """As Placement writes it, which knows no inventory of nothing."""
        total = max(1, self.total)
        reserved = total if self.total == 0 else min(max(0, self.reserved), total)
        return {
            "total": total,
            "reserved": reserved,
            "min_unit": 1,
            "max_unit": total,
            "step_size": 1,
            "allocation_ratio": 1.0,
        }


@dataclass(frozen=True)
class Wanted:
    """The provider as it should be."""

    name: str
    aggregate: str
    memory_mib: Amount
    compute_percent: Amount

    @property
    def inventories(self) -> dict[str, dict[str, Any]]:
        """By resource class."""
        return {
            MEMORY_CLASS: self.memory_mib.inventory(),
            COMPUTE_CLASS: self.compute_percent.inventory(),
        }


@dataclass(frozen=True)
class Found:
    """What Placement has; `provider` is its UUID, empty where there is none."""

    provider: str = ""
    classes: Collection[str] = ()
    traits: Collection[str] = ()
    provider_traits: Collection[str] = ()
    provider_aggregates: Collection[str] = ()
    inventories: Inventories = field(default_factory=dict)
    #: Compute hosts' providers by name, with the aggregates that they are in.
    computes: Mapping[str, Collection[str]] = field(default_factory=dict)


def aggregate_of(provider_name: str) -> str:
    """The aggregate of a provider's own: the same whenever it is asked for."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{provider_name}.placement.sluice.dev"))


def in_service(gpu: Mapping[str, Any]) -> bool:
    """Whether the pool grants slices of that GPU."""
    return (
        gpu["state"] == "up" and gpu["mode"] == "pooled" and gpu["health"] not in ("fault", "held")
    )


def amounts(
    gpus: Iterable[Mapping[str, Any]], reservations: Iterable[Mapping[str, Any]], origin: str
) -> tuple[Amount, Amount]:
    """Memory and compute of the pool, from the REST API's GPUs and reservations.

    What instances' reservations take beyond what their flavors say (a process' context on a real
    GPU) counts as held by others: Placement does not know of it.
    """
    serving = {gpu["id"]: gpu for gpu in gpus if in_service(gpu)}
    ours = [
        slot
        for reservation in reservations
        if reservation["origin"] == origin and reservation["state"] == "held"
        for slot in reservation["slots"]
        if slot["gpu"] in serving
    ]
    memory = sum(gpu["memory_mib"] - gpu["reserved_mib"] for gpu in serving.values())
    held_mib = sum(gpu["granted_mib"] for gpu in serving.values())
    held_percent = sum(gpu["granted_percent"] for gpu in serving.values())
    return (
        Amount(memory, held_mib - sum(slot["memory_mib"] for slot in ours)),
        Amount(
            WHOLE_GPU_PERCENT * len(serving),
            held_percent - sum(slot["compute_percent"] for slot in ours),
        ),
    )


def chosen_computes(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The compute hosts that may use the pool."""
    wanted = tuple(patterns)
    return sorted(n for n in names if any(fnmatch.fnmatchcase(n, p) for p in wanted))


def differences(wanted: Wanted, found: Found, patterns: Iterable[str]) -> list[Difference]:
    """Everything in Placement that is not as it should be, in the order in which it is mended."""
    listed = [
        Difference(Kind.RESOURCE_CLASS, name, "present", "absent", "flavors that name it fail")
        for name in CLASSES
        if name not in found.classes
    ]
    listed += [
        Difference(Kind.TRAIT, name, "present", "absent", "flavors that name it fail")
        for name in TRAITS
        if name not in found.traits
    ]
    name = wanted.name
    if not found.provider:
        listed.append(
            Difference(Kind.PROVIDER, name, "present", "absent", "the pool is unknown to Placement")
        )
    if missing := sorted({SHARES_TRAIT, POOL_TRAIT} - set(found.provider_traits)):
        why = "its inventory is not shared without them"
        listed.append(Difference(Kind.PROVIDER_TRAITS, name, missing, "absent", why))
    if wanted.aggregate not in found.provider_aggregates:
        why = "no compute host may use the pool"
        listed.append(Difference(Kind.PROVIDER_AGGREGATE, name, wanted.aggregate, "absent", why))
    for resource, inventory in wanted.inventories.items():
        there = found.inventories.get(resource)
        shown = {key: there.get(key) for key in inventory} if there is not None else None
        if shown != inventory:
            listed.append(
                Difference(
                    Kind.INVENTORY,
                    f"{name} {resource}",
                    _amount(inventory),
                    _amount(shown) if shown else "absent",
                    "the scheduler counts on what the pool had, not on what it has",
                )
            )
    chosen = chosen_computes(found.computes, patterns)
    for compute in sorted(found.computes):
        joined = wanted.aggregate in found.computes[compute]
        if joined == (compute in chosen):
            continue
        told = ("may use the pool", "may not")
        wants, has = told if compute in chosen else told[::-1]
        why = "by [openstack] computes"
        listed.append(Difference(Kind.COMPUTE_AGGREGATE, compute, wants, has, why))
    return listed


def _amount(inventory: Mapping[str, Any]) -> str:
    return f"{inventory['total']}, {inventory['reserved']} of them reserved"
