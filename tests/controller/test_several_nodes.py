# SPDX-License-Identifier: Apache-2.0
"""Grants with vGPUs of several nodes: where they are placed, and what becomes of their parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted, GrantRequest
from sluice.controller.pool.grants.vgpu_times import VgpuReport
from sluice.controller.pool.impossible import Impossible
from sluice.controller.pool.model import (
    Gpu,
    Grant,
    GrantState,
    Node,
    Quota,
    Session,
    SessionState,
    Vgpu,
)
from sluice.controller.pool.pool import ReportedSession
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause

DONE = End(EndCause.CLIENT_ENDED, "the client ended")
WIDE: dict[str, Any] = {"cross_node": True, "channel": "tcp", "memory_mib": 4000}


@pytest.fixture
def bench() -> PoolBench:
    bench = PoolBench()
    bench.node("a", 8000, 8000)
    bench.node("b", 8000)
    bench.node("c", 8000)
    return bench


def places(granted: Granted) -> list[str]:
    return [str(key) for key, _ in granted.grant.placed()]


def live(bench: PoolBench, grant: Grant) -> set[str]:
    sessions = bench.pool.sessions_of(grant.id)
    return {s.node for s in sessions if s.state is not SessionState.ENDED}


def test_one_node_is_enough_where_it_is(bench: PoolBench) -> None:
    granted = bench.granted(count=2, **WIDE)
    assert granted.grant.nodes == {"a"}
    assert not granted.others
    assert {vgpu.compute_percent for vgpu in granted.grant.vgpus} == {100}


def test_as_few_nodes_as_possible_have_a_session_each(bench: PoolBench) -> None:
    granted = bench.granted(count=3, **WIDE)
    assert places(granted)[:2] == ["a:a-gpu0", "a:a-gpu1"]
    assert places(granted)[2] in ("b:b-gpu0", "c:c-gpu0")
    assert [s.chosen for s in granted.sessions] == [(0, 1), (2,)]
    assert granted.grant.node == granted.session.node == "a"


def test_nodes_of_one_rdma_network_go_first() -> None:
    bench = PoolBench()
    for name, network in (("a", "x"), ("b", "y"), ("c", "y")):
        node = Node(name, "x", 1, "1", 1, labels=(("rdma", network),), takes_parts=True)
        gpus = [Gpu(name, f"{name}-gpu0", "Model", 8000)]
        bench.pool.membership.register(node, gpus, [])
    assert bench.granted(count=2, **WIDE).grant.nodes == {"b", "c"}


def test_a_server_that_cannot_have_a_part_is_left_out() -> None:
    bench = PoolBench()
    bench.node("a", 8000)
    bench.node("b", 8000, takes_parts=False)
    refused = bench.refused(count=2, wait_seconds=-1, **WIDE)
    assert refused.status is CudaStatus.NOT_SUPPORTED
    assert "only 1 such GPU(s) are on nodes whose sluice-server can share a grant" in (
        refused.message
    )
    bench.node("b", 8000)
    assert bench.granted(count=2, **WIDE).grant.nodes == {"a", "b"}


def test_a_project_holds_all_of_it(bench: PoolBench) -> None:
    bench.pool.limits.set_quota(Quota("vision", vgpus=2))
    refused = bench.refused(count=3, project="vision", **WIDE)
    assert "vision" in refused.message
    bench.pool.limits.set_quota(Quota("vision", vgpus=3))
    granted = bench.granted(count=3, project="vision", **WIDE)
    assert bench.pool.quotas.held("vision").vgpus == 3
    for session in granted.sessions:
        bench.pool.lifecycle.session_ended(session.id, granted.grant.id, DONE, session.node)
    assert bench.pool.quotas.held("vision").vgpus == 0


def test_it_ends_with_its_last_session(bench: PoolBench) -> None:
    granted = bench.granted(count=4, **WIDE)
    grant = granted.grant
    for session in granted.sessions[:-1]:
        bench.pool.lifecycle.session_ended(session.id, grant.id, DONE, session.node)
        assert grant.state is GrantState.LIVE
    last = granted.sessions[-1]
    bench.pool.lifecycle.session_ended(last.id, grant.id, DONE, last.node)
    assert grant.state is GrantState.ENDED
    assert isinstance(bench.ask(count=4, **WIDE), Granted)


def test_a_lost_node_loses_its_part(bench: PoolBench) -> None:
    granted = bench.granted(count=4, **WIDE)
    bench.pool.nodes["b"].last_seen -= 1000
    decisions = bench.pool.expire()
    assert not decisions.ends
    assert live(bench, granted.grant) == {"a", "c"}
    assert granted.grant.state is GrantState.LIVE
    # it comes back without what ran there, and nothing else is placed on what is still booked
    bench.node("b", 8000)
    assert live(bench, granted.grant) == {"a", "c"}
    assert not isinstance(bench.ask(memory_mib=6000, compute_percent=100), Granted)


def test_a_lost_node_that_ran_on_has_its_part_again(bench: PoolBench) -> None:
    granted = bench.granted(count=4, **WIDE)
    [there] = [s for s in granted.sessions if s.node == "b"]
    bench.pool.nodes["b"].last_seen -= 1000
    bench.pool.expire()
    again = replace(there, state=SessionState.RUNNING, chosen=(), ended=None)
    vgpus = tuple(replace(granted.grant.vgpus[at], node="") for at in there.chosen)
    node = Node("b", "x", 1, "1", 4, takes_parts=True)
    report = ReportedSession(again, vgpus, there.request_id, 0)
    bench.pool.membership.register(node, [Gpu("b", "b-gpu0", "Model", 8000)], [report])
    assert live(bench, granted.grant) == {"a", "b", "c"}
    assert bench.pool.sessions[there.id].chosen == there.chosen


def test_parts_that_nobody_remembers_make_one_grant_again(bench: PoolBench) -> None:
    for name in ("b", "c"):
        gpu = Gpu(name, f"{name}-gpu0", "Model", 8000)
        session = Session(
            f"s-{name}", "g", name, "tcp", "", "p", 1, 0, "", "", 1.0, SessionState.RUNNING
        )
        node = Node(name, "x", 1, "1", 4, takes_parts=True)
        report = ReportedSession(session, (Vgpu(gpu.uuid, 4000, 100),), "r", 0)
        bench.pool.membership.register(node, [gpu], [report])
    grant = bench.pool.grants["g"]
    assert [str(key) for key, _ in grant.placed()] == ["b:b-gpu0", "c:c-gpu0"]
    assert {s.id: s.chosen for s in bench.pool.sessions_of("g")} == {"s-b": (0,), "s-c": (1,)}
    assert not isinstance(bench.ask(count=4, **WIDE), Granted)
    for name in ("b", "c"):
        bench.pool.lifecycle.session_ended(f"s-{name}", "g", DONE, name)
    assert isinstance(bench.ask(count=4, **WIDE), Granted)


def test_a_failed_gpu_ends_the_session_there(bench: PoolBench) -> None:
    granted = bench.granted(count=4, **WIDE)
    key = next(key for key, _ in granted.grant.placed() if key.node == "c")
    decisions = bench.pool.membership.gpu_condition(key, "Xid 79; restart the node", "", "")
    assert [(order.node, order.grant_id) for order in decisions.ends] == [("c", granted.grant.id)]


def test_the_operator_tells_every_node(bench: PoolBench) -> None:
    granted = bench.granted(count=4, **WIDE)
    decisions = bench.pool.lifecycle.end_soon(granted.grant.id, DONE)
    assert [order.node for order in decisions.ends] == ["a", "b", "c"]


def test_who_gives_way_does_so_on_every_node(bench: PoolBench) -> None:
    bench.pool.limits.set_quota(Quota("urgent", may_preempt=True))
    granted = bench.granted(count=4, **WIDE)
    wanted = {"memory_mib": 7000, "compute_percent": 100, "priority": 9, "project": "urgent"}
    decisions = bench.pool.requests.submit(
        GrantRequest("now", preempt=True, wait_seconds=60, **wanted)
    )
    assert [order.node for order in decisions.ends] == ["a", "b", "c"]
    for session in granted.sessions[:-1]:
        ended = bench.pool.lifecycle.session_ended(session.id, granted.grant.id, DONE, session.node)
        assert not ended.answers
    last = granted.sessions[-1]
    ended = bench.pool.lifecycle.session_ended(last.id, granted.grant.id, DONE, last.node)
    assert isinstance(ended.answers["now"], Granted)


def test_who_goes_away_gives_all_of_it_back(bench: PoolBench) -> None:
    granted = bench.granted(count=4, request_id="mine", **WIDE)
    again = bench.granted(count=4, request_id="mine", **WIDE)
    assert [s.id for s in again.sessions] == [s.id for s in granted.sessions]
    decisions = bench.pool.requests.withdraw("mine", DONE)
    assert [order.node for order in decisions.ends] == ["a", "b", "c"]
    assert granted.grant.state is GrantState.ENDED
    other = bench.granted(count=4, **WIDE)
    decisions = bench.pool.lifecycle.not_taken(other, DONE)
    assert [order.node for order in decisions.ends] == ["a", "b", "c"]
    assert other.grant.state is GrantState.ENDED


def test_it_keeps_its_size(bench: PoolBench) -> None:
    granted = bench.granted(count=4, **WIDE)
    with pytest.raises(Impossible, match="vGPUs of 3 nodes, which keep their size"):
        bench.pool.lifecycle.begin_resize(granted.grant.id, 100, 0)


def test_each_node_speaks_of_its_own_vgpus(bench: PoolBench) -> None:
    granted = bench.granted(count=4, **WIDE)
    report = VgpuReport(granted.grant.id, 0, used=2.0, waited=0.0, share_1s=0.5, share_60s=0.5)
    order = list(dict.fromkeys(key.node for key, _ in granted.grant.placed()))
    bench.pool.lifecycle.vgpu_times(order[-1], [report, replace(report, number=1)])
    last, first = (bench.pool.vgpu_time(granted.grant.id, number) for number in (3, 0))
    assert last is not None
    assert last.used == 2.0
    assert first is None


def test_a_controller_that_starts_again_refuses_nobody_before_it_has_heard_of_its_nodes(
    bench: PoolBench,
) -> None:
    after = bench.restarted()
    assert isinstance(after.ask(count=4, wait_seconds=60, **WIDE), str), "it waits"


def test_who_cannot_reach_one_node_leaves_the_others_at_once(bench: PoolBench) -> None:
    granted = bench.granted(count=3, **WIDE)
    lifecycle, [there] = bench.pool.lifecycle, granted.others
    lifecycle.session_started(granted.session.id, 1, "tcp")
    decisions = lifecycle.session_ended(granted.session.id, granted.grant.id, DONE, "a")
    assert [order.node for order in decisions.ends] == sorted(granted.grant.nodes)
    assert granted.grant.state is GrantState.LIVE, "booked until the other node has taken its key"
    assert not lifecycle.session_ended(there.id, granted.grant.id, DONE, there.node).ends
    assert granted.grant.state is GrantState.ENDED
