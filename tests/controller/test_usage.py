# SPDX-License-Identifier: Apache-2.0
"""What projects used, without I/O."""

from __future__ import annotations

from typing import Any

import pytest
from ends import DONE
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted
from sluice.controller.pool.usage_records import UsageRecord


def total(records: list[UsageRecord]) -> dict[str, tuple[float, float, float]]:
    newest = {(record.project, record.hour): record for record in records}
    sums: dict[str, tuple[float, float, float]] = {}
    for record in newest.values():
        before = sums.get(record.project, (0.0, 0.0, 0.0))
        sums[record.project] = (
            before[0] + record.vgpu_seconds,
            before[1] + record.memory_mib_seconds,
            before[2] + record.compute_percent_seconds,
        )
    return sums


def usage_changes(bench: PoolBench) -> list[UsageRecord]:
    return [c for c in bench.pool.take_changes() if isinstance(c, UsageRecord)]


def test_usage_is_what_was_held_times_how_long(bench: PoolBench) -> None:
    bench.node("a", 8000, context_overhead_mib=100)
    grant = bench.granted(memory_mib=1000, compute_percent=30, project="p").grant
    bench.clock.seconds += 10
    assert total(bench.pool.used_up_to_now())["p"] == (10, 10_000, 300)
    bench.pool.lifecycle.release(grant.id, DONE)
    bench.clock.seconds += 50
    assert total(usage_changes(bench))["p"] == (10, 10_000, 300)
    assert total(bench.pool.used_up_to_now())["p"] == (10, 10_000, 300)


def test_hours_are_closed_as_they_end(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.granted(memory_mib=1, compute_percent=1)
    start = bench.clock.wall()
    records: list[UsageRecord] = usage_changes(bench)
    for _ in range(3 * 60):
        bench.clock.seconds += 60
        bench.pool.membership.seen("a")
        bench.pool.expire()
        records += usage_changes(bench)
    records += bench.pool.used_up_to_now()
    hours = {(r.project, r.hour): r for r in records}
    assert sum(r.vgpu_seconds for r in hours.values()) == 3 * 3600
    assert all(r.vgpu_seconds <= 3600 for r in hours.values())
    assert len(hours) == 4
    assert min(r.hour for r in hours.values()) == int(start // 3600)


def test_a_crash_loses_and_doubles_nothing(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted(memory_mib=10, compute_percent=1, project="p").grant
    bench.clock.seconds += 100
    stored = usage_changes(bench)  # of the beginning only: the crash comes before the hour's end
    after = bench.restarted(usage=[r for r in stored if r.project == "p"])
    after.clock.seconds += 107  # this clock begins where the other did
    assert total(after.pool.used_up_to_now())["p"] == (107, 1070, 107)
    after.pool.lifecycle.release(grant.id, DONE)
    after.clock.seconds += 50
    assert total(usage_changes(after))["p"] == (107, 1070, 107)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("grant"), st.sampled_from(["p", "q"])),
            st.tuples(st.just("end"), st.integers(0, 9)),
            st.tuples(st.just("wait"), st.integers(0, 5000)),
            st.tuples(st.just("wall"), st.integers(-7000, 7000)),
        ),
        max_size=30,
    )
)
def test_sums_hold_whatever_the_wall_clock_does(steps: list[tuple[str, Any]]) -> None:
    bench = PoolBench(node_timeout_seconds=1e9)
    jump = 0.0
    wall = bench.clock.wall
    bench.clock.wall = lambda: wall() + jump  # type: ignore[method-assign]
    bench.node("a", 1000, vgpu_count=64)
    live: list[tuple[str, str]] = []
    expected = {"p": 0.0, "q": 0.0}
    records: list[UsageRecord] = []
    for what, value in steps:
        if what == "grant":
            answer = bench.ask(memory_mib=1, compute_percent=1, project=value)
            if isinstance(answer, Granted):
                live.append((value, answer.grant.id))
        elif what == "end" and live:
            bench.pool.lifecycle.release(live.pop(value % len(live))[1], DONE)
        elif what == "wait":
            bench.clock.seconds += value
            for project, _ in live:
                expected[project] += value
        elif what == "wall":
            jump += value
        bench.pool.expire()
        records += usage_changes(bench)
    records += bench.pool.used_up_to_now()
    sums = total(records)
    for project, seconds in expected.items():
        assert sums.get(project, (0.0,))[0] == pytest.approx(seconds, abs=0.01)
