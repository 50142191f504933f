# SPDX-License-Identifier: Apache-2.0
"""The queue: its order, its positions, ageing, backfill, and what a walk visits."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from ends import DONE
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted, GrantRequest, Refused
from sluice.controller.pool.model import Event
from sluice.controller.pool.queue.waiting import WaitingQueue
from sluice.resources.ends import EndCause

REQUESTS = st.lists(
    st.tuples(
        st.integers(-3, 3),  # priority
        st.integers(0, 50),  # waited before
        st.integers(0, 3),  # class
        st.one_of(st.none(), st.integers(1, 40)),  # deadline
    ),
    max_size=25,
)


def filled(rows: list[tuple[int, int, int, int | None]], ageing: float) -> WaitingQueue:
    queue = WaitingQueue(ageing)
    for number, (priority, waited, kind, deadline) in enumerate(rows):
        request = GrantRequest(
            f"r{number}", priority=priority, waited_seconds=waited, memory_mib=kind
        )
        queue.add(request, deadline, float(number))
    return queue


def expected_order(rows: list[tuple[int, int, int, int | None]], ageing: float) -> list[str]:
    def place(item: tuple[int, tuple[int, int, int, int | None]]) -> tuple[float, float, int]:
        number, (priority, waited, _, _) = item
        since = number - waited
        return (since - priority * ageing, 0, number) if ageing else (-priority, since, number)

    return [f"r{number}" for number, _ in sorted(enumerate(rows), key=place)]


@settings(deadline=None)
@given(REQUESTS, st.sampled_from([0.0, 10.0]))
def test_order_positions_and_deadlines_agree_with_a_plain_list(
    rows: list[tuple[int, int, int, int | None]], ageing: float
) -> None:
    queue, order = filled(rows, ageing), expected_order(rows, ageing)
    assert [entry.request.request_id for entry in queue] == order
    assert [queue.position(name) for name in order] == list(range(1, len(order) + 1))
    assert queue.position("nobody") == 0
    for now in (10.0, 30.0):
        late = {r.request_id for r in queue.overdue(now)}
        due = {f"r{n}" for n, row in enumerate(rows) if row[3] is not None and row[3] <= now}
        assert late == due & set(order)
        order = [name for name in order if name not in late]
        assert [entry.request.request_id for entry in queue] == order
    for name in list(order):
        assert queue.remove(name)
        assert not queue.remove(name)
    assert len(queue) == 0
    assert list(queue.walk()) == []


@settings(deadline=None)
@given(REQUESTS, st.sets(st.integers(0, 3)), st.integers(0, 9))
def test_a_walk_visits_what_could_fit_in_order(
    rows: list[tuple[int, int, int, int | None]], fitting: set[int], room: int
) -> None:
    queue = filled(rows, 0.0)
    order = expected_order(rows, 0.0)
    kinds = {f"r{n}": row[2] for n, row in enumerate(rows)}
    wanted, left = [], room
    for name in order:
        if kinds[name] in fitting and left:
            wanted.append(name)
            left -= 1
    visited, served, left = [], [], room
    for entry in queue.walk():
        name = entry.request.request_id
        visited.append(name)
        if kinds[name] in fitting and left:
            served.append(name)
            queue.remove(name)
            left -= 1
    assert served == wanted
    assert visited == sorted(visited, key=order.index)
    assert len(visited) <= len(served) + len(set(kinds.values()))


def test_ageing_lets_old_requests_pass_and_no_others(make_bench: Callable[..., PoolBench]) -> None:
    bench = make_bench(ageing_seconds=100)
    bench.node("a", 8000)
    running = bench.granted(compute_percent=100).grant
    arrivals = [("old", 0, 0.0), ("late", 1, 101.0), ("early", 1, 0.0), ("first", 0, 5.0)]
    start = bench.clock.seconds
    for name, priority, after in sorted(arrivals, key=lambda a: a[2]):
        bench.clock.seconds = start + after
        assert (
            bench.ask(request_id=name, compute_percent=100, priority=priority, wait_seconds=-1)
            == name
        )
    served = []
    while answers := bench.pool.lifecycle.release(running.id, DONE).answers:
        [(name, answer)] = answers.items()
        assert isinstance(answer, Granted)
        served.append(name)
        running = answer.grant
    # "late" is a step above, which is worth 100 s: "old" has waited 101 s longer, "first" 96
    assert served == ["early", "old", "late", "first"]


def test_a_request_that_a_controller_before_kept_waiting_has_its_age(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.granted(compute_percent=100)
    assert bench.ask(request_id="new", wait_seconds=-1) == "new"
    assert bench.ask(request_id="again", wait_seconds=-1, waited_seconds=60.0) == "again"
    assert bench.pool.queue.position("again") == 1


def test_backfill_uses_only_what_an_older_request_cannot(bench: PoolBench) -> None:
    bench.node("a", 8000, 4000)
    bench.granted(memory_mib=6000, compute_percent=1)
    assert bench.ask(request_id="large", memory_mib=7000, wait_seconds=-1) == "large"
    small = bench.granted(memory_mib=1000, compute_percent=1, wait_seconds=-1)
    assert small.grant.vgpus[0].gpu_uuid == "a-gpu1", "the large one will never fit there"
    assert bench.ask(request_id="s2", memory_mib=3500, wait_seconds=-1) == "s2"
    assert bench.pool.queue.position("s2") == 2


class Step:
    """What the property test below does."""

    ask = st.tuples(
        st.just("ask"),
        st.integers(0, 2),  # priority
        st.sampled_from([1000, 2000, 4000, 8000]),
        st.sampled_from([10, 50, 100]),
        st.integers(1, 2),  # vGPUs
    )
    release = st.tuples(st.just("release"), st.integers(0, 30))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(Step.ask, Step.release), max_size=40), st.sampled_from([0.0, 30.0]))
def test_nobody_who_waits_could_have_had_what_a_later_one_got(
    steps: list[tuple[object, ...]], ageing: float
) -> None:
    """An older request of the same priority and size is never behind one that was served."""
    bench = PoolBench(ageing_seconds=ageing)
    bench.node("a", 8000, 8000)
    bench.node("b", 4000)
    numbers = itertools.count()
    live: list[str] = []
    asked: dict[str, tuple[object, ...]] = {}
    for step in steps:
        bench.clock.seconds += 1
        bench.pool.membership.seen("a")
        bench.pool.membership.seen("b")
        waiting = [e.request.request_id for e in bench.pool.queue]
        if step[0] == "ask":
            name = f"r{next(numbers)}"
            _, priority, mib, percent, count = step
            asked[name] = step
            decisions = bench.pool.requests.submit(
                GrantRequest(
                    name,
                    priority=priority,  # type: ignore[arg-type]
                    memory_mib=mib,  # type: ignore[arg-type]
                    compute_percent=percent,  # type: ignore[arg-type]
                    count=count,  # type: ignore[arg-type]
                    wait_seconds=-1,
                )
            )
        elif live:
            index = int(str(step[1])) % len(live)
            decisions = bench.pool.lifecycle.release(live.pop(index), DONE)
        else:
            continue
        served = [n for n, a in decisions.answers.items() if isinstance(a, Granted)]
        live += [a.grant.id for a in decisions.answers.values() if isinstance(a, Granted)]
        for name in served:
            older = waiting[: waiting.index(name)] if name in waiting else waiting
            for other in older:
                if other in bench.pool.queue and asked[other][1:] == asked[name][1:]:
                    pytest.fail(f"{name} was served before {other}, which asked for the same")
        positions = [bench.pool.queue.position(e.request.request_id) for e in bench.pool.queue]
        assert positions == list(range(1, len(positions) + 1))
        for key, gpu in bench.pool.gpus.items():
            usage = bench.pool.usage(key)
            assert 0 <= usage.memory_mib <= gpu.memory_mib
            assert 0 <= usage.compute_percent <= 100


def test_a_session_whose_client_never_comes_is_ended(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted().grant
    bench.clock.seconds += 301
    bench.pool.membership.seen("a")
    [order] = bench.pool.expire().ends
    assert order.grant_id == grant.id
    assert order.why.cause is EndCause.CLIENT_NEVER_CAME
    assert bench.pool.expire().ends == [], "it is told once, and again when the server returns"


def test_a_controller_that_stood_still_holds_nobody_for_silent(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.clock.seconds += 100
    bench.pool.membership.was_away(100)
    assert bench.pool.expire().lost == []
    kinds = [c.kind for c in bench.pool.take_changes() if isinstance(c, Event)]
    assert "controller.stalled" in kinds


def test_at_once_or_not_at_all(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.granted(compute_percent=100)
    assert isinstance(bench.ask(wait_seconds=0), Refused)
    assert len(bench.pool.queue) == 0


def test_asked_again_a_request_does_not_wait_longer(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.granted(compute_percent=100)
    assert bench.ask(request_id="x", wait_seconds=10, waited_seconds=8.0) == "x"
    bench.clock.seconds += 2.1
    bench.pool.membership.seen("a")
    assert isinstance(bench.pool.expire().answers["x"], Refused)
