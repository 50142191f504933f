# SPDX-License-Identifier: Apache-2.0
"""What Placement is told of the pool, and how every difference is found and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.nova_driver.differences import Difference, Kind
from sluice.nova_driver.inventory import (
    CLASSES,
    SHARES_TRAIT,
    TRAITS,
    Amount,
    Found,
    Wanted,
    aggregate_of,
    amounts,
    chosen_computes,
    differences,
)

ORIGIN = "openstack.R1"


def gpu(name: str, **other: Any) -> dict[str, Any]:
    return {
        "id": f"n1:{name}",
        "state": "up",
        "mode": "pooled",
        "health": "ok",
        "memory_mib": 10_000,
        "reserved_mib": 400,
        "granted_mib": 0,
        "granted_percent": 0,
        **other,
    }


def reservation(name: str, memory_mib: int, compute: int, **other: Any) -> dict[str, Any]:
    slot = {"gpu": f"n1:{name}", "memory_mib": memory_mib, "compute_percent": compute}
    return {"origin": ORIGIN, "state": "held", "slots": [slot], **other}


def test_an_empty_pool_is_an_inventory_of_nothing() -> None:
    memory, compute = amounts([], [], ORIGIN)
    assert memory == compute == Amount(0, 0)
    assert memory.inventory()["total"] == memory.inventory()["reserved"] == 1


def test_others_work_is_reserved_and_ours_is_not() -> None:
    """1024 MiB of ours with 500 MiB of context, and 2000 MiB of somebody else's."""
    held = gpu("a", granted_mib=1024 + 500 + 2000, granted_percent=25 + 10)
    memory, compute = amounts([held, gpu("b")], [reservation("a", 1024, 25)], ORIGIN)
    assert memory == Amount(2 * 9600, 2500)
    assert compute == Amount(200, 10)
    # another cloud's reservation is somebody else's
    memory, _ = amounts([held], [reservation("a", 1024, 25, origin="openstack.R2")], ORIGIN)
    assert memory.reserved == 3524
    # one that waits holds nothing
    memory, _ = amounts([held], [reservation("a", 1024, 25, state="waiting")], ORIGIN)
    assert memory.reserved == 3524


@pytest.mark.parametrize(
    "out",
    [{"state": "lost"}, {"mode": "native"}, {"mode": "draining"}, {"health": "fault"}],
)
def test_a_gpu_out_of_service_is_not_counted(out: dict[str, str]) -> None:
    gone = gpu("a", granted_mib=1524, granted_percent=25, **out)
    memory, compute = amounts([gone, gpu("b")], [reservation("a", 1024, 25)], ORIGIN)
    assert (memory, compute) == (Amount(9600, 0), Amount(100, 0))


def test_reserved_stays_within_total() -> None:
    assert Amount(100, 500).inventory()["reserved"] == 100
    assert Amount(100, -3).inventory()["reserved"] == 0


WANTED = Wanted("sluice", aggregate_of("sluice"), Amount(9600, 0), Amount(100, 25))
RIGHT = Found(
    provider="p1",
    classes=set(CLASSES),
    traits=set(TRAITS),
    provider_traits={SHARES_TRAIT, "CUSTOM_SLUICE_POOL", "CUSTOM_OF_SOMEBODY"},
    provider_aggregates={WANTED.aggregate, "another"},
    inventories=WANTED.inventories,
    computes={"c1": [WANTED.aggregate], "c2": [WANTED.aggregate]},
)


def kinds(found: list[Difference]) -> list[Kind]:
    return [each.kind for each in found]


def test_nothing_differs_where_all_is_right() -> None:
    assert differences(WANTED, RIGHT, ["*"]) == []


def test_a_cloud_that_knows_nothing_of_us() -> None:
    assert kinds(differences(WANTED, Found(computes={"c1": []}), ["*"])) == [
        *[Kind.RESOURCE_CLASS] * 2,
        *[Kind.TRAIT] * 2,
        Kind.PROVIDER,
        Kind.PROVIDER_TRAITS,
        Kind.PROVIDER_AGGREGATE,
        *[Kind.INVENTORY] * 2,
        Kind.COMPUTE_AGGREGATE,
    ]


def test_a_compute_joins_and_another_leaves() -> None:
    found = differences(
        WANTED, replace(RIGHT, computes={"c1": [], "c2": [WANTED.aggregate], "c3": []}), ["c1"]
    )
    assert [(each.subject, each.wanted) for each in found] == [
        ("c1", "may use the pool"),
        ("c2", "may not"),
    ]


def test_a_changed_pool_changes_one_inventory() -> None:
    smaller = replace(WANTED, memory_mib=Amount(4800, 10))
    [found] = differences(smaller, RIGHT, ["*"])
    assert found.subject == "sluice CUSTOM_SLUICE_VGPU_MIB"
    assert found.wanted == "4800, 10 of them reserved"
    assert found.found == "9600, 0 of them reserved"


def test_hosts_are_chosen_by_pattern() -> None:
    assert chosen_computes(["gpu-1", "gpu-2", "cpu-1"], ["gpu-*", "none"]) == ["gpu-1", "gpu-2"]
