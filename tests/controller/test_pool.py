# SPDX-License-Identifier: Apache-2.0
"""The pool's decisions, without I/O and with a clock that the tests move."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ends import BY_OPERATOR, DONE, GONE
from pool_bench import FakeClock, PoolBench

from sluice.controller.pool.decisions import Granted, Refused
from sluice.controller.pool.model import (
    Event,
    GpuKey,
    GrantState,
    Node,
    NodeState,
    Session,
    SessionState,
    Vgpu,
)
from sluice.controller.pool.pool import NODE_LOST, Pool, ReportedSession, Snapshot
from sluice.controller.rpc.messages import answer_message, vgpus_of
from sluice.controller.store.records import GRANTS
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import EndCause
from sluice.resources.vgpu_request import Sharing
from sluice.rpc import pool_pb2 as rpc

# GPU of 8000 MiB unless said otherwise; each row: vgpu_count of the node, overhead, reserved,
# the request, and the slice that it gets
DEFAULTS = [
    pytest.param(4, 0, 0, {}, (2000, 25), id="a quarter"),
    pytest.param(1, 0, 0, {}, (8000, 100), id="the whole"),
    pytest.param(3, 0, 0, {}, (2666, 33), id="a third, rounded down"),
    pytest.param(64, 0, 0, {}, (125, 1), id="many"),
    pytest.param(4, 500, 0, {}, (1500, 25), id="the context is inside the slice"),
    pytest.param(4, 500, 1000, {}, (1250, 25), id="and so is what warm workers hold"),
    pytest.param(4, 0, 0, {"memory_mib": 1}, (1, 25), id="memory by the MiB"),
    pytest.param(4, 0, 0, {"compute_percent": 1}, (2000, 1), id="compute by the percent"),
    pytest.param(4, 0, 0, {"memory_mib": 7999, "compute_percent": 99}, (7999, 99), id="both"),
]


@pytest.mark.parametrize(("count", "overhead", "reserved", "fields", "expected"), DEFAULTS)
def test_slice_sizes(
    bench: PoolBench,
    count: int,
    overhead: int,
    reserved: int,
    fields: dict[str, Any],
    expected: tuple[int, int],
) -> None:
    bench.node("a", 8000, vgpu_count=count, context_overhead_mib=overhead, reserved_mib=reserved)
    [vgpu] = bench.granted(**fields).grant.vgpus
    assert (vgpu.memory_mib, vgpu.compute_percent) == expected


@pytest.mark.parametrize(
    ("pool", "asked", "kept"),
    [
        ("auto", "auto", "auto"),
        ("auto", "turns", "turns"),
        ("turns", "auto", "turns"),
        ("turns", "capped", "capped"),
        ("capped", "turns", "capped"),
        ("capped", "auto", "capped"),
    ],
)
def test_nobody_loosens_how_another_has_shares_kept(
    make_bench: Callable[..., PoolBench], pool: str, asked: str, kept: str
) -> None:
    bench = make_bench(sharing=Sharing(pool))
    bench.node("a", 8000)
    granted = bench.granted(sharing=Sharing(asked), count=1)
    assert [vgpu.sharing for vgpu in granted.grant.vgpus] == [kept]
    [said] = answer_message(granted).granted.vgpus
    assert said.sharing == ("" if kept == "auto" else kept)
    assert vgpus_of([said])[0].sharing == kept
    assert vgpus_of([rpc.Vgpu(sharing="by moonlight")])[0].sharing is Sharing.AUTO
    values = json.loads(json.dumps(GRANTS.values(granted.grant)))
    stored = dict(zip(GRANTS.fields, values, strict=True))
    assert GRANTS.build(stored) == granted.grant
    assert GRANTS.build(stored).vgpus[0].sharing is Sharing(kept)
    del stored["vgpus"][0]["sharing"]  # of an older controller
    assert GRANTS.build(stored).vgpus[0].sharing is Sharing.AUTO


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 10, 33, 64])
def test_exactly_vgpu_count_default_slices_fit(bench: PoolBench, count: int) -> None:
    bench.node("a", 143771, vgpu_count=count, context_overhead_mib=534, reserved_mib=534)
    for _ in range(count):
        bench.granted()
    usage = bench.pool.usage(GpuKey("a", "a-gpu0"))
    assert usage.vgpus == count
    assert usage.memory_mib <= 143771 - 534
    if count not in (33, 64):  # 1/33 and 1/64 round down, so compute is left
        assert bench.refused().status is CudaStatus.DEVICE_UNAVAILABLE


REFUSALS = [
    pytest.param(
        {"memory_mib": 9000},
        CudaStatus.OUT_OF_MEMORY,
        "wanted 9000 MiB in one vGPU; the largest that the pool can give is 7500 MiB",
        id="memory above every GPU",
    ),
    pytest.param(
        {"memory_mib": 7501},
        CudaStatus.OUT_OF_MEMORY,
        "set SLUICE_GMEM to at most 7500",
        id="memory that leaves no room for the context",
    ),
    pytest.param(
        {"count": 3},
        CudaStatus.DEVICE_UNAVAILABLE,
        "set SLUICE_VGPU to at most 2",
        id="more vGPUs than one node has GPUs",
    ),
    pytest.param(
        {"count": 2, "memory_mib": 7000},
        CudaStatus.DEVICE_UNAVAILABLE,
        "at most 1 such GPU(s) on one node",
        id="more large vGPUs than one node has large GPUs",
    ),
    pytest.param({"count": 65}, CudaStatus.INVALID_VALUE, "SLUICE_VGPU", id="count"),
    pytest.param({"compute_percent": 101}, CudaStatus.INVALID_VALUE, "SLUICE_RATIO", id="compute"),
    pytest.param(
        {"cross_node": True, "compute_percent": 50},
        CudaStatus.INVALID_VALUE,
        "SLUICE_CROSS_NODE), which are given whole; unset SLUICE_RATIO",
        id="a part of GPUs of several nodes",
    ),
    pytest.param({"wait_seconds": -2}, CudaStatus.INVALID_VALUE, "SLUICE_WAIT", id="wait"),
    pytest.param(
        {"local_only": True, "node": "b"}, CudaStatus.NO_DEVICE, "node b has no GPU", id="no GPU"
    ),
]


@pytest.mark.parametrize(("fields", "status", "message"), REFUSALS)
def test_what_can_never_be_is_refused_even_to_those_who_would_wait(
    bench: PoolBench, fields: dict[str, Any], status: CudaStatus, message: str
) -> None:
    bench.node("a", 8000, 4000, context_overhead_mib=500)
    bench.node("b")
    refusal = bench.refused(**{"wait_seconds": -1, **fields})
    assert refusal.status is status
    assert message in refusal.message


def test_an_empty_pool_says_what_to_start(bench: PoolBench) -> None:
    refusal = bench.refused(wait_seconds=-1)
    assert refusal.status is CudaStatus.NO_DEVICE
    assert "start sluice-server" in refusal.message


def test_bin_packing_fills_the_fullest_gpu_that_fits(bench: PoolBench) -> None:
    bench.node("a", 8000, 4000)
    bench.node("b", 8000)
    places = [
        bench.granted(memory_mib=mib, compute_percent=10).grant.vgpus[0].gpu_uuid
        for mib in (3000, 900, 200, 5000)
    ]
    assert places == ["a-gpu1", "a-gpu1", "a-gpu0", "a-gpu0"]


def test_vgpus_of_one_grant_are_on_different_gpus(bench: PoolBench) -> None:
    bench.node("a", 8000, 8000, 8000)
    grant = bench.granted(count=3).grant
    assert len({v.gpu_uuid for v in grant.vgpus}) == 3


def test_a_release_gives_back_all_of_it_once(bench: PoolBench) -> None:
    bench.node("a", 8000, context_overhead_mib=100)
    grant = bench.granted(memory_mib=1000, compute_percent=40).grant
    assert bench.pool.usage(GpuKey("a", "a-gpu0")).memory_mib == 1100
    for _ in range(2):
        bench.pool.lifecycle.release(grant.id, DONE)
        assert bench.pool.usage(GpuKey("a", "a-gpu0")).memory_mib == 0
    assert (grant.state, grant.end, grant.generation) == (GrantState.ENDED, DONE, 2)
    [session] = bench.pool.sessions_of(grant.id)
    assert session.state is SessionState.ENDED


def test_the_queue_serves_priority_then_age(bench: PoolBench) -> None:
    bench.node("a", 8000)
    running = bench.granted(compute_percent=100).grant
    for name, priority in (("old", 0), ("high", 5), ("young", 0), ("low", -1)):
        answer = bench.ask(request_id=name, compute_percent=100, priority=priority, wait_seconds=-1)
        assert answer == name
    order = []
    while True:
        decisions = bench.pool.lifecycle.release(running.id, DONE)
        if not decisions.answers:
            break
        [(name, answer)] = decisions.answers.items()
        assert isinstance(answer, Granted)
        order.append(name)
        running = answer.grant
    assert order == ["high", "old", "young", "low"]


def test_a_small_request_does_not_pass_a_large_one_that_waits(bench: PoolBench) -> None:
    bench.node("a", 8000)
    running = bench.granted(compute_percent=50).grant
    assert bench.ask(request_id="large", compute_percent=100, wait_seconds=-1) == "large"
    assert bench.ask(request_id="small", compute_percent=10, wait_seconds=-1) == "small"
    assert isinstance(bench.ask(compute_percent=10, wait_seconds=0), Refused)
    assert list(bench.pool.lifecycle.release(running.id, DONE).answers) == ["large"]


def test_a_request_bound_to_another_node_passes(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.node("b", 8000)
    bench.granted(compute_percent=100, local_only=True, node="a")
    assert bench.ask(request_id="x", local_only=True, node="a", wait_seconds=-1) == "x"
    assert bench.granted(local_only=True, node="b").grant.node == "b"


def test_a_waiting_request_is_refused_when_its_time_is_over(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.granted(compute_percent=100)
    assert bench.ask(request_id="x", wait_seconds=10) == "x"
    bench.clock.seconds += 9.9
    bench.pool.membership.seen("a")
    assert bench.pool.expire().answers == {}
    bench.clock.seconds += 0.2
    answer = bench.pool.expire().answers["x"]
    assert isinstance(answer, Refused)
    assert "after 10 s" in answer.message
    assert len(bench.pool.queue) == 0


def test_a_repeated_request_gets_the_same_grant(bench: PoolBench) -> None:
    bench.node("a", 8000)
    first = bench.granted(request_id="x")
    again = bench.granted(request_id="x")
    assert (again.grant.id, again.session.id) == (first.grant.id, first.session.id)
    bench.pool.requests.withdraw("x", GONE)
    assert bench.granted(request_id="x").grant.id != first.grant.id


def test_a_new_gpu_starts_who_waits(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.granted(compute_percent=100)
    assert bench.ask(request_id="x", wait_seconds=-1) == "x"
    assert isinstance(bench.node("b", 8000).answers["x"], Granted)


def reported(grant_id: str, session_id: str = "s", state: str = "running") -> ReportedSession:
    session = Session(
        session_id, grant_id, "a", "shm", "h", "p", 1, 0, "", "", 1.0, SessionState(state)
    )
    return ReportedSession(session, (Vgpu("a-gpu0", 1000, 30),), "lost-request", 3)


def register(bench: PoolBench, *reports: ReportedSession, pending: tuple[str, ...] = ()) -> Any:
    gpus = [gpu for gpu in bench.pool.gpus.values() if gpu.node == "a"]
    return bench.pool.membership.register(Node("a", "x", 1, "1", 4), gpus, reports, pending)


def test_a_silent_node_is_lost_and_its_grants_end(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted().grant
    bench.pool.membership.disconnected("a")
    assert isinstance(bench.ask(wait_seconds=0), Refused), "nothing is placed on an absent node"
    bench.clock.seconds += 29
    bench.pool.expire()
    assert grant.state is GrantState.LIVE
    bench.clock.seconds += 2
    assert bench.pool.expire().lost == ["a"]
    assert (grant.state, grant.reason, grant.cause) == (
        GrantState.ENDED,
        NODE_LOST,
        EndCause.NODE_LOST,
    )
    assert bench.refused().status is CudaStatus.NO_DEVICE


def test_a_lost_node_that_returns_brings_its_sessions_back(bench: PoolBench) -> None:
    bench.node("a", 8000, context_overhead_mib=50)
    granted = bench.granted(memory_mib=1000, compute_percent=30)
    bench.clock.seconds += 31
    bench.pool.expire()
    decisions = register(bench, reported(granted.grant.id, granted.session.id))
    assert decisions.ends == []
    grant = bench.pool.grants[granted.grant.id]
    assert (grant.state, grant.vgpus[0].overhead_mib) == (GrantState.LIVE, 50)
    assert bench.pool.usage(GpuKey("a", "a-gpu0")).memory_mib == 1050


def test_an_answer_that_a_lost_node_may_yet_act_on_keeps_its_room(bench: PoolBench) -> None:
    bench.node("a", 8000)
    granted = bench.granted(request_id="p", memory_mib=8000, compute_percent=100)
    assert bench.ask(request_id="x", wait_seconds=-1) == "x"
    bench.clock.seconds += 31
    bench.pool.expire()
    # it stood still with the answer to p on its way to it
    assert register(bench, pending=("p",)).answers == {}
    grant = bench.pool.grants[granted.grant.id]
    assert grant.state is GrantState.LIVE
    assert bench.pool.usage(GpuKey("a", "a-gpu0")).memory_mib == 8000
    assert bench.granted(request_id="p").session.id == granted.session.id
    # its client has gone meanwhile
    assert isinstance(bench.pool.requests.withdraw("p", GONE).answers["x"], Granted)


def test_what_a_lost_node_has_forgotten_is_over(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.granted(request_id="p", memory_mib=8000, compute_percent=100)
    assert bench.ask(request_id="x", wait_seconds=-1) == "x"
    bench.clock.seconds += 31
    bench.pool.expire()
    assert isinstance(register(bench).answers["x"], Granted)


def test_what_a_returning_server_no_longer_runs_is_released(bench: PoolBench) -> None:
    bench.node("a", 8000)
    kept, dropped, pending = (bench.granted(request_id=name) for name in ("k", "d", "p"))
    register(bench, reported(kept.grant.id, kept.session.id), pending=("p",))
    states = [g.grant.state.value for g in (kept, dropped, pending)]
    assert states == ["live", "ended", "live"]


def test_what_was_ended_meanwhile_is_ended_at_the_server(bench: PoolBench) -> None:
    bench.node("a", 8000)
    granted = bench.granted()
    bench.pool.lifecycle.release(granted.grant.id, BY_OPERATOR)
    [order] = register(bench, reported(granted.grant.id)).ends
    assert (order.grant_id, order.why) == (granted.grant.id, BY_OPERATOR)


def test_unknown_work_that_runs_is_adopted_even_beyond_the_books(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.granted(compute_percent=90, request_id="p")
    register(bench, reported("f" * 16), pending=("p",))
    assert bench.pool.usage(GpuKey("a", "a-gpu0")).compute_percent == 120
    assert bench.ask(request_id="x", compute_percent=1, wait_seconds=-1) == "x"


def test_a_restored_pool_goes_on_where_it_stopped(
    bench: PoolBench, make_bench: Callable[..., PoolBench]
) -> None:
    bench.node("a", 8000)
    granted = bench.granted(memory_mib=1000, compute_percent=30)
    before = bench.pool
    snapshot = Snapshot(
        list(before.nodes.values()),
        list(before.gpus.values()),
        list(before.grants.values()),
        list(before.sessions.values()),
    )
    after = make_bench(snapshot=snapshot)
    assert after.pool.nodes["a"].state is NodeState.AWAY
    assert after.pool.usage(GpuKey("a", "a-gpu0")).memory_mib == 1000
    assert after.granted(request_id=granted.grant.request_id).grant.id == granted.grant.id


def test_ended_grants_are_forgotten_oldest_first(make_bench: Callable[..., PoolBench]) -> None:
    bench = make_bench(ended_kept=3)
    bench.node("a", 8000)
    living = bench.granted(compute_percent=1, memory_mib=1).grant
    ended = []
    for _ in range(6):
        grant = bench.granted(compute_percent=1, memory_mib=1).grant
        bench.pool.lifecycle.release(grant.id, DONE)
        ended.append(grant.id)
    assert set(bench.pool.grants) == {living.id, *ended[-3:]}
    assert len(bench.pool.sessions) == 4


def test_every_transition_is_an_event(bench: PoolBench) -> None:
    bench.node("a", 8000)
    granted = bench.granted()
    bench.pool.lifecycle.session_started(granted.session.id, 1, "shm")
    bench.pool.lifecycle.release(granted.grant.id, DONE)
    bench.pool.membership.disconnected("a")
    bench.clock.seconds += 31
    bench.pool.expire()
    kinds = [change.kind for change in bench.pool.take_changes() if isinstance(change, Event)]
    assert kinds == [
        "node.up",
        "gpu.joined",
        "grant.made",
        "session.running",
        "grant.ended",
        "node.away",
        "node.lost",
    ]
    assert Pool.take_changes(bench.pool) == []


def test_a_session_is_shown_with_the_channel_that_it_has_now(bench: PoolBench) -> None:
    bench.node("a", 8000)
    granted = bench.granted()
    pool, session_id = bench.pool, granted.session.id
    pool.lifecycle.session_started(session_id, 1, "rdma")
    pool.lifecycle.session_connection(session_id, 100.0, "tcp")
    shown = pool.sessions[session_id]
    assert (shown.channel, shown.disconnected_since) == ("tcp", 100.0)
    pool.lifecycle.session_connection(session_id, None)  # as an older server says it
    assert (shown.channel, shown.disconnected_since) == ("tcp", None)
    pool.lifecycle.session_connection(session_id, None, "rdma")
    assert shown.channel == "rdma"
    stored = [c for c in pool.take_changes() if isinstance(c, Session) and c.id == session_id]
    assert [s.channel for s in stored][-3:] == ["tcp", "tcp", "rdma"]


def test_a_controller_that_starts_slowly_takes_nobody_for_silent(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted().grant
    snapshot = Snapshot(
        nodes=[replace(node) for node in bench.pool.nodes.values()],
        gpus=list(bench.pool.gpus.values()),
        grants=[replace(grant)],
        sessions=[replace(session) for session in bench.pool.sessions.values()],
    )
    clock = FakeClock()
    pool = Pool(clock, lambda: "id", snapshot=snapshot)
    clock.seconds += 40  # its doors are still closed
    pool.membership.listening()
    assert pool.expire().lost == []
    clock.seconds += 31
    assert pool.expire().lost == ["a"]
