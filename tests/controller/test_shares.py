# SPDX-License-Identifier: Apache-2.0
"""Reservations, quotas, the two pools and usage, without I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_bench import PoolBench

from sluice.controller.pool.adoption import ReportedSession
from sluice.controller.pool.impossible import Impossible, Unknown
from sluice.controller.pool.model import (
    CudaStatus,
    Event,
    Gpu,
    GpuKey,
    GpuMode,
    Granted,
    GrantState,
    Node,
    OwnerKind,
    Quota,
    Refused,
    Reservation,
    ReservationState,
    UsageRecord,
)
from sluice.controller.pool.pool import Snapshot

GPU = GpuKey("a", "a-gpu0")


def reserve(
    bench: PoolBench, name: str = "res", *, wait: bool = False, **fields: Any
) -> Reservation:
    values: dict[str, Any] = {
        "owner_kind": OwnerKind.PROJECT,
        "owner": "vision",
        "project": "vision",
        "count": 1,
        "memory_mib": 4000,
        "compute_percent": 50,
        "priority": 0,
        "node": "",
        "created": bench.clock.wall(),
        **fields,
    }
    reservation = Reservation(name, **values)
    bench.pool.operations.reserve(reservation, wait=wait)
    return reservation


# reservations


def test_a_reservation_holds_its_room_whether_it_is_used_or_not(bench: PoolBench) -> None:
    bench.node("a", 8000, context_overhead_mib=100)
    reservation = reserve(bench)
    assert reservation.state is ReservationState.HELD
    assert bench.refused(compute_percent=60).status is CudaStatus.DEVICE_UNAVAILABLE
    assert bench.refused(memory_mib=4000, compute_percent=1).status is not None
    own = bench.granted(project="vision").grant
    assert (own.reservation, own.vgpus[0].memory_mib, own.vgpus[0].compute_percent) == (
        "res",
        4000,
        50,
    )
    assert bench.pool.usage(GPU).memory_mib == 4100
    assert bench.pool.kept(GPU).memory_mib == 0
    bench.pool.release(own.id, "done")
    assert (bench.pool.usage(GPU).memory_mib, bench.pool.kept(GPU).memory_mib) == (0, 4100)


def test_an_owner_draws_on_it_first_and_then_on_the_pool(bench: PoolBench) -> None:
    bench.node("a", 8000)
    reserve(bench)
    wish = {"memory_mib": 2000, "compute_percent": 25, "project": "vision"}
    drawn = [bench.granted(**wish).grant.reservation for _ in range(4)]
    assert drawn == ["res", "res", "", ""]
    assert bench.pool.usage(GPU).memory_mib == 8000


@pytest.mark.parametrize(
    ("owner", "identity"),
    [
        ((OwnerKind.VM, "uuid-1"), {"domain_uuid": "uuid-1"}),
        ((OwnerKind.VM, "web"), {"domain_name": "web"}),
        ((OwnerKind.LABEL, "team=a"), {"owner_label": "team=a"}),
    ],
)
def test_who_owns_it(
    bench: PoolBench, owner: tuple[OwnerKind, str], identity: dict[str, str]
) -> None:
    bench.node("a", 8000)
    reserve(bench, owner_kind=owner[0], owner=owner[1], compute_percent=100)
    assert isinstance(bench.ask(), Refused)
    assert bench.granted(**identity).grant.reservation == "res"


def test_a_reservation_waits_its_turn_or_is_refused(bench: PoolBench) -> None:
    bench.node("a", 8000)
    running = bench.granted(compute_percent=80).grant
    with pytest.raises(Impossible, match="no room for it now"):
        reserve(bench, "now")
    assert "now" not in bench.pool.reservations
    with pytest.raises(Impossible, match="if it were empty"):
        reserve(bench, "never", memory_mib=9000, wait=True)
    waiting = reserve(bench, "later", wait=True)
    assert waiting.state is ReservationState.WAITING
    assert bench.ask(request_id="x", compute_percent=20, wait_seconds=-1) == "x"
    answers = bench.pool.release(running.id, "done").answers
    assert waiting.state is ReservationState.HELD
    assert isinstance(answers["x"], Granted)


def test_more_vgpus_than_a_node_has_gpus_are_spread_and_held_as_a_whole(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.node("b", 8000)
    reservation = reserve(bench, count=4)
    assert sorted(slot.node for slot in reservation.slots) == ["a", "a", "b", "b"]
    with pytest.raises(Impossible):
        reserve(bench, "more")


def test_resizing_a_reservation_in_use(bench: PoolBench) -> None:
    bench.node("a", 8000)
    reservation = reserve(bench)
    operations = bench.pool.operations
    own = bench.granted(memory_mib=3000, compute_percent=40, project="vision").grant
    operations.resize_reservation("res", 1, 6000, 80)
    assert bench.refused(compute_percent=25).status is CudaStatus.DEVICE_UNAVAILABLE
    with pytest.raises(Impossible, match="use 3000 MiB and 40 %"):
        operations.resize_reservation("res", 1, 2000, 80)
    with pytest.raises(Impossible, match="2000 MiB and 20 % free"):
        operations.resize_reservation("res", 1, 9000, 80)
    assert reservation.slots[0].memory_mib == 6000
    operations.resize_reservation("res", 1, 3000, 40)
    assert isinstance(bench.ask(compute_percent=60, memory_mib=5000), Granted)
    bench.pool.release(own.id, "done")
    with pytest.raises(Impossible, match="no room for 1 more"):
        operations.resize_reservation("res", 2, 0, 0)
    operations.end_reservation("res", "deleted by the operator")
    with pytest.raises(Impossible, match="has ended"):
        operations.resize_reservation("res", 2, 0, 0)
    with pytest.raises(Unknown):
        operations.end_reservation("none", "")


def test_what_draws_on_a_reservation_that_ends_goes_on(bench: PoolBench) -> None:
    bench.node("a", 8000)
    reserve(bench)
    grant = bench.granted(project="vision").grant
    bench.pool.operations.end_reservation("res", "deleted")
    assert (grant.state, grant.reservation) == (GrantState.LIVE, "")
    assert bench.pool.usage(GPU).memory_mib == 4000
    bench.pool.release(grant.id, "done")
    assert bench.pool.usage(GPU).memory_mib == 0


def restarted(bench: PoolBench, make_bench: Callable[..., PoolBench], **options: Any) -> PoolBench:
    pool = bench.pool
    pool.take_changes()
    snapshot = Snapshot(
        list(pool.nodes.values()),
        list(pool.gpus.values()),
        list(pool.grants.values()),
        list(pool.sessions.values()),
        reservations=list(pool.reservations.values()),
        switches=list(pool.switches.values()),
        quotas=list(pool.quotas.limits.values()),
        usage=options.pop("usage", []),
    )
    return make_bench(snapshot=snapshot, **options)


def test_reservations_survive_a_restart(
    bench: PoolBench, make_bench: Callable[..., PoolBench]
) -> None:
    bench.node("a", 8000)
    reserve(bench)
    bench.granted(memory_mib=1000, compute_percent=10, project="vision")
    reserve(bench, "later", compute_percent=100, wait=True)
    after = restarted(bench, make_bench)
    assert after.pool.kept(GPU).memory_mib == 3000
    assert after.pool.usage(GPU).memory_mib == 1000
    assert after.pool.queue.position("later") == 1


# quotas


@pytest.mark.parametrize(
    ("quota", "wish", "name"),
    [
        (Quota("p", vgpus=2), {"vgpu_count": 1}, "vgpus"),
        (Quota("p", memory_mib=2500), {"memory_mib": 1000}, "memory_mib"),
        (Quota("p", compute_percent=45), {"compute_percent": 20}, "compute_percent"),
    ],
)
def test_a_project_holds_no_more_than_its_quota(
    make_bench: Callable[..., PoolBench], quota: Quota, wish: dict[str, int], name: str
) -> None:
    bench = make_bench(over_quota_waits=False)
    bench.node("a", 8000, 8000)
    bench.pool.operations.set_quota(quota)
    small = {"memory_mib": 10, "compute_percent": 10, **wish, "project": "p"}
    held = [bench.granted(**small).grant for _ in range(2)]
    refusal = bench.refused(**small, wait_seconds=-1)
    assert refusal.status is CudaStatus.NOT_PERMITTED
    assert f"its quota {name}" in refusal.message
    assert isinstance(bench.ask(**{**small, "project": "q"}), Granted)
    bench.pool.release(held[0].id, "done")
    assert isinstance(bench.ask(**small), Granted)


def test_over_quota_waits_and_holds_nobody_up(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.pool.operations.set_quota(Quota("p", vgpus=1))
    first = bench.granted(project="p", compute_percent=10).grant
    assert bench.ask(request_id="x", project="p", compute_percent=10, wait_seconds=-1) == "x"
    entry = bench.pool.queue.get("x")
    assert entry
    assert "project p may hold 1 vGPUs" in bench.pool.waiting(entry.request).line
    assert isinstance(bench.ask(project="q", wait_seconds=-1), Granted)
    answers = bench.pool.release(first.id, "done").answers
    assert isinstance(answers["x"], Granted)


def test_what_alone_exceeds_a_quota_is_refused_even_to_those_who_would_wait(
    bench: PoolBench,
) -> None:
    bench.node("a", 8000, 8000)
    bench.pool.operations.set_quota(Quota("default", vgpus=1))
    assert bench.refused(vgpu_count=2, wait_seconds=-1).status is CudaStatus.NOT_PERMITTED
    bench.pool.operations.remove_quota("default")
    assert isinstance(bench.ask(vgpu_count=2), Granted)
    with pytest.raises(Unknown):
        bench.pool.operations.remove_quota("default")


def test_a_reservation_is_counted_once_with_what_draws_on_it(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.pool.operations.set_quota(Quota("vision", vgpus=1))
    reserve(bench)
    bench.granted(project="vision", compute_percent=50)
    assert bench.pool.quotas.held("vision").vgpus == 1
    with pytest.raises(Impossible, match="quota vgpus"):
        reserve(bench, "second", count=2)


def test_of_ended_reservations_the_newest_are_remembered(
    make_bench: Callable[..., PoolBench],
) -> None:
    bench = make_bench(ended_kept=2)
    bench.node("a", 8000)
    for number in range(5):
        reserve(bench, f"r{number}")
        bench.clock.seconds += 1
        bench.pool.operations.end_reservation(f"r{number}", "deleted")
    held = reserve(bench, "held")
    assert sorted(bench.pool.reservations) == [held.id, "r3", "r4"]


# resizing


def test_a_grant_in_use_is_resized_in_two_steps(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted(memory_mib=2000, compute_percent=30).grant
    operations = bench.pool.operations
    order = operations.begin_resize(grant.id, 0, 60)
    assert order
    assert order.vgpus[0].compute_percent == 60
    assert bench.pool.usage(GPU).compute_percent == 60, "it is booked before it is given"
    with pytest.raises(Impossible, match="already"):
        operations.begin_resize(grant.id, 0, 70)
    operations.finish_resize(grant.id, "the worker cannot")
    assert bench.pool.usage(GPU).compute_percent == 30
    operations.begin_resize(grant.id, 0, 10)
    assert bench.pool.usage(GPU).compute_percent == 30, "it is given back after it is taken"
    operations.finish_resize(grant.id, "")
    assert bench.pool.usage(GPU).compute_percent == 10
    with pytest.raises(Impossible, match="6000 MiB and 90 % free"):
        operations.begin_resize(grant.id, 9000, 0)
    bench.pool.release(grant.id, "done")
    with pytest.raises(Impossible, match="has ended"):
        operations.begin_resize(grant.id, 1, 0)


# the two pools


def test_a_gpu_goes_native_when_it_is_empty_and_comes_back(bench: PoolBench) -> None:
    bench.node("a", 8000, 8000)
    pool, operations = bench.pool, bench.pool.operations
    grant = bench.granted(compute_percent=100).grant
    key = GpuKey("a", grant.vgpus[0].gpu_uuid)
    operations.switch_gpu(key, GpuMode.NATIVE)
    assert pool.mode(key) is GpuMode.DRAINING
    assert "waits for 1 grant(s)" in pool.switches[key].reason
    other = bench.granted(compute_percent=100).grant
    assert other.vgpus[0].gpu_uuid != key.uuid
    assert isinstance(bench.ask(compute_percent=1), Refused)
    pool.release(grant.id, "done")
    assert pool.mode(key) is GpuMode.NATIVE
    with pytest.raises(Impossible, match="take it back first"):
        operations.switch_gpu(key, GpuMode.DRAINED)
    with pytest.raises(Impossible, match="only a GPU that is draining"):
        operations.cancel_switch(key)
    gone = [gpu for gpu in pool.gpus.values() if gpu.key != key]
    pool.register(replace(pool.nodes["a"]), gone, [])
    assert key in pool.gpus, "its VM has it: that its node does not see it is no news"
    operations.switch_gpu(key, GpuMode.POOLED)
    assert pool.mode(key) is GpuMode.RETURNING
    pool.register(replace(pool.nodes["a"]), list(pool.gpus.values()), [])
    assert pool.mode(key) is GpuMode.POOLED
    kinds = [c.kind for c in pool.take_changes() if isinstance(c, Event) and c.subject == str(key)]
    assert kinds == ["gpu.joined", "gpu.draining", "gpu.native", "gpu.returning", "gpu.pooled"]


def test_a_switch_can_preempt_and_be_cancelled(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted().grant
    [order] = bench.pool.operations.switch_gpu(GPU, GpuMode.NATIVE, preempt=True).ends
    assert order.grant_id == grant.id
    assert bench.ask(request_id="x", wait_seconds=-1) == "x"
    answers = bench.pool.operations.cancel_switch(GPU).answers
    assert isinstance(answers["x"], Granted)
    with pytest.raises(Unknown):
        bench.pool.operations.switch_gpu(GpuKey("a", "none"), GpuMode.NATIVE)


def test_a_reserved_gpu_is_not_taken_from_its_owner(bench: PoolBench) -> None:
    bench.node("a", 8000)
    reserve(bench)
    bench.pool.operations.switch_gpu(GPU, GpuMode.DRAINED)
    assert bench.pool.switches[GPU].reason.endswith("reservation res to be deleted or made smaller")
    bench.pool.operations.end_reservation("res", "deleted")
    assert bench.pool.mode(GPU) is GpuMode.DRAINED
    bench.pool.operations.switch_gpu(GPU, GpuMode.POOLED)
    assert bench.pool.mode(GPU) is GpuMode.POOLED


def test_a_handover_is_waited_for(make_bench: Callable[..., PoolBench]) -> None:
    bench = make_bench(hands_over=True)
    bench.node("a", 8000)
    [handover] = bench.pool.operations.switch_gpu(GPU, GpuMode.NATIVE).handovers
    assert handover.to_native
    assert bench.pool.mode(GPU) is GpuMode.DRAINING
    bench.pool.operations.handed_over(GPU, "its driver does not let go")
    assert "does not let go" in bench.pool.switches[GPU].reason
    bench.pool.operations.handed_over(GPU)
    assert bench.pool.mode(GPU) is GpuMode.NATIVE


def test_an_answer_to_an_older_handover_counts_for_nothing(
    make_bench: Callable[..., PoolBench],
) -> None:
    bench = make_bench(hands_over=True)
    bench.node("a", 8000)
    operations = bench.pool.operations
    [first] = operations.switch_gpu(GPU, GpuMode.NATIVE).handovers
    [back] = operations.cancel_switch(GPU).handovers
    assert back.back
    [second] = operations.switch_gpu(GPU, GpuMode.DRAINED).handovers
    operations.handed_over(GPU, generation=first.generation + 100)
    assert bench.pool.mode(GPU) is GpuMode.DRAINING
    operations.handed_over(GPU, generation=second.generation)
    assert bench.pool.mode(GPU) is GpuMode.DRAINED


def test_a_gpu_at_fault_is_let_go_once_nothing_runs_on_it(
    make_bench: Callable[..., PoolBench],
) -> None:
    bench = make_bench(hands_over=True)
    bench.node("a", 8000)
    running = bench.granted().grant
    [session] = bench.pool.sessions_of(running.id)
    reported = ReportedSession(session, running.vgpus, "", 0)
    gpus = [Gpu("a", "a-gpu0", "Model", 8000, fault="XID 79")]
    node = Node("a", "10.0.0.1", 9960, "1", 4)
    assert bench.pool.register(node, gpus, [reported]).handovers == []
    [order] = bench.pool.release(running.id, "XID 79").handovers
    assert (order.back, order.to_native) == (False, False)
    assert bench.pool.expire().handovers == []
    [again] = bench.node("a", 8000, fault="XID 79", let_go={"a-gpu0"}).handovers
    assert not again.back
    [back] = bench.node("a", 8000, let_go={"a-gpu0"}).handovers
    assert back.back


def test_a_server_that_returns_is_told_again_which_gpus_are_not_its_own(
    make_bench: Callable[..., PoolBench],
) -> None:
    bench = make_bench(hands_over=True)
    bench.node("a", 8000)
    operations = bench.pool.operations
    operations.switch_gpu(GPU, GpuMode.NATIVE)
    [again] = bench.node("a", 8000).handovers
    assert again.to_native
    operations.handed_over(GPU, generation=again.generation)
    assert bench.pool.mode(GPU) is GpuMode.NATIVE
    [restarted] = bench.node("a", 8000).handovers
    assert restarted.to_native
    bench.pool.disconnected("a")
    operations.switch_gpu(GPU, GpuMode.POOLED)
    [returned] = bench.node("a", 8000, let_go={"a-gpu0"}).handovers
    assert returned.back
    operations.handed_over(GPU, generation=returned.generation)
    assert bench.pool.mode(GPU) is GpuMode.POOLED
    assert bench.node("a", 8000).handovers == []


def test_a_drained_node_takes_nothing_new_and_stays_so(
    bench: PoolBench, make_bench: Callable[..., PoolBench]
) -> None:
    bench.node("a", 8000)
    running = bench.granted(compute_percent=10).grant
    bench.pool.operations.drain_node("a", drained=True)
    bench.node("a", 8000)
    assert bench.pool.nodes["a"].drained
    assert running.state is GrantState.ENDED, "it was not reported"
    assert bench.ask(request_id="x", wait_seconds=-1) == "x"
    answers = bench.pool.operations.drain_node("a", drained=False).answers
    assert isinstance(answers["x"], Granted)
    with pytest.raises(Unknown):
        bench.pool.operations.drain_node("none", drained=True)
    bench.pool.operations.drain_node("a", drained=True)
    assert restarted(bench, make_bench).pool.nodes["a"].drained


# usage


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
    bench.pool.release(grant.id, "done")
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
        bench.pool.seen("a")
        bench.pool.expire()
        records += usage_changes(bench)
    records += bench.pool.used_up_to_now()
    hours = {(r.project, r.hour): r for r in records}
    assert sum(r.vgpu_seconds for r in hours.values()) == 3 * 3600
    assert all(r.vgpu_seconds <= 3600 for r in hours.values())
    assert len(hours) == 4
    assert min(r.hour for r in hours.values()) == int(start // 3600)


def test_a_crash_loses_and_doubles_nothing(
    bench: PoolBench, make_bench: Callable[..., PoolBench]
) -> None:
    bench.node("a", 8000)
    grant = bench.granted(memory_mib=10, compute_percent=1, project="p").grant
    bench.clock.seconds += 100
    stored = usage_changes(bench)  # of the beginning only: the crash comes before the hour's end
    after = restarted(bench, make_bench, usage=[r for r in stored if r.project == "p"])
    after.clock.seconds += 107  # this clock begins where the other did
    assert total(after.pool.used_up_to_now())["p"] == (107, 1070, 107)
    after.pool.release(grant.id, "done")
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
            bench.pool.release(live.pop(value % len(live))[1], "done")
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


def test_every_kind_of_event_is_documented() -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "docs" / "control-plane.md").read_text().split("### Kinds of events")[1]
    text = text.split("\n## ")[0]
    documented: set[str] = set()
    family = ""
    for name in re.findall(r"`([a-z_.]+)`", text):
        family = name.split(".")[0] if not name.startswith(".") else family
        documented.add(name if not name.startswith(".") else family + name)
    used: set[str] = set()
    for path in (root / "controller" / "pool").glob("*.py"):
        used |= set(re.findall(r'event\(\s*"([a-z_]+\.[a-z_]+)"', path.read_text()))
    used |= {f"gpu.{mode.value}" for mode in GpuMode} | {"node.away", "node.lost"}
    used |= {"node.drained", "node.undrained"}
    assert used == documented - {"audit.", "token."}
