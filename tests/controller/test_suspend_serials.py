# SPDX-License-Identifier: Apache-2.0
"""Reports that cross orders to suspend and to resume: no order is given twice, and none is lost."""

from __future__ import annotations

from moving_bench import (
    ALL,
    CONTEXT,
    LEAVING,
    booked,
    joined,
    kinds,
    off,
    resumed,
    returns,
    running,
    says,
)

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.grants.suspension import (
    ReportedSuspension,
    SuspendedContexts,
    SuspendOrder,
    SuspensionState,
)
from sluice.controller.rpc.messages import suspension_of
from sluice.resources.suspended_contexts import ContextPlace
from sluice.rpc import pool_pb2 as rpc

STAYS = SuspendedContexts(ContextPlace.STAYS, mib=(CONTEXT,))


def only(decisions: Decisions) -> SuspendOrder:
    [order] = decisions.suspends
    return order


def test_a_report_from_before_the_order_gives_it_no_second_time() -> None:
    bench = joined()
    grant = running(bench, memory_mib=3000)
    suspend = only(bench.pool.lifecycle.suspend(grant.id, "by a test"))
    assert suspend.serial == 1
    crossing = says(bench, grant, at="a-gpu0", suspended=False, serial=0)
    assert (crossing.suspends, grant.suspension) == ([], SuspensionState.SUSPENDING)
    says(bench, grant, LEAVING, at="a-gpu0", serial=1)
    resume = only(bench.pool.lifecycle.resume(grant.id))
    assert resume.serial == 2
    # its context had just left when the order came
    crossing = says(bench, grant, off(*ALL[1:]), at="a-gpu0", serial=1)
    assert (crossing.suspends, grant.suspension) == ([], SuspensionState.RESUMING)
    assert booked(bench)["a-gpu0"] == 3000 + CONTEXT
    says(bench, grant, at="a-gpu0", suspended=False, serial=2)
    assert grant.suspension is SuspensionState.NONE


def test_a_refusal_from_before_the_order_is_not_its() -> None:
    """As where a resumption that was refused is ordered again just then."""
    bench = joined()
    grant = running(bench, memory_mib=3000)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    says(bench, grant, STAYS, at="a-gpu0", serial=1)
    bench.pool.lifecycle.resume(grant.id)
    says(bench, grant, STAYS, at="a-gpu0", serial=2, error="no room")
    assert only(bench.pool.lifecycle.resume(grant.id)).serial == 3
    says(bench, grant, STAYS, at="a-gpu0", serial=2, error="no room")
    assert grant.suspension is SuspensionState.RESUMING, "the second order is under way"
    kinds(bench)
    says(bench, grant, STAYS, at="a-gpu0", serial=3, error="still none")
    assert (grant.suspension, grant.suspension_note) == (SuspensionState.SUSPENDED, "still none")
    assert kinds(bench) == ["grant.not_resumed"]


def test_what_was_carried_out_and_does_not_fit_is_ordered_anew() -> None:
    bench = joined()
    grant = running(bench, memory_mib=3000)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    again = only(says(bench, grant, at="a-gpu0", suspended=False, serial=1))
    assert (again.resume, again.serial) == (False, 2)


def test_an_older_servers_reports_are_believed_as_they_come() -> None:
    bench = joined()
    grant = running(bench, memory_mib=3000)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    again = says(bench, grant, at="a-gpu0", suspended=False)
    assert again.suspends == [SuspendOrder("a", grant.id, resume=False)]
    assert suspension_of(rpc.GrantSuspension(grant_id="g")).serial is None
    assert suspension_of(rpc.GrantSuspension(grant_id="g", serial=0)).serial == 0
    most = suspension_of(rpc.GrantSuspension(grant_id="g", serial=(1 << 64) - 1)).serial
    assert most is not None
    assert most < 1 << 60, "there are serials above it"


