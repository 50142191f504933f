# SPDX-License-Identifier: Apache-2.0
"""Suspended grants in the books: what is free meanwhile, who comes back when, what is lost."""

from __future__ import annotations

from typing import Any

import pytest
from ends import GONE
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Decisions, Granted, GrantRequest
from sluice.controller.pool.grants.suspension import (
    ReportedSuspension,
    SuspendOrder,
    SuspensionState,
)
from sluice.controller.pool.impossible import Impossible, Unknown
from sluice.controller.pool.model import (
    Event,
    Gpu,
    GpuKey,
    Grant,
    Mode,
    Node,
    OwnerKind,
    Quota,
    Reservation,
)
from sluice.controller.pool.reservations.parts import Place
from sluice.resources.ends import EndCause

MIB, CONTEXT = 8000, 500
URGENT = {"project": "urgent", "preempt": True, "priority": 5, "wait_seconds": -1}


def make_bench(**options: Any) -> PoolBench:
    bench = PoolBench(**{"node_timeout_seconds": 1e9, **options})
    bench.pool.limits.set_quota(Quota("urgent", may_preempt=True))
    return bench


def join(bench: PoolBench, *reports: ReportedSuspension, swap_mib: int = 10_000) -> Decisions:
    """The node comes, or returns with what it ran."""
    node = Node("a", "10.0.0.1", 9960, "1", 4, swap_mib=swap_mib)
    gpu = Gpu("a", "a-gpu0", "Model", MIB, context_overhead_mib=CONTEXT)
    sessions = [s.id for g in bench.pool.grants.values() for s in bench.pool.sessions_of(g.id)]
    return bench.pool.membership.register(
        node, [gpu], [], sessions and requests_of(bench), suspensions=reports
    )


def requests_of(bench: PoolBench) -> list[str]:
    """So that the node counts as running what it was granted."""
    return [grant.request_id for grant in bench.pool.grants.values()]


def running(bench: PoolBench, **wanted: Any) -> Grant:
    """A grant whose client is there."""
    granted = bench.granted(**wanted)
    bench.pool.lifecycle.session_started(granted.session.id, 7, "shm")
    return granted.grant


def out(grant: Grant, staying: int = 0, error: str = "") -> ReportedSuspension:
    return ReportedSuspension(grant.id, suspended=True, error=error, staying_mib=(staying,))


def runs(grant: Grant, error: str = "") -> ReportedSuspension:
    return ReportedSuspension(grant.id, suspended=False, error=error)


def suspended(bench: PoolBench, grant: Grant, staying: int = 0) -> None:
    """By its operator, and its node says that it is."""
    decisions = bench.pool.lifecycle.suspend(grant.id, "by a test")
    assert decisions.suspends == [SuspendOrder("a", grant.id, resume=False)]
    bench.pool.lifecycle.suspension("a", out(grant, staying))
    assert grant.suspension is SuspensionState.SUSPENDED


def events(bench: PoolBench) -> list[str]:
    return [c.kind for c in bench.pool.take_changes() if isinstance(c, Event)]


def test_what_a_suspended_grant_gives_back_is_others_and_what_stays_is_not() -> None:
    bench = make_bench()
    join(bench)
    grant = running(bench, memory_mib=6000, compute_percent=80)
    assert bench.ask(request_id="waits", memory_mib=6000, wait_seconds=-1) == "waits"
    decisions = bench.pool.lifecycle.suspend(grant.id, "by a test")
    assert decisions.suspends == [SuspendOrder("a", grant.id, resume=False)]
    assert decisions.answers == {}, "nothing is free before its server says so"
    answers = bench.pool.lifecycle.suspension("a", out(grant, 100)).answers
    assert isinstance(answers["waits"], Granted)
    [vgpu] = grant.vgpus
    assert (vgpu.memory_mib, vgpu.compute_percent, vgpu.overhead_mib) == (100, 0, CONTEXT)
    assert {"grant.suspending", "grant.suspended"} <= set(events(bench))
    left = MIB - 2 * CONTEXT - 100 - 6000
    assert isinstance(bench.ask(memory_mib=left - CONTEXT, compute_percent=1), Granted)
    assert bench.refused(memory_mib=1, compute_percent=1, wait_seconds=0)


