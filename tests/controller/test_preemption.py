# SPDX-License-Identifier: Apache-2.0
"""Preemption: whose work gives way, and that the room it leaves is the request's."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
from ends import GAVE_WAY, GONE
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted, GrantRequest
from sluice.controller.pool.grants.adoption import ReportedSession
from sluice.controller.pool.model import Event, Gpu, GpuKey, Grant, Quota, Vgpu
from sluice.controller.pool.placement.placement import FreeCapacity, slice_on
from sluice.controller.pool.queue import preemption
from sluice.controller.pool.queue.preemption import Candidate, Loss, freed_by, make_plan
from sluice.protocol.cuda_status import CudaStatus


@pytest.fixture
def bench() -> PoolBench:
    made = PoolBench()
    made.pool.limits.set_quota(Quota("urgent", may_preempt=True))
    return made


URGENT = {"project": "urgent", "preempt": True, "priority": 5, "wait_seconds": -1}


def test_the_cheapest_work_gives_way_and_its_room_is_kept(bench: PoolBench) -> None:
    bench.node("a", 8000)
    old = bench.granted(compute_percent=50, priority=1).grant
    bench.clock.seconds += 10
    young = bench.granted(compute_percent=50, priority=1).grant
    assert bench.ask(request_id="behind", compute_percent=50, wait_seconds=-1) == "behind"
    decisions = bench.pool.requests.submit(GrantRequest("now", compute_percent=40, **URGENT))  # type: ignore[arg-type]
    [order] = decisions.ends
    assert (order.grant_id, order.node) == (young.id, "a")
    assert order.why.text.startswith("preempted: request now of priority 5")
    assert decisions.answers == {}, "it waits until the room is there"
    why_over = bench.pool.lifecycle.why_over
    assert (why_over(young.id), why_over(old.id)) == (order.why, None), "nothing joins it now"
    assert (
        "being ended for it"
        in bench.pool.requests.waiting(bench.pool.queue.get("now").request).line
    )  # type: ignore[union-attr]
    answers = bench.pool.lifecycle.session_ended("", young.id, order.why).answers
    assert isinstance(answers["now"], Granted)
    assert list(answers) == ["now"], "10 % is not enough for who waits behind"
    assert bench.pool.grants[old.id].ended is None


def test_nobody_else_takes_what_is_given_back_one_after_another(bench: PoolBench) -> None:
    bench.node("a", 8000)
    small = [bench.granted(compute_percent=25, memory_mib=100).grant for _ in range(4)]
    decisions = bench.pool.requests.submit(GrantRequest("now", compute_percent=100, **URGENT))  # type: ignore[arg-type]
    assert {order.grant_id for order in decisions.ends} == {grant.id for grant in small}
    for grant in small[:3]:
        assert bench.pool.lifecycle.release(grant.id, GAVE_WAY).answers == {}
        assert not isinstance(bench.ask(compute_percent=1, memory_mib=1), Granted)
        assert bench.pool.kept(GpuKey("a", "a-gpu0")).compute_percent == 100
    answers = bench.pool.lifecycle.release(small[3].id, GAVE_WAY).answers
    assert isinstance(answers["now"], Granted)
    assert bench.pool.kept(GpuKey("a", "a-gpu0")).compute_percent == 0


def test_a_plan_is_made_anew_when_its_node_goes(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.node("b", 8000)
    on = {g.node: g for g in (bench.granted(compute_percent=100).grant for _ in range(2))}
    first = bench.pool.requests.submit(GrantRequest("now", compute_percent=100, **URGENT)).ends[0]  # type: ignore[arg-type]
    other = "b" if first.node == "a" else "a"
    bench.pool.membership.disconnected(first.node)
    [second] = bench.pool.expire().ends
    assert second.grant_id == on[other].id
    answers = bench.pool.lifecycle.release(on[other].id, GAVE_WAY).answers
    assert isinstance(answers["now"], Granted)


def test_a_victim_that_was_not_told_is_told_when_its_server_returns(bench: PoolBench) -> None:
    bench.node("a", 8000)
    granted = bench.granted(memory_mib=1000, compute_percent=30)
    bench.granted(compute_percent=70, memory_mib=1000, priority=9)
    [order] = bench.pool.requests.submit(GrantRequest("now", compute_percent=30, **URGENT)).ends  # type: ignore[arg-type]
    report = ReportedSession(granted.session, granted.grant.vgpus, "r1", 0)
    gpus = list(bench.pool.gpus.values())
    again = bench.pool.membership.register(replace(bench.pool.nodes["a"]), gpus, [report], ["r2"])
    assert [(o.grant_id, o.why) for o in again.ends] == [(granted.grant.id, order.why)]


def test_room_is_everyones_again_when_the_request_goes(bench: PoolBench) -> None:
    bench.node("a", 8000)
    victim = bench.granted(compute_percent=100).grant
    bench.pool.requests.submit(GrantRequest("now", compute_percent=100, **URGENT))  # type: ignore[arg-type]
    bench.pool.requests.withdraw("now", GONE)
    bench.pool.lifecycle.release(victim.id, GAVE_WAY)
    assert isinstance(bench.ask(compute_percent=100), Granted)


def test_equal_priority_reserved_work_and_others_without_the_right_stay(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.granted(compute_percent=100, priority=5)
    assert bench.pool.requests.submit(GrantRequest("now", compute_percent=10, **URGENT)).ends == []  # type: ignore[arg-type]
    refusal = bench.refused(preempt=True, priority=9, project="other", wait_seconds=-1)
    assert refusal.status is CudaStatus.NOT_PERMITTED
    assert "sluice quota set other --may-preempt" in refusal.message


def test_preemption_is_in_the_event_log(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.granted(compute_percent=100)
    bench.pool.requests.submit(GrantRequest("now", compute_percent=10, **URGENT))  # type: ignore[arg-type]
    kinds = [c.kind for c in bench.pool.take_changes() if isinstance(c, Event)]
    assert kinds[-2:] == ["grant.preempted", "request.preempts"]


@dataclass(frozen=True)
class Work:
    """A grant of the property test: where, how much, how dear."""

    spots: tuple[tuple[int, int, int], ...]  # GPU, MiB, percent
    sessions: int
    priority: int
    age: int


WORK = st.builds(
    Work,
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(1, 40)),
        min_size=1,
        max_size=2,
        unique_by=lambda spot: spot[0],
    ).map(tuple),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 5),
)


def scene(works: list[Work]) -> tuple[list[FreeCapacity], list[Candidate]]:
    gpus = [Gpu("a", f"g{n}", "M", 100) for n in range(3)]
    candidates = []
    for number, work in enumerate(works):
        vgpus = tuple(Vgpu(f"g{gpu}", mib, percent) for gpu, mib, percent in work.spots)
        grant = Grant(f"w{number:02}", "", "a", vgpus, work.priority, 0.0)
        mib = sum(spot[1] for spot in work.spots)
        loss = Loss(work.sessions, work.priority, float(work.age), mib)
        candidates.append(Candidate(grant, loss, freed_by(grant)))
    capacities = []
    for gpu in gpus:
        taken = [c.frees.get(gpu.key, (0, 0)) for c in candidates]
        capacities.append(
            FreeCapacity(gpu, 100 - sum(t[0] for t in taken), 100 - sum(t[1] for t in taken), 1)
        )
    return capacities, candidates


def enough(request: GrantRequest, capacities: list[FreeCapacity], victims: list[Candidate]) -> bool:
    fitting = 0
    for capacity in capacities:
        wanted = slice_on(request, capacity.gpu, capacity.vgpu_count)
        freed = [v.frees.get(capacity.gpu.key, (0, 0)) for v in victims]
        fitting += (
            capacity.free_mib + sum(f[0] for f in freed) >= wanted.memory_mib
            and capacity.free_percent + sum(f[1] for f in freed) >= wanted.compute_percent
        )
    return fitting >= request.count


def loss_of(victims: list[Candidate]) -> tuple[int, int, float, int]:
    total = preemption.NO_LOSS
    for victim in victims:
        total = total.plus(victim.loss)
    return total.order


REQUEST = st.builds(
    lambda count, mib, percent: GrantRequest(
        "r", count=count, memory_mib=mib, compute_percent=percent
    ),
    st.integers(1, 3),
    st.integers(1, 100),
    st.integers(1, 100),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(WORK, max_size=7), REQUEST)
def test_the_plan_is_the_cheapest_of_all(works: list[Work], request: GrantRequest) -> None:
    capacities, candidates = scene(works)
    sets = [
        list(chosen)
        for size in range(len(candidates) + 1)
        for chosen in itertools.combinations(candidates, size)
        if enough(request, capacities, list(chosen))
    ]
    plan = make_plan(request, capacities, candidates)
    if not sets:
        assert plan is None
        return
    assert plan is not None
    assert plan.loss.order == min(map(loss_of, sets))
    assert enough(request, capacities, list(plan.victims))
    assert len({capacity.gpu.key for capacity in plan.capacities}) == request.count


@settings(max_examples=80, deadline=None)
@given(st.lists(WORK, min_size=13, max_size=30), REQUEST)
def test_beyond_the_exact_size_nobody_goes_who_could_stay(
    works: list[Work], request: GrantRequest
) -> None:
    capacities, candidates = scene(works)
    plan = make_plan(request, capacities, candidates)
    if plan is None:
        assert not enough(request, capacities, candidates)
        return
    victims = list(plan.victims)
    assert enough(request, capacities, victims)
    for victim in victims:
        assert not enough(request, capacities, [v for v in victims if v is not victim])
