# SPDX-License-Identifier: Apache-2.0
"""Memory that is promised more than once: how much, to whom, and what is never promised."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from ends import GONE
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted
from sluice.controller.pool.gpus.oversubscription import MOST_MOVED
from sluice.controller.pool.grants.suspension import ReportedSuspension, SuspendedContexts
from sluice.controller.pool.impossible import Impossible
from sluice.controller.pool.model import Gpu, GpuKey, Grant, Node, OwnerKind, Sharing
from sluice.controller.rpc.messages import factor_of, gpu_of
from sluice.resources.suspended_contexts import ContextPlace
from sluice.rpc import pool_pb2 as rpc

MIB, CONTEXT, SWAP = 8000, 500, 100_000
KEY = GpuKey("a", "a-gpu0")


def make_bench(
    *, factor: float = 2.0, swap_mib: int = SWAP, gpus: int = 1, pool: float = 1.0, **options: Any
) -> PoolBench:
    """A pool of one node, whose server says `factor`."""
    bench = PoolBench(node_timeout_seconds=1e9, memory_oversubscription=pool, **options)
    node = Node("a", "10.0.0.1", 9960, "1", 4, swap_mib=swap_mib)
    node.memory_oversubscription = factor
    node.takes_parts = True
    cards = [Gpu("a", f"a-gpu{n}", "Model", MIB, context_overhead_mib=CONTEXT) for n in range(gpus)]
    bench.pool.membership.register(node, cards, [])
    return bench


def fits(bench: PoolBench, **wanted: Any) -> bool:
    return isinstance(bench.ask(wait_seconds=0, **wanted), Granted)


def test_as_much_is_promised_as_the_factor_says() -> None:
    bench = make_bench()
    for _ in range(3):
        bench.granted(memory_mib=4500, compute_percent=10)
    assert bench.pool.usage(KEY).memory_mib == 15_000
    assert not fits(bench, memory_mib=501, compute_percent=10)
    assert fits(bench, memory_mib=500, compute_percent=10)
    assert bench.pool.promisable_mib(bench.pool.gpus[KEY]) == 16_000


@pytest.mark.parametrize(
    ("factor", "pool", "swap_mib", "limit"),
    [
        (1.0, 3.0, SWAP, MIB),  # the node's own word
        (0.0, 3.0, SWAP, 3 * MIB),  # as the pool says
        (0.0, 3.0, 0, MIB),  # nothing could be out
        (2.0, 1.0, SWAP, 2 * MIB),
        (2.0, 1.0, 1000, MIB + 1000),  # no more than host memory takes
    ],
)
def test_whose_word_counts(factor: float, pool: float, swap_mib: int, limit: int) -> None:
    bench = make_bench(factor=factor, pool=pool, swap_mib=swap_mib)
    assert bench.pool.promisable_mib(bench.pool.gpus[KEY]) == limit
    granted = 0
    while fits(bench, memory_mib=2000, compute_percent=1):
        granted += 1
    assert granted == limit // (2000 + CONTEXT)


def test_two_change_places_by_way_of_host_memory() -> None:
    """What is beyond the GPU has to fit there, and the largest once more."""
    bench = make_bench(swap_mib=4000)
    bench.granted(memory_mib=3500, compute_percent=10)
    assert fits(bench, memory_mib=3500, compute_percent=10), "both are on the GPU"
    assert not fits(bench, memory_mib=500, compute_percent=10), "1,000 beyond, and 3,500 to change"
    assert not fits(bench, memory_mib=1, compute_percent=10)
    roomy = make_bench(swap_mib=4501)
    roomy.granted(memory_mib=3500, compute_percent=10)
    roomy.granted(memory_mib=3500, compute_percent=10)
    assert fits(roomy, memory_mib=501, compute_percent=10)


def test_host_memory_is_shared_out_among_a_nodes_gpus() -> None:
    bench = make_bench(gpus=2, swap_mib=2000)
    assert bench.pool.promisable_mib(bench.pool.gpus[KEY]) == MIB + 1000


def test_the_largest_can_always_be_brought_in_beside_all_contexts() -> None:
    bench = make_bench(factor=3.0)
    bench.granted(memory_mib=6000, compute_percent=10)  # 1,500 are left beside it, with its context
    bench.granted(memory_mib=6000, compute_percent=10)  # 1,000
    assert fits(bench, memory_mib=100, compute_percent=1)
    assert fits(bench, memory_mib=100, compute_percent=1)
    assert not fits(bench, memory_mib=100, compute_percent=1), "no room for one more context"
    assert not fits(bench, memory_mib=7000, compute_percent=1), "nor for a larger one"


def test_what_is_reserved_is_counted_whole() -> None:
    bench = make_bench()
    bench.granted(memory_mib=4000, compute_percent=10)
    with pytest.raises(Impossible):
        bench.reserve("large", memory_mib=3500, compute_percent=10)
    bench.reserve("held", memory_mib=2500, compute_percent=10)
    assert not fits(bench, memory_mib=5000, compute_percent=10), "it would have to fit beside"
    assert fits(bench, memory_mib=4000, compute_percent=10)


def test_who_draws_on_a_reservation_has_it_at_once() -> None:
    bench = make_bench()
    bench.reserve(
        "own", memory_mib=3000, compute_percent=20, owner_kind=OwnerKind.PROJECT, owner="vision"
    )
    bench.granted(memory_mib=3500, compute_percent=10)
    bench.granted(memory_mib=3500, compute_percent=10)
    drawn = bench.granted(memory_mib=3000, compute_percent=20, project="vision").grant
    assert drawn.reservation == "own"
    assert not fits(bench, memory_mib=5000, compute_percent=10), "it would have to fit beside"


def test_what_is_resumed_comes_back_only_beside_all_that_is_reserved() -> None:
    bench = make_bench()
    granted = bench.granted(memory_mib=6000, compute_percent=10)
    grant = granted.grant
    bench.pool.lifecycle.session_started(granted.session.id, 7, "shm")
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    is_out = ReportedSuspension(grant.id, suspended=True, staying_mib=(0,))
    bench.pool.lifecycle.suspension("a", is_out)
    own = bench.reserve("own", memory_mib=3500, compute_percent=10)
    assert bench.pool.lifecycle.resume(grant.id).suspends == [], "both could not be there at once"
    decisions = bench.pool.reserving.end_reservation(own.id, "over")
    assert [order.resume for order in decisions.suspends] == [True]


def test_one_whose_context_is_off_comes_back_where_the_largest_fits_beside_that() -> None:
    """As where the factor was raised while it was out."""
    bench = make_bench()
    grant = bench.granted(memory_mib=1000, compute_percent=10).grant
    bench.pool.lifecycle.session_started(bench.pool.sessions_of(grant.id)[0].id, 7, "shm")
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    off = SuspendedContexts(ContextPlace.OFF, mib=(4,))
    is_out = ReportedSuspension(grant.id, suspended=True, staying_mib=(0,), contexts=off)
    bench.pool.lifecycle.suspension("a", is_out)
    largest = MIB - 2 * CONTEXT - 4
    bench.granted(memory_mib=largest, compute_percent=10)
    small = bench.granted(memory_mib=1000, compute_percent=10).grant
    assert bench.pool.lifecycle.resume(grant.id).suspends == [], "the largest could not come in"
    decisions = bench.pool.lifecycle.session_ended("", small.id, GONE)
    assert [order.resume for order in decisions.suspends] == [True]


def test_sessions_that_run_at_once_are_counted_whole() -> None:
    bench = make_bench()
    shared = replace(bench.pool.nodes["a"], concurrent=True)
    bench.pool.membership.sharing(shared)
    one = {"sharing": Sharing.CONCURRENT, "compute_percent": 20, "project": "vision"}
    assert fits(bench, memory_mib=4000, **one)
    assert not fits(bench, memory_mib=4000, **one)


def test_a_grant_of_more_vgpus_than_the_arbiter_is_told_of_is_counted_whole() -> None:
    bench = make_bench(gpus=MOST_MOVED + 1)
    wide = {"count": MOST_MOVED + 1, "memory_mib": 4000, "compute_percent": 1}
    assert fits(bench, **wide)
    assert not fits(bench, **wide), "both would have to be there at once"
    narrow = make_bench(gpus=MOST_MOVED)
    assert all(fits(narrow, **{**wide, "count": MOST_MOVED}) for _ in range(2))


@pytest.mark.parametrize("seed", range(10))
def test_any_order_of_bookings_leaves_exact_sums_and_room_for_each(seed: int) -> None:
    """Whatever comes and goes: each that can be moved fits in beside what never moves."""
    choose = random.Random(seed)
    bench = make_bench(factor=2.5, gpus=2, swap_mib=30_000)
    live: list[Grant] = []
    for _ in range(300):
        if live and choose.random() < 0.4:
            grant = live.pop(choose.randrange(len(live)))
            bench.pool.lifecycle.release(grant.id, GONE)
        else:
            answer = bench.ask(
                memory_mib=choose.randint(1, 7000),
                compute_percent=choose.randint(1, 20),
                wait_seconds=0,
            )
            if isinstance(answer, Granted):
                live.append(answer.grant)
        for gpu in bench.pool.gpus.values():
            here = [v for g in live for key, v in g.placed() if key == gpu.key]
            usage = bench.pool.usage(gpu.key)
            assert usage.memory_mib == sum(v.memory_mib + v.overhead_mib for v in here)
            assert usage.memory_mib <= bench.pool.promisable_mib(gpu)
            staying = sum(v.overhead_mib for v in here)
            largest = max((v.memory_mib for v in here), default=0)
            assert staying + largest <= MIB
            assert usage.memory_mib <= MIB or usage.memory_mib - MIB + largest <= 15_000


def test_each_gpu_has_a_factor_of_its_own_and_those_beyond_one_share_the_host_memory() -> None:
    bench = PoolBench(node_timeout_seconds=1e9, memory_oversubscription=3.0)
    node = Node("a", "10.0.0.1", 9960, "1", 4, swap_mib=3 * MIB)
    node.memory_oversubscription = 1.5
    factors = {"a-gpu0": 1.0, "a-gpu1": 2.0, "a-gpu2": 4.0, "a-gpu3": 0.0}
    cards = [
        Gpu("a", uuid, "Model", MIB, memory_oversubscription=factor)
        for uuid, factor in factors.items()
    ]
    bench.pool.membership.register(node, cards, [])
    limits = {key.uuid: bench.pool.promisable_mib(gpu) for key, gpu in bench.pool.gpus.items()}
    assert limits == {
        "a-gpu0": MIB,
        "a-gpu1": 2 * MIB,
        "a-gpu2": 2 * MIB,  # a third of the host memory, and no more
        "a-gpu3": MIB + MIB // 2,  # as its node says
    }
    again = [Gpu("a", card.uuid, "Model", MIB, memory_oversubscription=1.0) for card in cards]
    bench.pool.membership.register(node, again, [])
    assert {bench.pool.promisable_mib(gpu) for gpu in bench.pool.gpus.values()} == {MIB}


def test_a_factor_of_a_gpu_that_makes_no_sense_has_it_promised_once() -> None:
    for nonsense in (0.5, 1e9, float("nan"), float("inf"), -1.0):
        said = rpc.Gpu(uuid="GPU-0", memory_oversubscription=nonsense)
        assert gpu_of("a", said).memory_oversubscription == 1.0
    assert gpu_of("a", rpc.Gpu(uuid="GPU-0")).memory_oversubscription == 0.0, "an older server"


def test_a_node_that_cannot_move_memory_has_each_promised_once() -> None:
    able = rpc.Inventory(moves_memory=True, memory_oversubscription=2.0)
    assert factor_of(able) == 2.0
    assert factor_of(rpc.Inventory(moves_memory=True)) == 0.0
    assert factor_of(rpc.Inventory(memory_oversubscription=2.0)) == 1.0, "an older server"
    for nonsense in (0.5, 1e9, float("nan"), float("inf"), -1.0):
        said = rpc.Inventory(moves_memory=True, memory_oversubscription=nonsense)
        assert factor_of(said) == 1.0
