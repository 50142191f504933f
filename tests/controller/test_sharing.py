# SPDX-License-Identifier: Apache-2.0
"""What may be on a GPU beside what, and where reserved shares of its time are promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from ends import DONE
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted, Refused
from sluice.controller.pool.impossible import Impossible
from sluice.controller.pool.model import (
    Gpu,
    GpuKey,
    Node,
    NodeState,
    Quota,
    ReservationState,
    ShareKeeping,
    Sharing,
)
from sluice.controller.pool.queue.preemption import freed_by
from sluice.protocol.cuda_status import CudaStatus
from sluice.protocol.frames import MAX_CONCURRENT_SESSIONS

GPU = GpuKey("a", "a-gpu0")
AT_ONCE = {"sharing": Sharing.CONCURRENT, "memory_mib": 100}
IN_TURNS = {"memory_mib": 100, "compute_percent": 10}


def join(bench: PoolBench, name: str = "a", gpus: int = 1, **node: object) -> None:
    """A node whose sessions may run at once, unless `node` says otherwise."""
    made = Node(name, "10.0.0.1", 9960, "1", 4, concurrent=True)
    for field, value in node.items():
        setattr(made, field, value)
    cards = [Gpu(name, f"{name}-gpu{n}", "Model", 8000) for n in range(gpus)]
    bench.pool.membership.register(made, cards, [])


@pytest.mark.parametrize(
    ("pool", "node", "asked", "kept"),
    [
        ("auto", "turns", "concurrent", "concurrent"),
        ("concurrent", "turns", "auto", "concurrent"),
        ("auto", "concurrent", "auto", "concurrent"),
        ("turns", "concurrent", "auto", "turns"),
        ("concurrent", "concurrent", "turns", "turns"),
        ("concurrent", "turns", "capped", "capped"),
        ("capped", "concurrent", "auto", "capped"),
        ("capped", "turns", "concurrent", "concurrent"),
    ],
)
def test_the_first_that_says_anything_chooses(
    make_bench: Callable[..., PoolBench], pool: str, node: str, asked: str, kept: str
) -> None:
    bench = make_bench(sharing=Sharing(pool))
    join(bench, sharing=Sharing(node))
    [vgpu] = bench.granted(sharing=Sharing(asked)).grant.vgpus
    assert vgpu.sharing is Sharing(kept)


def test_what_only_others_want_gives_way_where_it_cannot_be(
    make_bench: Callable[..., PoolBench],
) -> None:
    bench = make_bench(sharing=Sharing.CONCURRENT)
    join(bench, concurrent=False)
    assert bench.granted(**IN_TURNS).grant.vgpus[0].sharing is Sharing.AUTO
    refused = bench.refused(**AT_ONCE, wait_seconds=-1)
    assert refused.status is CudaStatus.NOT_SUPPORTED
    assert "sluice node show" in refused.message
    join(bench, "b")
    small = bench.granted(memory_mib=100, compute_percent=7, local_only=True, node="b")
    assert small.grant.vgpus[0].sharing is Sharing.AUTO, "MPS gives 8 % at least"


def test_a_gpu_has_one_project_at_once_or_whoever_takes_turns(bench: PoolBench) -> None:
    join(bench)
    first = bench.granted(**AT_ONCE, compute_percent=20, project="a").grant
    bench.granted(**AT_ONCE, compute_percent=20, project="a")
    assert bench.pool.usage(GPU).occupancy.project == "a"
    for other in ({**AT_ONCE, "compute_percent": 20, "project": "b"}, IN_TURNS):
        assert bench.refused(**other).status is CudaStatus.DEVICE_UNAVAILABLE
    waiting = bench.ask(**IN_TURNS, wait_seconds=-1)
    # who waits for the GPU to be free of them is not passed for ever by more of them
    assert isinstance(bench.ask(**AT_ONCE, compute_percent=20, project="a"), Refused)
    bench.pool.lifecycle.release(first.id, DONE)
    [second] = [g for g in bench.pool.grants.values() if g.ended is None]
    answers = bench.pool.lifecycle.release(second.id, DONE).answers
    assert isinstance(answers[str(waiting)], Granted)
    assert bench.pool.usage(GPU).occupancy.project == ""
    assert isinstance(bench.ask(**AT_ONCE, compute_percent=20, project="a"), Refused)


def test_one_is_spread_where_others_are_shared_otherwise(bench: PoolBench) -> None:
    join(bench, gpus=2)
    bench.granted(**AT_ONCE, compute_percent=20, project="a")
    bench.granted(**IN_TURNS)
    [vgpu] = bench.granted(**AT_ONCE, compute_percent=20, project="a").grant.vgpus
    [other] = bench.granted(**IN_TURNS).grant.vgpus
    assert vgpu.gpu_uuid != other.gpu_uuid
    # two on cards of their own would have to be on both
    assert isinstance(bench.ask(**AT_ONCE, compute_percent=20, project="a", count=2), Refused)
    assert isinstance(
        bench.ask(**AT_ONCE, compute_percent=20, project="a", count=2, same_gpu=True), Granted
    )


def test_mps_takes_so_many_processes(bench: PoolBench) -> None:
    join(bench)
    wanted = {**AT_ONCE, "compute_percent": 8, "project": "a"}
    bench.granted(**wanted, job="j", job_domain="d", job_processes=MAX_CONCURRENT_SESSIONS - 1)
    bench.granted(**wanted)
    assert bench.refused(**wanted).status is CudaStatus.DEVICE_UNAVAILABLE


@pytest.mark.parametrize("percent", [1, 7])
def test_less_than_mps_gives_is_refused(bench: PoolBench, percent: int) -> None:
    join(bench)
    refused = bench.refused(**AT_ONCE, compute_percent=percent)
    assert refused.status is CudaStatus.INVALID_VALUE
    assert "8 % at least" in refused.message
    with pytest.raises(Impossible, match="8 % at least"):
        bench.reserve(sharing=Sharing.CONCURRENT, compute_percent=percent)


def test_its_share_is_fixed_while_it_runs(bench: PoolBench) -> None:
    join(bench)
    granted = bench.granted(**AT_ONCE, compute_percent=20)
    with pytest.raises(Impossible, match="fixed when a session begins"):
        bench.pool.lifecycle.begin_resize(granted.grant.id, 0, 40)
    with pytest.raises(Impossible, match="8 % at least"):
        bench.pool.lifecycle.begin_resize(granted.grant.id, 0, 4)


def test_victims_leave_the_gpu_to_the_other_kind(bench: PoolBench) -> None:
    join(bench)
    bench.pool.limits.set_quota(Quota("high", may_preempt=True))
    low = [bench.granted(**IN_TURNS, project="low").grant for _ in range(2)]
    assert all(freed_by(grant) for grant in low)
    wanted = {**AT_ONCE, "compute_percent": 20, "priority": 5, "project": "high"}
    waiting = bench.ask(**wanted, preempt=True, wait_seconds=-1)
    assert all(grant.ending for grant in low), "both, though one would do for its size"
    # nobody else comes in meanwhile, of their kind or of another project
    assert isinstance(bench.ask(**IN_TURNS), Refused)
    bench.pool.lifecycle.release(low[0].id, DONE)
    answers = bench.pool.lifecycle.release(low[1].id, DONE).answers
    assert isinstance(answers[str(waiting)], Granted)


def test_what_is_adopted_counts_as_it_is(bench: PoolBench) -> None:
    join(bench)
    bench.granted(**AT_ONCE, compute_percent=20, project="a")
    after = bench.restarted()
    assert after.pool.usage(GPU).occupancy.project == "a"


def test_who_draws_on_a_reservation_shares_as_it_does(bench: PoolBench) -> None:
    join(bench)
    reservation = bench.reserve(sharing=Sharing.CONCURRENT, compute_percent=50)
    assert [slot.sharing for slot in reservation.slots] == [Sharing.CONCURRENT]
    assert isinstance(bench.ask(**IN_TURNS), Refused), "the GPU is its project's"
    drawn = bench.granted(memory_mib=100, compute_percent=20, project="vision").grant
    assert drawn.reservation
    assert drawn.vgpus[0].sharing is Sharing.CONCURRENT
    turns = {"memory_mib": 100, "compute_percent": 20, "project": "vision"}
    assert isinstance(bench.ask(**turns, sharing=Sharing.TURNS), Refused)
    with pytest.raises(Impossible, match="8 % at least"):
        bench.pool.reserving.resize_reservation("res", 1, 4000, 5)
    again = bench.restarted()
    assert [s.sharing for s in again.pool.reservations["res"].slots] == [Sharing.CONCURRENT]


def test_a_reservation_in_turns_is_drawn_on_in_turns(bench: PoolBench) -> None:
    join(bench, gpus=1)
    bench.reserve()
    wanted = {"memory_mib": 100, "compute_percent": 20, "project": "vision"}
    assert bench.granted(**wanted).grant.reservation
    assert isinstance(bench.ask(**wanted, sharing=Sharing.CONCURRENT), Refused)


# reserved shares


@pytest.mark.parametrize(
    ("shares", "why"),
    [
        (ShareKeeping.OFF, "enable_computation_throttle is false"),
        (ShareKeeping.UNKNOWN, "older than shares"),
    ],
)
def test_a_share_is_reserved_only_where_it_is_kept(
    bench: PoolBench, shares: ShareKeeping, why: str
) -> None:
    join(bench, shares=shares)
    with pytest.raises(Impossible, match=why):
        bench.reserve(wait=True)
    assert bench.granted(**IN_TURNS), "nothing is promised to who takes what there is"
    with pytest.raises(Impossible, match="no room"):
        bench.reserve("at once", sharing=Sharing.CONCURRENT)  # another's are on it
    join(bench, "b")
    assert [slot.node for slot in bench.reserve("other").slots] == ["b"]
    join(bench, "c", shares=shares)
    whole = bench.reserve("whole", compute_percent=100, node="c")
    assert whole.state is ReservationState.HELD, "who has all of it has his share"


def test_a_share_waits_for_an_arbiter_that_is_away(bench: PoolBench) -> None:
    join(bench, shares=ShareKeeping.AWAY)
    with pytest.raises(Impossible, match="while its arbiter is away"):
        bench.reserve()
    waiting = bench.reserve("later", wait=True)
    assert waiting.state is ReservationState.WAITING
    node = bench.pool.nodes["a"]
    bench.pool.membership.sharing(replace(node, shares=ShareKeeping.KEPT))
    assert waiting.state is ReservationState.HELD
    # what is held stays, whatever becomes of the arbiter
    bench.pool.membership.sharing(replace(node, shares=ShareKeeping.AWAY))
    assert waiting.state is ReservationState.HELD
    assert bench.pool.nodes["a"].state is NodeState.UP
