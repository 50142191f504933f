# SPDX-License-Identifier: Apache-2.0
"""Many reservations in one step of the pool, without I/O: as if they had been asked for in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted
from sluice.controller.pool.impossible import Impossible, Outdated, Over, Unknown
from sluice.controller.pool.model import Event, OwnerKind, Quota, Reservation, ReservationState
from sluice.controller.pool.reservations.steps import Create, End, Outcome, ReservationStep, Resize


def record(
    name: str, memory_mib: int = 4000, compute_percent: int = 50, **more: Any
) -> Reservation:
    values: dict[str, Any] = {
        "owner_kind": OwnerKind.VM,
        "owner": f"vm-{name}",
        "project": "p",
        "count": 1,
        "priority": 0,
        "node": "",
        "created": 0.0,
        **more,
    }
    return Reservation(name, memory_mib=memory_mib, compute_percent=compute_percent, **values)


def create(name: str, *sizes: int, wait: bool = True, **more: Any) -> Create:
    return Create(record(name, *sizes, **more), wait)


def taken(bench: PoolBench, *steps: ReservationStep) -> list[Outcome]:
    outcomes, _ = bench.pool.reserving.reservation_steps(steps)
    return outcomes


def test_what_cannot_be_done_stops_nothing_else(bench: PoolBench) -> None:
    bench.node("a", 8000)
    kept = bench.reserve("kept", memory_mib=1000, compute_percent=10)
    outcomes = taken(
        bench,
        create("large", 9000),
        End("nobody", "gone"),
        Resize("kept", 0, 2000, 0, generation=7),
        create("fits"),
        create("not now", 4000, wait=False),
        Resize("kept", 0, 2000, 0, generation=kept.generation),
        create("later"),
        End("kept", "gone"),
        End("kept", "gone"),
    )
    kinds = [type(each) for each in outcomes]
    assert kinds == [
        *(Impossible, Unknown, Outdated, Reservation, Impossible),
        *(Reservation, Reservation, Reservation, Over),
    ]
    # what was given back was given to who waited
    found = {r.id: r.state.value for r in bench.pool.reservations.values()}
    assert found == {"kept": "ended", "fits": "held", "later": "held"}


def test_room_that_is_given_back_goes_to_the_queue_before_somebody_grows(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.reserve("one", compute_percent=50)
    bench.reserve("two", compute_percent=50)
    asked = bench.ask(request_id="x", memory_mib=4000, compute_percent=50, wait_seconds=-1)
    assert asked == "x"
    outcomes, decisions = bench.pool.reserving.reservation_steps(
        [End("one", "done"), Resize("two", 2, 0, 0)]
    )
    assert isinstance(decisions.answers["x"], Granted)
    assert isinstance(outcomes[1], Impossible)


def test_each_has_its_own_lines_in_the_event_log(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.pool.take_changes()
    taken(bench, create("one"), create("two"), create("three"), create("large", 9000))
    events = [c for c in bench.pool.take_changes() if isinstance(c, Event)]
    assert [(e.kind, e.subject) for e in events] == [
        ("reservation.held", "one"),
        ("reservation.held", "two"),
        ("reservation.made", "one"),
        ("reservation.made", "two"),
        ("reservation.made", "three"),
    ]


# whatever is asked for

CREATES = st.tuples(
    st.just("create"), st.integers(1, 5), st.integers(1, 100), st.integers(1, 3), st.booleans()
)
OTHERS = st.one_of(
    st.tuples(st.just("end"), st.integers(0, 12)),
    st.tuples(
        st.just("resize"),
        st.integers(0, 12),
        st.integers(0, 3),
        st.integers(0, 5),
        st.integers(0, 100),
    ),
)
Drawn = list[tuple[Any, ...]]


def steps_of(drawn: Drawn) -> list[ReservationStep]:
    """Ends and resizes are of what was there before: a call does not know what it makes."""
    steps: list[ReservationStep] = []
    for number, (kind, *of) in enumerate(drawn):
        if kind == "create":
            gib, percent, count, wait = of
            steps.append(create(f"n{number}", gib * 1000, percent, wait=wait, count=count))
        elif kind == "end":
            steps.append(End(f"o{of[0]}", "done"))
        else:
            steps.append(Resize(f"o{of[0]}", of[1], of[2] * 1000, of[3]))
    return steps


def full() -> PoolBench:
    """Six hold all that there is, as far as they go; four wait."""
    bench = PoolBench()
    bench.node("a", 8000, 8000)
    bench.node("b", 8000)
    for number in range(10):
        bench.reserve(f"o{number}", wait=True, memory_mib=3000, compute_percent=40)
    return bench


@settings(max_examples=200, deadline=None)
@given(drawn=st.lists(CREATES, max_size=12))
def test_reservations_made_in_one_go_are_those_made_in_turn(drawn: Drawn) -> None:
    one, many = PoolBench(), PoolBench()
    for bench in (one, many):
        bench.node("a", 8000, 8000)
        bench.node("b", 8000)
    apart = []
    for step in steps_of(drawn):
        assert isinstance(step, Create)
        outcome, _ = one.pool.reserving.reserve(step.reservation, wait=step.wait)
        apart.append(outcome.id if isinstance(outcome, Reservation) else str(outcome))
    together = taken(many, *steps_of(drawn))
    assert [each.id if isinstance(each, Reservation) else str(each) for each in together] == apart
    assert many.pool.reservations == one.pool.reservations
    assert waiting(many) == waiting(one)


@settings(max_examples=300, deadline=None)
@given(drawn=st.lists(CREATES | OTHERS, max_size=12))
def test_afterwards_the_books_are_right_and_nobody_waits_in_vain(drawn: Drawn) -> None:
    bench = full()
    pool = bench.pool
    before = {r.id: replace(r) for r in pool.reservations.values()}
    steps = steps_of(drawn)
    outcomes = taken(bench, *steps)
    touched = set()
    for step, outcome in zip(steps, outcomes, strict=True):
        name = step.reservation.id if isinstance(step, Create) else step.id
        if isinstance(outcome, Reservation):
            touched.add(name)
            assert pool.reservations[name] is outcome
            if isinstance(step, Create) and not step.wait:
                assert outcome.state is ReservationState.HELD
            if isinstance(step, End):
                assert outcome.state is ReservationState.ENDED
        elif isinstance(step, Create):
            assert name not in pool.reservations
    for name, was in before.items():
        if name not in touched and was.state is ReservationState.HELD:
            assert pool.reservations[name] == was
    for key, gpu in pool.gpus.items():
        slots = [
            slot
            for reservation in pool.reservations.values()
            if reservation.state is ReservationState.HELD
            for slot in reservation.slots
            if slot.key == key
        ]
        kept = pool.kept(key)
        assert kept.memory_mib == sum(slot.memory_mib for slot in slots) <= gpu.memory_mib
        assert kept.compute_percent == sum(slot.compute_percent for slot in slots) <= 100
    still = [r.id for r in pool.reservations.values() if r.state is ReservationState.WAITING]
    assert sorted(waiting(bench)) == sorted(still)
    # serving the queue once more finds nothing that was left undone
    pool.take_changes()
    taken(bench)
    assert pool.take_changes() == []


def waiting(bench: PoolBench) -> list[str]:
    return [entry.request.request_id for entry in bench.pool.queue]


def test_what_others_are_given_is_told_also_where_a_reservation_finds_no_room() -> None:
    """A request that preempts has its claim settled in the next step, whatever that is."""
    bench = PoolBench()
    bench.node("a", 8000)
    bench.pool.limits.set_quota(Quota("p", may_preempt=True))
    bench.granted(memory_mib=4000, compute_percent=10, priority=9)
    bench.ask(memory_mib=8000, priority=9, wait_seconds=-1)  # it would have what is free, too
    waits = bench.ask(memory_mib=1000, preempt=True, priority=1, project="p", wait_seconds=-1)
    assert isinstance(waits, str)
    outcome, decisions = bench.pool.reserving.reserve(record("r", 8000), wait=False)
    assert isinstance(outcome, Impossible)
    assert isinstance(decisions.answers[waits], Granted)