def test_it_comes_back_when_that_is_wanted_and_there_is_room() -> None:
    bench = make_bench()
    join(bench)
    grant = running(bench, memory_mib=6000, compute_percent=80)
    suspended(bench, grant, staying=100)
    other = running(bench, memory_mib=6000, compute_percent=50)
    assert bench.pool.lifecycle.resume(grant.id).suspends == [], "there is no room"
    decisions = bench.pool.lifecycle.session_ended("", other.id, GONE)
    assert decisions.suspends == [SuspendOrder("a", grant.id, resume=True)]
    [vgpu] = grant.vgpus
    assert (vgpu.memory_mib, vgpu.compute_percent) == (6000, 80), "booked before it is told"
    bench.pool.lifecycle.suspension("a", runs(grant))
    assert grant.suspension is SuspensionState.NONE
    assert grant.vgpus == (vgpu,)
    assert "grant.resumed" in events(bench)


def test_an_operators_suspension_lasts_until_he_ends_it() -> None:
    bench = make_bench()
    join(bench)
    grant = running(bench, memory_mib=1000)
    suspended(bench, grant)
    bench.clock.seconds += 1000
    assert bench.pool.expire().suspends == []
    assert bench.pool.lifecycle.resume(grant.id).suspends


def test_what_cannot_be_suspended_goes_on_and_the_reason_is_kept() -> None:
    bench = make_bench()
    join(bench)
    grant = running(bench, memory_mib=1000)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    before = grant.vgpus
    bench.pool.lifecycle.suspension("a", runs(grant, "an endless kernel"))
    assert (grant.suspension, grant.vgpus) == (SuspensionState.NONE, before)
    assert grant.suspension_note == "an endless kernel"
    assert "grant.not_suspended" in events(bench)


def test_a_resume_that_fails_leaves_it_suspended_and_is_tried_again() -> None:
    bench = make_bench()
    join(bench)
    grant = running(bench, memory_mib=6000)
    suspended(bench, grant, staying=10)
    bench.pool.lifecycle.resume(grant.id)
    decisions = bench.pool.lifecycle.suspension("a", out(grant, 10, "no place on the GPU"))
    assert decisions.suspends == [], "not at once"
    assert grant.vgpus[0].memory_mib == 10
    assert grant.suspension_note == "no place on the GPU"
    bench.clock.seconds += 11
    assert bench.pool.expire().suspends == [SuspendOrder("a", grant.id, resume=True)]


def test_only_what_runs_on_a_node_with_host_memory_can_be_suspended() -> None:
    bench = make_bench()
    join(bench)
    opening = bench.granted(memory_mib=1000).grant
    with pytest.raises(Impossible, match="is being opened"):
        bench.pool.lifecycle.suspend(opening.id, "")
    join(bench, swap_mib=0)
    with pytest.raises(Impossible, match="swap_mib"):
        bench.pool.lifecycle.suspend(opening.id, "")
    grant = running(bench, memory_mib=1000)
    with pytest.raises(Impossible, match="swap_mib"):
        bench.pool.lifecycle.suspend(grant.id, "")
    with pytest.raises(Unknown):
        bench.pool.lifecycle.suspend("nobody", "")
    with pytest.raises(Impossible, match="is not suspended"):
        bench.pool.lifecycle.resume(grant.id)


def test_of_a_node_that_is_away_nobody_knows_whether_it_has_host_memory() -> None:
    bench = make_bench()
    join(bench)
    grant = running(bench, memory_mib=1000)
    after = bench.restarted()
    after.pool.nodes["a"].swap_mib = 0  # it is not stored
    with pytest.raises(Impossible, match=r"node a of grant .* is not connected; try later"):
        after.pool.lifecycle.suspend(grant.id, "")


def test_a_suspended_one_stands_in_the_queue_by_priority_and_age() -> None:
    bench = make_bench(ageing_seconds=0.0)
    join(bench)
    grant = running(bench, memory_mib=6000, priority=2)
    suspended(bench, grant)
    busy = running(bench, memory_mib=6000, compute_percent=10)
    bench.pool.lifecycle.resume(grant.id)
    bench.clock.seconds += 5
    assert bench.ask(request_id="low", memory_mib=6000, priority=1, wait_seconds=-1) == "low"
    assert bench.ask(request_id="high", memory_mib=6000, priority=3, wait_seconds=-1) == "high"
    decisions = bench.pool.lifecycle.session_ended("", busy.id, GONE)
    assert list(decisions.answers) == ["high"]
    assert decisions.suspends == []
    high = decisions.answers["high"]
    assert isinstance(high, Granted)
    decisions = bench.pool.lifecycle.session_ended("", high.grant.id, GONE)
    assert decisions.suspends == [SuspendOrder("a", grant.id, resume=True)]
    assert decisions.answers == {}, "who stands behind it waits on"


