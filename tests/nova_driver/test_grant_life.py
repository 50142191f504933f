# SPDX-License-Identifier: Apache-2.0
"""An instance's life against its grant, as tables: every state of Nova with what is held."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.nova_driver.compute.extra_specs import VgpuSpecs
from sluice.nova_driver.grant_life import (
    Action,
    Held,
    Instance,
    Release,
    Reserve,
    Resize,
    Size,
    instance_of,
    steps,
)

UUID = "11111111-2222-3333-4444-555555555555"
SMALL, LARGE = VgpuSpecs(1024, 25), VgpuSpecs(4096, 20, count=2)
SIZE, LARGER = Size(1, 1024, 25), Size(2, 4096, 20)
BOTH = Size(2, 4096, 25)
ACTIVE = Instance(UUID, "p1", "ACTIVE", host="c1", specs=SMALL)
HELD = Held("r1", UUID, "p1", SIZE)
RESERVE = Reserve(UUID, "p1", SIZE, 0)


def named(actions: list[Action]) -> list[str]:
    """Actions in short words."""
    words = []
    for action in actions:
        if isinstance(action, Reserve):
            words.append(f"reserve {action.size.memory_mib}")
        elif isinstance(action, Resize):
            words.append(
                f"resize {action.size.count}x{action.size.memory_mib}x{action.size.compute}"
            )
        else:
            words.append(f"release {action.held.id}")
    return words


@pytest.mark.parametrize(
    ("status", "task", "host", "without", "with_it"),
    [
        # boot: nothing before the scheduler has chosen, held from then on
        ("BUILD", "scheduling", "", [], []),
        ("BUILD", "networking", "c1", ["reserve 1024"], []),
        ("BUILD", "spawning", "c1", ["reserve 1024"], []),
        ("ACTIVE", "", "c1", ["reserve 1024"], []),
        # what must not free: destroy() is called in several of these
        ("REBOOT", "reboot_started", "c1", ["reserve 1024"], []),
        ("HARD_REBOOT", "reboot_started_hard", "c1", ["reserve 1024"], []),
        ("REBUILD", "rebuilding", "c1", ["reserve 1024"], []),
        ("RESCUE", "", "c1", ["reserve 1024"], []),
        ("PAUSED", "", "c1", ["reserve 1024"], []),
        ("SUSPENDED", "", "c1", ["reserve 1024"], []),
        ("SHUTOFF", "", "c1", ["reserve 1024"], []),
        ("MIGRATING", "migrating", "c1", ["reserve 1024"], []),
        ("SOFT_DELETED", "", "c1", ["reserve 1024"], []),
        ("PASSWORD", "", "c1", ["reserve 1024"], []),
        # shelved: room goes with the last of the host, and comes back with it
        ("SHELVED", "shelving_offloading", "c1", ["reserve 1024"], []),
        ("SHELVED_OFFLOADED", "", "", [], ["release r1"]),
        ("SHELVED_OFFLOADED", "unshelving", "", [], []),
        ("SHELVED_OFFLOADED", "spawning", "c2", ["reserve 1024"], []),
        # evacuated: the same instance on another host has the same grant
        ("ACTIVE", "", "c2", ["reserve 1024"], []),
        ("REBUILD", "rebuild_spawning", "c2", ["reserve 1024"], []),
        # failures
        ("ERROR", "", "", [], ["release r1"]),
        ("ERROR", "", "c1", [], []),
        ("UNKNOWN", "", "", [], []),
        ("DELETED", "", "", [], ["release r1"]),
    ],
)
def test_states(status: str, task: str, host: str, without: list[str], with_it: list[str]) -> None:
    instance = Instance(UUID, "p1", status, task, host, SMALL)
    assert named(steps(instance, [])) == without
    assert named(steps(instance, [HELD])) == with_it


RESIZED = Instance(UUID, "p1", "VERIFY_RESIZE", host="c1", specs=LARGE)


@pytest.mark.parametrize(
    ("instance", "size", "expected"),
    [
        # growing: both sizes fit into what is held until somebody decides
        (replace(ACTIVE, status="RESIZE", task="resize_prep"), SIZE, []),
        (replace(RESIZED, status="RESIZE", task="resize_finish"), SIZE, ["resize 2x4096x25"]),
        (RESIZED, SIZE, ["resize 2x4096x25"]),
        (RESIZED, BOTH, []),
        (replace(RESIZED, status="ACTIVE"), BOTH, ["resize 2x4096x20"]),  # confirmed
        (replace(ACTIVE, status="REVERT_RESIZE", task="resize_reverting"), BOTH, []),
        (ACTIVE, BOTH, ["resize 1x1024x25"]),  # reverted
        # shrinking
        (replace(ACTIVE, status="VERIFY_RESIZE"), LARGER, ["resize 2x4096x25"]),
        (ACTIVE, LARGER, ["resize 1x1024x25"]),
        # to and from a flavor without a vGPU
        (replace(RESIZED, specs=None), SIZE, []),
        (replace(ACTIVE, specs=None), SIZE, ["release r1"]),
        (RESIZED, None, ["reserve 4096"]),
        # to on-demand
        (replace(ACTIVE, specs=VgpuSpecs(1024, 25, mode="on-demand")), SIZE, ["release r1"]),
    ],
)
def test_resize(instance: Instance, size: Size | None, expected: list[str]) -> None:
    held = [] if size is None else [replace(HELD, size=size)]
    assert named(steps(instance, held)) == expected


def test_an_instance_that_is_gone_holds_nothing() -> None:
    assert steps(None, [HELD]) == [Release(HELD, "the instance was deleted", gone=True)]
    assert steps(None, []) == []


def test_what_is_held_twice_is_held_once() -> None:
    waiting = replace(HELD, id="r0", waiting=True)
    assert named(steps(ACTIVE, [waiting, HELD])) == ["release r0"]
    assert named(steps(None, [waiting, HELD])) == ["release r0", "release r1"]


def test_a_flavor_that_cannot_be_read_takes_nothing_away() -> None:
    server = {
        "id": UUID,
        "tenant_id": "p1",
        "status": "ACTIVE",
        "OS-EXT-SRV-ATTR:host": "c1",
        "flavor": {"original_name": "broken", "extra_specs": {"vgpu:memory_mib": "lots"}},
    }
    instance = instance_of(server)
    assert "flavor broken" in instance.problem
    assert "vgpu:memory_mib='lots'" in instance.problem
    assert steps(instance, [HELD]) == []
    assert steps(instance, []) == []


def test_a_new_priority_moves_only_who_waits() -> None:
    urgent = replace(ACTIVE, specs=replace(SMALL, priority=5))
    assert steps(urgent, [HELD]) == []
    waiting = replace(HELD, waiting=True)
    assert named(steps(urgent, [waiting])) == ["release r1", "reserve 1024"]


def test_doing_it_twice_changes_nothing() -> None:
    """What the steps make is what they find in order."""
    for instance in (ACTIVE, RESIZED, replace(ACTIVE, status="SHUTOFF")):
        for before in ([], [HELD], [replace(HELD, size=LARGER)]):
            held = {each.id: each for each in before}
            for action in steps(instance, before):
                if isinstance(action, Reserve):
                    held["new"] = Held("new", UUID, "p1", action.size, action.priority)
                elif isinstance(action, Resize):
                    held[action.held.id] = replace(action.held, size=action.size)
                else:
                    del held[action.held.id]
            assert steps(instance, list(held.values())) == []