def test_an_order_that_was_lost_with_the_stream_or_the_controller_is_given_again() -> None:
    bench = joined()
    grant = running(bench, memory_mib=3000)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    before = ReportedSuspension(grant.id, suspended=False, gpu_uuids=("a-gpu0",), serial=0)
    assert only(returns(bench, before, running=[grant])).serial == 2
    after = bench.restarted(node_timeout_seconds=1e9)
    had = ReportedSuspension(grant.id, suspended=False, gpu_uuids=("a-gpu0",), serial=7)
    assert only(returns(after, had, running=[grant])).serial == 8, "above all before"


def test_a_server_that_is_another_one_is_believed_though_it_carried_out_no_order() -> None:
    """It brings back by itself what the one before it left in part."""
    bench = joined()
    grant = running(bench, memory_mib=3000)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    says(bench, grant, STAYS, at="a-gpu0", serial=1)
    bench.pool.lifecycle.resume(grant.id)
    at_work = ReportedSuspension(
        grant.id, suspended=False, busy=True, gpu_uuids=("a-gpu0",), serial=0
    )
    assert returns(bench, at_work, running=[grant]).suspends == []
    says(bench, grant, at="a-gpu0", suspended=False, serial=0)
    assert grant.suspension is SuspensionState.NONE


def test_a_controller_that_is_restarted_waits_for_what_is_being_carried_out() -> None:
    bench = joined()
    grant = running(bench, memory_mib=3000)
    bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")
    after = bench.restarted(node_timeout_seconds=1e9)
    busy = ReportedSuspension(
        grant.id, suspended=False, busy=True, gpu_uuids=("a-gpu0",), serial=0, moving_to="a-gpu2"
    )
    assert returns(after, busy, running=[grant]).suspends == []
    own = after.pool.grants[grant.id]
    says(after, own, LEAVING, at="a-gpu0", serial=1)
    assert says(after, own, off("a-gpu2"), at="a-gpu0", serial=1).suspends == resumed(own, "a-gpu2")


def test_a_lost_store_learns_of_a_move_and_keeps_its_place() -> None:
    """The grant is adopted as its server runs it, and where it is on its way to is booked, too."""
    bench = joined()
    grant = running(bench, memory_mib=3000, compute_percent=10)
    says(bench, grant, at="a-gpu0", suspended=False, busy=True, serial=4, moving_to="a-gpu2")
    there = 3000 + CONTEXT
    assert booked(bench) == {"a-gpu0": there, "a-gpu1": 0, "a-gpu2": there}
    says(bench, grant, LEAVING, at="a-gpu0", serial=5, moving_to="a-gpu2")
    assert booked(bench) == {"a-gpu0": there, "a-gpu1": 0, "a-gpu2": there}
    order = only(says(bench, grant, off("a-gpu2"), at="a-gpu0", serial=5, moving_to="a-gpu2"))
    assert (order.gpu_uuid, order.serial) == ("a-gpu2", 6)
    says(bench, grant, at="a-gpu2", suspended=False, serial=6)
    assert booked(bench) == {"a-gpu0": 0, "a-gpu1": 0, "a-gpu2": there}


def test_a_lost_store_learns_how_a_move_ended() -> None:
    bench = joined()
    grant = running(bench, memory_mib=3000, compute_percent=10)
    for uuid, report in (
        ("a-gpu0", {"suspended": False}),
        ("a-gpu2", {"suspended": False}),
        ("a-gpu2", {"suspended": True, "error": "no room", "contexts": off("a-gpu0")}),
    ):
        own = grant.vgpus[0].gpu_uuid
        target = "a-gpu2" if own != "a-gpu2" else "a-gpu1"
        says(bench, grant, at=own, suspended=False, busy=True, serial=4, moving_to=target)
        assert booked(bench)[target] == 3000 + CONTEXT
        again = says(bench, grant, at=uuid, serial=5, **report)
        assert again.suspends == (resumed(grant, uuid) if report["suspended"] else [])
        assert booked(bench) == {**dict.fromkeys(ALL, 0), uuid: 3000 + CONTEXT}
        assert grant.moving_to == ""
