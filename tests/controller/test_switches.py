# SPDX-License-Identifier: Apache-2.0
"""The two pools, and drained nodes, without I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from ends import DONE, FAILED
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted, Refused
from sluice.controller.pool.grants.adoption import ReportedSession
from sluice.controller.pool.impossible import Impossible, Unknown
from sluice.controller.pool.model import Event, Gpu, GpuKey, GpuMode, GrantState, Node, SwitchStep

GPU = GpuKey("a", "a-gpu0")


def test_a_gpu_goes_native_when_it_is_empty_and_comes_back(bench: PoolBench) -> None:
    bench.node("a", 8000, 8000)
    pool = bench.pool
    grant = bench.granted(compute_percent=100).grant
    key = GpuKey("a", grant.vgpus[0].gpu_uuid)
    pool.switching.switch_gpu(key, GpuMode.NATIVE)
    assert pool.mode(key) is GpuMode.DRAINING
    assert "waits for 1 grant(s)" in pool.switches[key].reason
    other = bench.granted(compute_percent=100).grant
    assert other.vgpus[0].gpu_uuid != key.uuid
    assert isinstance(bench.ask(compute_percent=1), Refused)
    pool.lifecycle.release(grant.id, DONE)
    assert pool.mode(key) is GpuMode.NATIVE
    with pytest.raises(Impossible, match="take it back first"):
        pool.switching.switch_gpu(key, GpuMode.DRAINED)
    with pytest.raises(Impossible, match="only a GPU that is draining"):
        pool.switching.cancel_switch(key)
    gone = [gpu for gpu in pool.gpus.values() if gpu.key != key]
    pool.membership.register(replace(pool.nodes["a"]), gone, [])
    assert key in pool.gpus, "its VM has it: that its node does not see it is no news"
    pool.switching.switch_gpu(key, GpuMode.POOLED)
    assert pool.mode(key) is GpuMode.RETURNING
    pool.membership.register(replace(pool.nodes["a"]), list(pool.gpus.values()), [])
    assert pool.mode(key) is GpuMode.POOLED
    kinds = [c.kind for c in pool.take_changes() if isinstance(c, Event) and c.subject == str(key)]
    assert kinds == ["gpu.joined", "gpu.draining", "gpu.native", "gpu.returning", "gpu.pooled"]


def test_a_switch_can_preempt_and_be_cancelled(bench: PoolBench) -> None:
    bench.node("a", 8000)
    grant = bench.granted().grant
    [order] = bench.pool.switching.switch_gpu(GPU, GpuMode.NATIVE, preempt=True).ends
    assert order.grant_id == grant.id
    assert bench.ask(request_id="x", wait_seconds=-1) == "x"
    answers = bench.pool.switching.cancel_switch(GPU).answers
    assert isinstance(answers["x"], Granted)
    with pytest.raises(Unknown):
        bench.pool.switching.switch_gpu(GpuKey("a", "none"), GpuMode.NATIVE)


def test_a_reserved_gpu_is_not_taken_from_its_owner(bench: PoolBench) -> None:
    bench.node("a", 8000)
    bench.reserve()
    bench.pool.switching.switch_gpu(GPU, GpuMode.DRAINED)
    assert bench.pool.switches[GPU].reason.endswith("reservation res to be deleted or made smaller")
    assert bench.pool.switches[GPU].step is SwitchStep.WAITING
    bench.pool.reserving.end_reservation("res", "deleted")
    assert bench.pool.mode(GPU) is GpuMode.DRAINED
    bench.pool.switching.switch_gpu(GPU, GpuMode.POOLED)
    assert bench.pool.mode(GPU) is GpuMode.POOLED


def test_a_handover_is_waited_for(make_bench: Callable[..., PoolBench]) -> None:
    bench = make_bench(hands_over=True)
    bench.node("a", 8000)
    [handover] = bench.pool.switching.switch_gpu(GPU, GpuMode.NATIVE).handovers
    assert handover.to_native
    assert bench.pool.mode(GPU) is GpuMode.DRAINING
    assert bench.pool.switches[GPU].step is SwitchStep.HANDING_OVER
    bench.pool.switching.handed_over(GPU, "its driver does not let go")
    assert "does not let go" in bench.pool.switches[GPU].reason
    assert bench.pool.switches[GPU].step is SwitchStep.STUCK
    bench.pool.switching.handed_over(GPU)
    assert bench.pool.mode(GPU) is GpuMode.NATIVE
    assert bench.pool.switches[GPU].step is SwitchStep.NONE


def test_an_answer_to_an_older_handover_counts_for_nothing(
    make_bench: Callable[..., PoolBench],
) -> None:
    bench = make_bench(hands_over=True)
    bench.node("a", 8000)
    pool = bench.pool
    [first] = pool.switching.switch_gpu(GPU, GpuMode.NATIVE).handovers
    [back] = pool.switching.cancel_switch(GPU).handovers
    assert back.back
    [second] = pool.switching.switch_gpu(GPU, GpuMode.DRAINED).handovers
    pool.switching.handed_over(GPU, generation=first.generation + 100)
    assert bench.pool.mode(GPU) is GpuMode.DRAINING
    pool.switching.handed_over(GPU, generation=second.generation)
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
    assert bench.pool.membership.register(node, gpus, [reported]).handovers == []
    [order] = bench.pool.lifecycle.release(running.id, FAILED).handovers
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
    pool = bench.pool
    pool.switching.switch_gpu(GPU, GpuMode.NATIVE)
    [again] = bench.node("a", 8000).handovers
    assert again.to_native
    pool.switching.handed_over(GPU, generation=again.generation)
    assert bench.pool.mode(GPU) is GpuMode.NATIVE
    [restarted] = bench.node("a", 8000).handovers
    assert restarted.to_native
    bench.pool.membership.disconnected("a")
    pool.switching.switch_gpu(GPU, GpuMode.POOLED)
    [returned] = bench.node("a", 8000, let_go={"a-gpu0"}).handovers
    assert returned.back
    pool.switching.handed_over(GPU, generation=returned.generation)
    assert bench.pool.mode(GPU) is GpuMode.POOLED
    assert bench.node("a", 8000).handovers == []


def test_a_drained_node_takes_nothing_new_and_stays_so(bench: PoolBench) -> None:
    bench.node("a", 8000)
    running = bench.granted(compute_percent=10).grant
    bench.pool.switching.drain_node("a", drained=True)
    bench.node("a", 8000)
    assert bench.pool.nodes["a"].drained
    assert running.state is GrantState.ENDED, "it was not reported"
    assert bench.ask(request_id="x", wait_seconds=-1) == "x"
    answers = bench.pool.switching.drain_node("a", drained=False).answers
    assert isinstance(answers["x"], Granted)
    with pytest.raises(Unknown):
        bench.pool.switching.drain_node("none", drained=True)
    bench.pool.switching.drain_node("a", drained=True)
    assert bench.restarted().pool.nodes["a"].drained
