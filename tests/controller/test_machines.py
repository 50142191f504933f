# SPDX-License-Identifier: Apache-2.0
"""What servers say of their VMs: in the event log once, with a reservation where that is wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ends import DONE
from pool_bench import PoolBench

from sluice.controller.pool.model import (
    Document,
    Event,
    Mode,
    OwnerKind,
    Reservation,
    ReservationState,
)
from sluice.controller.pool.reservations.machines import COLLECTION, Machine

UUID = "606ef660-97e7-4293-92c4-c8b7480e0c99"
ASKS = Machine(UUID, "web", "", "vision", 1, 4000, 50)
HELD = replace(ASKS, mode=Mode.RESERVED)
WRONG = Machine(UUID, "web", "", problems=("web: memory-mib=-1: give 1 to 16777216",))


class World:
    """A pool, what it says in the event log, and what its servers report."""

    def __init__(self, bench: PoolBench) -> None:
        self.bench = bench
        bench.node("a", 8000)

    def report(self, *machines: Machine, node: str = "a") -> list[str]:
        """The kinds of the events that came of it."""
        self.bench.pool.take_changes()
        self.bench.pool.machines.report(node, machines)
        self.changes = self.bench.pool.take_changes()
        self.events = [change for change in self.changes if isinstance(change, Event)]
        return [event.kind for event in self.events]

    @property
    def held(self) -> list[Reservation]:
        """The VM's reservations that have not ended."""
        return [
            reservation
            for reservation in self.bench.pool.reservations.values()
            if reservation.state is not ReservationState.ENDED
        ]


@pytest.fixture
def world(bench: PoolBench) -> World:
    return World(bench)


def test_each_change_is_in_the_event_log_once(world: World) -> None:
    assert world.report(ASKS) == ["vm.request"]
    assert "web on a: 1 vGPU(s) of 4000 MiB and 50 %" in world.events[0].text
    assert world.events[0].subject == UUID
    assert world.report(ASKS) == []
    assert world.report(WRONG) == ["vm.request", "vm.problem"]
    assert "memory-mib=-1" in world.events[1].text
    assert world.report(WRONG) == []
    assert world.report(ASKS) == ["vm.request", "vm.well"]
    assert world.report() == ["vm.request"]
    assert "nothing" in world.events[0].text
    assert world.bench.pool.machines.records == {}


def test_a_report_speaks_of_its_own_node_only(world: World) -> None:
    world.report(ASKS)
    assert world.report(node="b") == []
    assert world.report(ASKS, node="b") == ["vm.request"]  # it was migrated
    assert world.report(node="a") == []
    assert world.bench.pool.machines.records[UUID].node == "b"


def test_a_vm_whose_mode_is_reserved_has_one_reservation(world: World) -> None:
    world.report(HELD)
    (held,) = world.held
    assert (held.owner_kind, held.owner, held.project) == (OwnerKind.VM, UUID, "vision")
    assert held.state is ReservationState.HELD
    grant = world.bench.granted(domain_uuid=UUID, mode=Mode.RESERVED).grant
    assert grant.reservation == held.id
    world.report(HELD)
    world.report(HELD, node="b")  # wherever it runs
    assert [each.id for each in world.held] == [held.id]
    world.report(replace(HELD, memory_mib=6000), node="b")
    assert [(each.id, each.memory_mib) for each in world.held] == [(held.id, 6000)]
    world.report(ASKS, node="b")
    assert world.held == []


def test_it_ends_with_the_vm(world: World) -> None:
    world.report(HELD)
    world.report()
    assert world.held == []
    assert world.bench.pool.usage(next(iter(world.bench.pool.gpus))).memory_mib == 0


def test_what_cannot_be_reserved_is_said_once_and_tried_again(world: World) -> None:
    huge = replace(HELD, memory_mib=9000)
    assert world.report(huge) == ["vm.request", "vm.problem"]
    assert "if it were empty" in world.events[1].text
    assert world.report(huge) == []
    world.bench.node("b", 16000)
    world.report(huge)
    assert len(world.held) == 1


def test_a_reservation_waits_for_room(world: World) -> None:
    running = world.bench.granted(compute_percent=80).grant
    world.report(HELD)
    assert world.held[0].state is ReservationState.WAITING
    world.bench.pool.lifecycle.release(running.id, DONE)
    assert world.held[0].state is ReservationState.HELD


def test_an_operator_may_end_it_and_the_next_report_makes_it_anew(world: World) -> None:
    world.report(HELD)
    world.bench.pool.reserving.end_reservation(world.held[0].id, "the operator asked for it")
    world.report(HELD)
    assert len(world.held) == 1


def test_a_restart_knows_what_was_said(world: World) -> None:
    world.report(HELD)
    documents = [change for change in world.changes if isinstance(change, Document)]
    assert [document.collection for document in documents] == [COLLECTION]
    known = world.bench.pool.machines.records[UUID]
    again = World(PoolBench())
    again.bench.pool.machines.restore(documents)
    assert again.bench.pool.machines.records == {UUID: known}


def test_what_a_server_says_is_bounded(world: World) -> None:
    world.report(replace(WRONG, problems=tuple(f"{n} " + "x" * 5000 for n in range(100))))
    assert len(world.events) == 8
    assert all(len(event.text) <= 500 for event in world.events)