def test_a_victim_is_suspended_and_comes_back_when_the_other_has_ended() -> None:
    bench = make_bench()
    join(bench)
    victim = running(bench, memory_mib=6000, compute_percent=60)
    decisions = bench.pool.requests.submit(
        GrantRequest("now", memory_mib=6500, compute_percent=90, **URGENT)  # type: ignore[arg-type]
    )
    assert decisions.ends == []
    assert decisions.suspends == [SuspendOrder("a", victim.id, resume=False)]
    answers = bench.pool.lifecycle.suspension("a", out(victim)).answers
    urgent = answers["now"]
    assert isinstance(urgent, Granted)
    decisions = bench.pool.lifecycle.session_ended("", urgent.grant.id, GONE)
    assert decisions.suspends == [SuspendOrder("a", victim.id, resume=True)]


def test_another_victim_is_chosen_where_one_cannot_be_suspended() -> None:
    bench = make_bench()
    join(bench)
    first = running(bench, memory_mib=3000, compute_percent=40)
    bench.clock.seconds += 5
    second = running(bench, memory_mib=3000, compute_percent=40)
    request = GrantRequest("now", memory_mib=3000, compute_percent=40, **URGENT)  # type: ignore[arg-type]
    decisions = bench.pool.requests.submit(request)
    assert [order.grant_id for order in decisions.suspends] == [second.id], "it ran for less long"
    decisions = bench.pool.lifecycle.suspension("a", runs(second, "an endless kernel"))
    assert [order.grant_id for order in decisions.suspends] == [first.id]
    assert decisions.ends == []
    answers = bench.pool.lifecycle.suspension("a", out(first)).answers
    assert isinstance(answers["now"], Granted)


def test_where_nobody_can_be_suspended_the_cheapest_ends() -> None:
    bench = make_bench()
    join(bench)
    grant = running(bench, memory_mib=6000, compute_percent=60)
    request = GrantRequest("now", memory_mib=6000, compute_percent=60, **URGENT)  # type: ignore[arg-type]
    assert bench.pool.requests.submit(request).suspends
    decisions = bench.pool.lifecycle.suspension("a", runs(grant, "the budget is full"))
    assert [order.grant_id for order in decisions.ends] == [grant.id]


def test_on_preempt_end_ends_as_before() -> None:
    bench = make_bench(on_preempt="end")
    join(bench)
    grant = running(bench, memory_mib=6000, compute_percent=60)
    request = GrantRequest("now", memory_mib=6000, compute_percent=60, **URGENT)  # type: ignore[arg-type]
    decisions = bench.pool.requests.submit(request)
    assert [order.grant_id for order in decisions.ends] == [grant.id]
    assert decisions.suspends == []


def test_one_that_is_suspended_for_too_long_is_ended() -> None:
    bench = make_bench(max_suspended_seconds=100)
    join(bench)
    grant = running(bench, memory_mib=1000)
    suspended(bench, grant)
    bench.clock.seconds += 99
    assert bench.pool.expire().ends == []
    bench.clock.seconds += 2
    [order] = bench.pool.expire().ends
    assert order.why.cause is EndCause.SUSPENDED_TOO_LONG
    assert "max_suspended_seconds" in order.why.text
    assert bench.pool.expire().ends == [], "it is told once"


@pytest.mark.parametrize("was_told", [True, False])
def test_a_controller_that_takes_over_goes_on_where_the_last_one_was(was_told: bool) -> None:
    bench = make_bench()
    join(bench)
    grant = running(bench, memory_mib=6000)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    again = bench.restarted()
    known = again.pool.grants[grant.id]
    assert known.suspension is SuspensionState.SUSPENDING
    if was_told:
        join(again, out(known, 7))
        assert known.suspension is SuspensionState.SUSPENDED
        assert known.vgpus[0].memory_mib == 7
        assert known.running_vgpus[0].memory_mib == 6000
    else:
        assert join(again).suspends == [SuspendOrder("a", grant.id, resume=False)]


