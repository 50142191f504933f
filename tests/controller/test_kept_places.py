# SPDX-License-Identifier: Apache-2.0
"""Where a grant is to move, it has its room from the order on, and gives it back where it fails."""

from __future__ import annotations

import pytest
from ends import GONE
from moving_bench import (
    ALL,
    CONTEXT,
    LEAVING,
    LEFT,
    MIB,
    booked,
    joined,
    off,
    resumed,
    returns,
    running,
    says,
)
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Granted
from sluice.controller.pool.grants.suspension import (
    ReportedSuspension,
    SuspendedContexts,
    SuspensionState,
)
from sluice.controller.pool.impossible import Impossible
from sluice.controller.pool.model import GpuKey, GpuMode, Grant, Quota
from sluice.resources.suspended_contexts import ContextPlace, Stays

FULL = 6000 + CONTEXT


def moving(to: str = "a-gpu2", **wanted: object) -> tuple[PoolBench, Grant]:
    """One of 6000 MiB of a-gpu0, told to go there."""
    bench = joined()
    grant = running(bench, memory_mib=6000, compute_percent=10, **wanted)
    bench.pool.lifecycle.move(grant.id, to, "by a test")
    return bench, grant


def test_nobody_else_is_promised_the_room_between_the_order_and_the_arrival() -> None:
    bench, grant = moving()
    other = running(bench, memory_mib=3000, compute_percent=10)
    assert other.vgpus[0].gpu_uuid == "a-gpu1", "the fullest GPU that has room is not a-gpu2"
    with pytest.raises(Impossible, match="1500 MiB and 90 % free"):
        bench.pool.lifecycle.move(other.id, "a-gpu2", "by a test")
    key = GpuKey("a", "a-gpu2")
    assert (bench.pool.usage(key).memory_mib, bench.pool.kept(key).memory_mib) == (0, FULL)
    says(bench, grant, LEAVING, at="a-gpu0")
    assert says(bench, grant, off(*ALL[1:]), at="a-gpu0").suspends == resumed(grant, "a-gpu2")
    assert booked(bench)["a-gpu2"] == FULL, "once"
    says(bench, grant, at="a-gpu2", suspended=False)
    bench.pool.lifecycle.session_ended("", grant.id, GONE)
    assert booked(bench)["a-gpu2"] == 0


def test_it_is_told_otherwise_before_it_has_gone() -> None:
    bench, grant = moving()
    says(bench, grant, LEAVING, at="a-gpu0")
    bench.pool.lifecycle.move(grant.id, "a-gpu2", "again")
    bench.pool.lifecycle.move(grant.id, "a-gpu1", "no, there")
    assert booked(bench) == {"a-gpu0": FULL, "a-gpu1": FULL, "a-gpu2": 0}
    assert says(bench, grant, off(*ALL[1:]), at="a-gpu0").suspends == resumed(grant, "a-gpu1")


def test_who_waits_for_that_gpu_does_not_keep_it_from_the_place_that_it_has() -> None:
    bench, grant = moving()
    says(bench, grant, LEAVING, at="a-gpu0")
    bench.ask(count=3, memory_mib=MIB - CONTEXT, priority=9, wait_seconds=-1)
    assert says(bench, grant, off(*ALL[1:]), at="a-gpu0").suspends == resumed(grant, "a-gpu2")


@pytest.mark.parametrize("how", ["refused", "ended", "ordered end", "paused", "closed"])
def test_the_place_is_given_back_where_the_move_ends(how: str) -> None:
    bench, grant = moving()
    if how == "refused":
        says(bench, grant, at="a-gpu0", suspended=False, error="it does not come to a stop")
        assert grant.suspension is SuspensionState.NONE
    elif how == "ended":
        bench.pool.lifecycle.session_ended("", grant.id, GONE)
    elif how == "ordered end":
        bench.pool.lifecycle.end_soon(grant.id, GONE)
    elif how == "paused":
        bench.pool.lifecycle.guest_standing("a", grant.id, paused=True)
    else:
        bench.pool.switching.switch_gpu(GpuKey("a", "a-gpu2"), GpuMode.DRAINED)
        says(bench, grant, off(*ALL[1:]), at="a-gpu0")
    assert booked(bench)["a-gpu2"] == 0
    assert bench.pool.kept(GpuKey("a", "a-gpu2")).memory_mib == 0


def test_a_paused_vms_moves_when_it_goes_on_where_there_is_room() -> None:
    bench, grant = moving()
    says(bench, grant, LEAVING, at="a-gpu0")
    bench.pool.lifecycle.guest_standing("a", grant.id, paused=True)
    says(bench, grant, off(*ALL[1:]), at="a-gpu0")
    assert booked(bench)["a-gpu2"] == 0
    decisions = bench.pool.lifecycle.guest_standing("a", grant.id, paused=False)
    assert decisions.suspends == resumed(grant, "a-gpu2")


