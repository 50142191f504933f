# SPDX-License-Identifier: Apache-2.0
"""What vGPUs had of their GPUs' time as nodes report it, in the pool and on projects' accounts."""

from __future__ import annotations

import math

from ends import DONE
from pool_bench import PoolBench

from sluice.controller.pool.grants.vgpu_times import VgpuReport
from sluice.controller.pool.pool import Pool
from sluice.controller.pool.usage_records import UsageRecord
from sluice.controller.rpc.messages import vgpu_report_of
from sluice.rpc import pool_pb2 as rpc


def report(grant_id: str, used: float, waited: float | None = 0.0, **more: float) -> VgpuReport:
    return VgpuReport(grant_id, 0, used, waited, share_1s=0.5, share_60s=0.25, **more)


def gpu_seconds(pool: Pool) -> dict[str, tuple[float, float]]:
    return {r.project: (r.gpu_seconds, r.gpu_wait_seconds) for r in pool.used_up_to_now()}


def stored(bench: PoolBench) -> list[tuple[float, float]]:
    changes = bench.pool.take_changes()
    return [(c.gpu_seconds, c.gpu_wait_seconds) for c in changes if isinstance(c, UsageRecord)]


def test_what_a_node_says_is_shown_and_counted_once(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted(project="p").grant
    take = bench.pool.lifecycle.vgpu_times
    assert bench.pool.vgpu_time(grant.id, 0) is None
    take("a", [report(grant.id, 4, 1)])
    take("a", [report(grant.id, 4, 1), report(grant.id, 6, 2)])
    time = bench.pool.vgpu_time(grant.id, 0)
    assert time is not None
    assert (time.used, time.waited, time.share_1s, time.share_60s) == (6, 2, 0.5, 0.25)
    assert gpu_seconds(bench.pool)["p"] == (6, 2)
    take("a", [report(grant.id, 3, 0)])  # a server that began anew without an ended session
    assert (time.used, time.waited) == (6, 2)
    take("a", [report(grant.id, 5, 1)])
    assert (time.used, time.waited) == (8, 3)
    assert gpu_seconds(bench.pool)["p"] == (8, 3)
    bench.pool.lifecycle.release(grant.id, DONE)
    assert stored(bench)[-1] == (8, 3)
    take("a", [report(grant.id, 9, 9)])
    assert bench.pool.vgpu_time(grant.id, 0) is None, "it has ended"
    assert gpu_seconds(bench.pool)["p"] == (8, 3)


def test_what_an_earlier_controller_counted_is_not_counted_again(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted().grant
    bench.pool.lifecycle.vgpu_times("a", [report(grant.id, 100, counted_used=90)])
    time = bench.pool.vgpu_time(grant.id, 0)
    assert time is not None
    assert time.used == 100
    assert gpu_seconds(bench.pool)["default"] == (10, 0)
    again = report(grant.id, 101, counted_used=0)
    bench.pool.lifecycle.vgpu_times("a", [again])
    assert gpu_seconds(bench.pool)["default"] == (11, 0), "this one knows by itself"


def test_a_server_that_does_not_know_yet_how_long_it_waited_counts_nothing_twice(
    bench: PoolBench,
) -> None:
    bench.node("a", 8000)
    grant = bench.granted().grant
    take = bench.pool.lifecycle.vgpu_times
    take("a", [report(grant.id, 1, 30)])
    for waited in (None, None, 31.0):  # a server that was restarted
        take("a", [report(grant.id, 1, waited, counted_waited=29.0)])
    assert gpu_seconds(bench.pool)["default"] == (1, 31)
    other = bench.granted().grant
    for waited in (None, 20.0, 21.0):  # to a controller that was, too
        take("a", [report(other.id, 0, waited, counted_waited=0 if waited is None else 18.0)])
    assert gpu_seconds(bench.pool)["default"] == (1, 31 + 3)
    time = bench.pool.vgpu_time(other.id, 0)
    assert time is not None
    assert time.waited == 21


def test_a_node_speaks_for_its_own_grants_only(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.node("b", 8000)
    grant = bench.granted().grant
    other = "b" if grant.node == "a" else "a"
    bench.pool.lifecycle.vgpu_times(other, [report(grant.id, 1)])
    bench.pool.lifecycle.vgpu_times(grant.node, [report("no such grant", 1)])
    bench.pool.lifecycle.vgpu_times(
        grant.node, [VgpuReport(grant.id, 9, 1, 1, share_1s=1, share_60s=1)]
    )
    assert bench.pool.vgpu_time(grant.id, 0) is None
    assert gpu_seconds(bench.pool)["default"] == (0, 0)


def test_it_is_stored_within_a_minute_and_by_the_hour(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted().grant
    bench.pool.take_changes()
    said = 0.0
    newest: dict[tuple[str, int], UsageRecord] = {}
    for _ in range(150):
        bench.clock.seconds += 50
        said += 10
        bench.pool.membership.seen("a")
        bench.pool.lifecycle.vgpu_times("a", [report(grant.id, said)])
        bench.pool.expire()
        for change in bench.pool.take_changes():
            if isinstance(change, UsageRecord):
                newest[change.project, change.hour] = change
        assert sum(r.gpu_seconds for r in newest.values()) >= said - 20
    newest |= {(r.project, r.hour): r for r in bench.pool.used_up_to_now()}
    assert sum(r.gpu_seconds for r in newest.values()) == said
    assert len(newest) >= 3
    assert all(r.gpu_seconds <= 3600 / 5 + 20 for r in newest.values())
    assert sum(r.vgpu_seconds for r in newest.values()) == 150 * 50


def test_what_comes_hours_after_a_projects_last_record_is_of_its_own_hour(
    bench: PoolBench,
) -> None:
    usage = bench.pool._ledger.usage
    usage.measured("p", 1, 0)
    bench.clock.seconds += 5 * 3600
    usage.measured("p", 2, 0)
    hours = {r.hour: r.gpu_seconds for r in [*usage.cut(), *usage.up_to_now()] if r.project == "p"}
    assert sorted(hours.values()) == [1, 2]


def test_what_is_no_share_is_none() -> None:
    for said, shown in ((math.nan, 0), (-1, 0), (7, 1), (math.inf, 1), (0.5, 0.5)):
        read = vgpu_report_of(rpc.VgpuTime(grant_id="g", share_1s=said, share_60s=said))
        assert (read.share_1s, read.share_60s) == (shown, shown)