def test_what_a_node_says_of_itself_is_believed() -> None:
    bench = make_bench()
    join(bench)
    grant = running(bench, memory_mib=6000)
    join(bench, out(grant, 7))
    assert grant.suspension is SuspensionState.RESUMING, "its room was there at once"
    join(bench, out(grant, 7))
    bench.pool.lifecycle.suspension("a", runs(grant))
    assert grant.suspension is SuspensionState.NONE
    suspended(bench, grant)
    join(bench)
    assert grant.suspension is SuspensionState.NONE, "it runs, whoever let it"
    assert grant.vgpus[0].memory_mib == 6000


def test_a_suspended_one_ends_when_it_is_told_to_and_its_end_frees_what_stays() -> None:
    bench = make_bench()
    join(bench)
    grant = running(bench, memory_mib=6000)
    suspended(bench, grant, staying=1000)
    bench.pool.lifecycle.session_ended("", grant.id, GONE)
    assert isinstance(bench.ask(memory_mib=MIB - CONTEXT, compute_percent=100), Granted)


def test_a_suspended_one_keeps_its_sizes_and_takes_no_process() -> None:
    bench = make_bench()
    join(bench)
    job = {"job": "j", "job_domain": "d", "memory_mib": 1000}
    grant = running(bench, **job)
    suspended(bench, grant)
    with pytest.raises(Impossible, match="is suspended"):
        bench.pool.lifecycle.begin_resize(grant.id, 2000, 0)
    assert bench.ask(request_id="second", wait_seconds=-1, **job) == "second", "it waits"
    bench.pool.lifecycle.resume(grant.id)
    answers = bench.pool.lifecycle.suspension("a", runs(grant)).answers
    assert isinstance(answers["second"], Granted)


@pytest.mark.parametrize("waited_before", [True, False])
def test_who_waits_to_join_a_suspended_job_keeps_it_and_others_from_nothing(
    waited_before: bool,
) -> None:
    bench = make_bench(job_sessions=2)
    join(bench)
    job = {"job": "j", "job_domain": "d", "memory_mib": 6000, "compute_percent": 80}
    grant = running(bench, **job)
    if waited_before:  # since before it was suspended: it is being suspended when it asks
        bench.pool.lifecycle.suspend(grant.id, "by a test")
        assert bench.ask(request_id="joins", wait_seconds=-1, **job) == "joins"
        bench.clock.seconds += 1
        bench.pool.lifecycle.suspension("a", out(grant))
    else:
        suspended(bench, grant)
        assert bench.ask(request_id="joins", wait_seconds=-1, **job) == "joins"
    other = bench.ask(memory_mib=6000, compute_percent=50, wait_seconds=-1, request_id="other")
    assert isinstance(other, Granted), "its place is others'"
    bench.pool.lifecycle.session_started(other.session.id, 8, "shm")
    assert bench.pool.lifecycle.resume(grant.id).suspends == []
    decisions = bench.pool.lifecycle.session_ended("", other.grant.id, GONE)
    assert decisions.suspends == [SuspendOrder("a", grant.id, resume=True)]
    answers = bench.pool.lifecycle.suspension("a", runs(grant)).answers
    assert isinstance(answers["joins"], Granted)


RESERVED = {"project": "k8s", "owner_label": "k8s", "mode": Mode.RESERVED}


def reserved(bench: PoolBench, **sizes: int) -> Reservation:
    """Room that is the label's."""
    return bench.reserve("whole", owner_kind=OwnerKind.LABEL, owner="k8s", project="k8s", **sizes)


def taken(bench: PoolBench) -> tuple[int, int]:
    """MiB and percent of the GPU that are used, or kept for somebody."""
    both = [of(GpuKey("a", "a-gpu0")) for of in (bench.pool.usage, bench.pool.kept)]
    return sum(u.memory_mib for u in both), sum(u.compute_percent for u in both)