@pytest.mark.parametrize("can", [True, False])
def test_it_keeps_where_it_was_until_it_is_known_that_it_can_move(can: bool) -> None:
    """Who waits gets then what it does not need, wherever that is."""
    bench, grant = moving()
    running(bench, memory_mib=6000, compute_percent=10)
    waits = bench.ask(memory_mib=6000, compute_percent=10, priority=9, wait_seconds=-1)
    assert bench.pool.expire().answers == {}
    says(bench, grant, LEAVING, at="a-gpu0")
    says(bench, grant, LEAVING, at="a-gpu0")
    assert booked(bench)["a-gpu0"] == FULL
    stays = SuspendedContexts(ContextPlace.STAYS, Stays.COMMUNICATOR, mib=(CONTEXT,))
    decided = says(bench, grant, off(*ALL[1:]) if can else stays, at="a-gpu0")
    there, left = ("a-gpu2", "a-gpu0") if can else ("a-gpu0", "a-gpu2")
    assert decided.suspends == resumed(grant, there)
    answer = decided.answers[str(waits)]
    assert isinstance(answer, Granted)
    assert answer.grant.vgpus[0].gpu_uuid == left


def test_a_controller_that_is_restarted_meanwhile_has_it_go_on_where_it_was() -> None:
    bench, grant = moving()
    other = running(bench, memory_mib=6000, compute_percent=10)
    says(bench, grant, LEAVING, at="a-gpu0")
    after = bench.restarted(node_timeout_seconds=1e9)
    own = after.pool.grants[grant.id]
    own.contexts = None  # nobody stores them
    assert booked(after)["a-gpu0"] == FULL
    wanted = {"memory_mib": 6000, "compute_percent": 10, "priority": 9, "wait_seconds": -1}
    assert after.ask(request_id="later", **wanted) == "later"
    stays = SuspendedContexts(ContextPlace.STAYS, Stays.COMMUNICATOR, mib=(CONTEXT,))
    report = ReportedSuspension(own.id, True, contexts=stays, gpu_uuids=("a-gpu0",))
    decided = returns(after, report, running=[own, other])
    assert decided.suspends == resumed(own, "a-gpu0")
    answer = decided.answers["later"]
    assert isinstance(answer, Granted)
    assert answer.grant.vgpus[0].gpu_uuid == "a-gpu2"


def test_beyond_its_projects_quota_it_keeps_nobody_from_that_room() -> None:
    bench, grant = moving(project="x")
    says(bench, grant, LEAVING, at="a-gpu0")
    bench.pool.limits.set_quota(Quota("x", memory_mib=5000))
    assert says(bench, grant, off(*ALL[1:]), at="a-gpu0").suspends == []
    assert booked(bench) == {"a-gpu0": LEFT, "a-gpu1": 0, "a-gpu2": 0}
    decisions = bench.pool.limits.set_quota(Quota("x", memory_mib=7000))
    assert decisions.suspends == resumed(grant, "a-gpu2")


def test_a_controller_that_is_restarted_keeps_the_place() -> None:
    bench, grant = moving()
    says(bench, grant, LEAVING, at="a-gpu0")
    after = bench.restarted(node_timeout_seconds=1e9)
    assert booked(after) == {"a-gpu0": FULL, "a-gpu1": 0, "a-gpu2": FULL}
    own = after.pool.grants[grant.id]
    assert own.moving_to == "a-gpu2"
    after.pool.lifecycle.session_ended("", own.id, GONE)
    assert booked(after) == dict.fromkeys(ALL, 0)


def test_who_preempts_there_claims_nothing_of_it() -> None:
    """Others' room is claimed before they have given it back: more is booked then than there is."""
    bench = joined()
    bench.pool.limits.set_quota(Quota("p", may_preempt=True))
    grant = running(bench, memory_mib=3000, compute_percent=10, priority=9)
    for mib, priority in ((4000, 9), (MIB - CONTEXT, 9), (4000, 0)):
        running(bench, memory_mib=mib, compute_percent=10, priority=priority)
    bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")
    bench.ask(memory_mib=3000, priority=5, preempt=True, project="p", wait_seconds=-1)
    assert booked(bench)["a-gpu2"] == 3500 + 4500 + 3500
    says(bench, grant, LEAVING, at="a-gpu0")
    assert booked(bench)["a-gpu2"] == 3500 + 4500 + 3500
    assert says(bench, grant, off(*ALL[1:]), at="a-gpu0").suspends == resumed(grant, "a-gpu2")


def test_a_drain_sends_no_two_to_the_same_room() -> None:
    bench = joined()
    grants = [running(bench, memory_mib=3500, compute_percent=10) for _ in range(2)]
    for _ in range(2):
        running(bench, memory_mib=3000, compute_percent=60)
    bench.pool.switching.switch_gpu(GpuKey("a", "a-gpu0"), GpuMode.DRAINED)
    went = {grant.moving_to for grant in grants}
    assert went == {"a-gpu1", "a-gpu2"}, "the second finds the first one's place taken"
