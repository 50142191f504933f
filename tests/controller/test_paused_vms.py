# SPDX-License-Identifier: Apache-2.0
"""Grants of paused VMs, where their host has them suspended meanwhile ([suspend] on_pause)."""

from __future__ import annotations

from ends import GONE
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.grants.suspension import (
    ReportedSuspension,
    SuspendOrder,
    SuspensionState,
)
from sluice.controller.pool.model import Gpu, Grant, Node

MIB = 8000


def make_bench(swap_mib: int = 10_000) -> PoolBench:
    bench = PoolBench(node_timeout_seconds=1e9)
    join(bench, swap_mib=swap_mib)
    return bench


def join(bench: PoolBench, *reports: ReportedSuspension, swap_mib: int = 10_000) -> Decisions:
    """The node comes, or returns with all that it ran."""
    node = Node("a", "10.0.0.1", 9960, "1", 4, swap_mib=swap_mib)
    pending = [grant.request_id for grant in bench.pool.grants.values()]
    gpu = Gpu("a", "a-gpu0", "Model", MIB)
    return bench.pool.membership.register(node, [gpu], [], pending, suspensions=reports)


def running(bench: PoolBench, **wanted: int) -> Grant:
    granted = bench.granted(**{"memory_mib": 6000, "compute_percent": 80, **wanted})
    bench.pool.lifecycle.session_started(granted.session.id, 7, "ivshmem")
    return granted.grant


def standing(bench: PoolBench, grant: Grant, node: str = "a", *, paused: bool) -> Decisions:
    return bench.pool.lifecycle.guest_standing(node, grant.id, paused=paused)


def is_out(bench: PoolBench, grant: Grant) -> Decisions:
    report = ReportedSuspension(grant.id, suspended=True, staying_mib=(0,))
    return bench.pool.lifecycle.suspension("a", report)


def is_back(bench: PoolBench, grant: Grant) -> Decisions:
    return bench.pool.lifecycle.suspension("a", ReportedSuspension(grant.id, suspended=False))


def ordered(grant: Grant, *, resume: bool) -> list[SuspendOrder]:
    return [SuspendOrder("a", grant.id, resume=resume)]


def test_it_is_suspended_with_its_vm_and_goes_on_with_it() -> None:
    bench = make_bench()
    grant = running(bench)
    assert standing(bench, grant, paused=True).suspends == ordered(grant, resume=False)
    is_out(bench, grant)
    assert (grant.suspension, grant.with_guest) == (SuspensionState.SUSPENDED, True)
    assert bench.pool.expire().suspends == [], "it stays so while its VM is paused"
    assert standing(bench, grant, paused=False).suspends == ordered(grant, resume=True)
    is_back(bench, grant)
    assert (grant.suspension, grant.with_guest) == (SuspensionState.NONE, False)


def test_a_vm_that_goes_on_before_it_is_out_has_it_back_at_once() -> None:
    bench = make_bench()
    grant = running(bench)
    standing(bench, grant, paused=True)
    assert standing(bench, grant, paused=False).suspends == []
    assert is_out(bench, grant).suspends == ordered(grant, resume=True)


def test_a_vm_that_is_paused_again_keeps_it_out() -> None:
    bench = make_bench()
    grant = running(bench)
    standing(bench, grant, paused=True)
    is_out(bench, grant)
    other = running(bench)
    assert standing(bench, grant, paused=False).suspends == [], "its room is another's"
    standing(bench, grant, paused=True)
    assert bench.pool.lifecycle.session_ended("", other.id, GONE).suspends == []
    assert standing(bench, grant, paused=False).suspends == ordered(grant, resume=True)


def test_an_operators_suspension_is_not_the_vms() -> None:
    bench = make_bench()
    grant = running(bench)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    is_out(bench, grant)
    standing(bench, grant, paused=True)
    assert standing(bench, grant, paused=False).suspends == []
    assert grant.suspension is SuspensionState.SUSPENDED


def test_an_operator_may_have_it_back_while_its_vm_is_paused() -> None:
    bench = make_bench()
    grant = running(bench)
    standing(bench, grant, paused=True)
    is_out(bench, grant)
    assert bench.pool.lifecycle.resume(grant.id).suspends == ordered(grant, resume=True)
    is_back(bench, grant)
    assert bench.pool.expire().suspends == [], "and it is not suspended again"


def test_what_cannot_be_suspended_yet_is_later() -> None:
    bench = make_bench()
    granted = bench.granted(memory_mib=6000, compute_percent=80)
    grant = granted.grant
    assert standing(bench, grant, paused=True).suspends == [], "it is being opened"
    bench.pool.lifecycle.session_started(granted.session.id, 7, "ivshmem")
    assert bench.pool.expire().suspends == ordered(grant, resume=False)
    refused = ReportedSuspension(grant.id, suspended=False, error="it does not stop")
    bench.pool.lifecycle.suspension("a", refused)
    assert bench.pool.expire().suspends == []
    bench.clock.seconds += 11
    assert bench.pool.expire().suspends == ordered(grant, resume=False)


def test_a_server_that_returns_says_anew_whose_vm_is_paused() -> None:
    bench = make_bench()
    grant = running(bench)
    standing(bench, grant, paused=True)
    is_out(bench, grant)
    suspended = ReportedSuspension(grant.id, suspended=True, staying_mib=(0,))
    assert join(bench, suspended).suspends == []
    assert grant.suspension is SuspensionState.SUSPENDED
    assert standing(bench, grant, paused=False).suspends == ordered(grant, resume=True)


def test_another_node_and_a_node_without_host_memory_suspend_nothing() -> None:
    bench = make_bench()
    grant = running(bench)
    assert standing(bench, grant, "b", paused=True).suspends == []
    poor = make_bench(swap_mib=0)
    grant = running(poor)
    assert standing(poor, grant, paused=True).suspends == []
    assert poor.pool.expire().suspends == []
    assert grant.suspension is SuspensionState.NONE