def test_what_draws_on_a_reservation_frees_room_there_and_nowhere_else() -> None:
    bench = make_bench()
    join(bench)
    bench.pool.limits.set_quota(Quota("k8s", memory_mib=6000))  # what is reserved, and no more
    reserved(bench, memory_mib=6000, compute_percent=60)
    grant = running(bench, memory_mib=6000, compute_percent=60, **RESERVED)
    before = taken(bench)
    wanted = {"memory_mib": 2000, "compute_percent": 20, "wait_seconds": -1}
    assert bench.ask(request_id="theirs", **wanted) == "theirs"
    suspended(bench, grant, staying=100)
    assert taken(bench) == before, "it is its owner's still"
    assert bench.pool.queue.get("theirs"), "and nobody else's"
    own = running(bench, memory_mib=5000, compute_percent=50, **RESERVED)
    assert own.reservation == "whole"
    assert bench.pool.lifecycle.resume(grant.id).suspends == [], "there is no room"
    decisions = bench.pool.lifecycle.session_ended("", own.id, GONE)
    assert decisions.suspends == [SuspendOrder("a", grant.id, resume=True)]
    bench.pool.lifecycle.suspension("a", runs(grant))
    assert [(v.memory_mib, v.compute_percent) for v in grant.vgpus] == [(6000, 60)]
    assert taken(bench) == before


def test_one_on_a_reservation_that_waits_to_go_on_keeps_nobody_of_the_pool_waiting() -> None:
    bench = make_bench()
    join(bench)
    reserved(bench, memory_mib=3000, compute_percent=30)
    grant = running(bench, memory_mib=3000, compute_percent=30, **RESERVED)
    suspended(bench, grant)
    other = running(bench, memory_mib=2000, compute_percent=30, **RESERVED)
    assert other.reservation == "whole", "its context is there still, and no more"
    bench.pool.lifecycle.resume(grant.id)
    assert isinstance(bench.ask(memory_mib=3000, compute_percent=30, wait_seconds=-1), Granted)


def test_a_part_keeps_its_room_while_what_runs_on_it_is_suspended() -> None:
    """So that a platform's scheduler, for which the claim is allocated still, is not wrong."""
    bench = make_bench()
    join(bench)
    reserved(bench, memory_mib=6000, compute_percent=60)
    record = ("part", OwnerKind.LABEL, "claim-1", "k8s", 1, 0, 0, 0, "", bench.clock.wall())
    place = Place(GpuKey("a", "a-gpu0"), 4000, 40)
    bench.pool.parts.keep(Reservation(*record, within="whole"), [place])
    grant = running(bench, **{**RESERVED, "owner_label": "claim-1"})
    assert grant.reservation == "part"
    suspended(bench, grant, staying=100)
    other = Reservation("other", *record[1:2], "claim-2", *record[3:], within="whole")
    with pytest.raises(Impossible, match="2000 MiB and 20 % free there"):
        bench.pool.parts.keep(other, [place])
    assert bench.pool.lifecycle.resume(grant.id).suspends
    bench.pool.lifecycle.suspension("a", runs(grant))
    suspended(bench, grant)
    decisions = bench.pool.parts.give_back("part", "its claim is over")
    assert [order.grant_id for order in decisions.ends] == [grant.id]


def test_what_draws_on_a_reservation_gives_way_to_nobody_of_the_pool() -> None:
    bench = make_bench()
    join(bench)
    reserved(bench, memory_mib=6000, compute_percent=60)
    grant = running(bench, memory_mib=6000, compute_percent=60, **RESERVED)
    bench.ask(request_id="urgent", memory_mib=6000, compute_percent=60, **URGENT)
    assert grant.suspension is SuspensionState.NONE
    assert not grant.ordered_end


def test_one_that_only_its_projects_quota_keeps_waiting_says_so_and_keeps_nobody_waiting() -> None:
    bench = make_bench()
    join(bench)
    bench.pool.limits.set_quota(Quota("small", memory_mib=4000))
    grant = running(bench, memory_mib=3000, project="small")
    suspended(bench, grant, staying=100)
    other = running(bench, memory_mib=3000, project="small")
    assert bench.pool.lifecycle.resume(grant.id).suspends == []
    why = "it waits: project small has a quota memory_mib of 4000, and holds others"
    assert grant.suspension_note == why
    assert isinstance(bench.ask(memory_mib=1000, wait_seconds=0), Granted), "of another project"
    assert bench.pool.lifecycle.session_ended("", other.id, GONE).suspends
    bench.pool.lifecycle.suspension("a", runs(grant))
    assert (grant.suspension, grant.suspension_note) == (SuspensionState.NONE, "")
