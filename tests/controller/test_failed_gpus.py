# SPDX-License-Identifier: Apache-2.0
"""A GPU fails from which suspended grants are off: they stay, and come back elsewhere, or wait."""

from __future__ import annotations

import pytest
from moving_bench import ALL, CONTEXT, LEFT, booked, joined, off, resumed, running, says
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.grants.suspension import SuspendedContexts, SuspensionState
from sluice.controller.pool.model import GpuKey, GpuMode, Grant
from sluice.resources.suspended_contexts import ContextPlace, Stays

XID = "XID 79, the GPU has fallen off the bus; reset it"


def fails(bench: PoolBench, fault: str = XID, gpu: str = "a-gpu0") -> Decisions:
    return bench.pool.membership.gpu_condition(GpuKey("a", gpu), fault, "", "")


def suspended(
    contexts: SuspendedContexts, *, staying_mib: int = 0, **wanted: object
) -> tuple[PoolBench, Grant]:
    bench = joined(**wanted)  # type: ignore[arg-type]
    grant = running(bench, memory_mib=3000, compute_percent=10)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    says(bench, grant, contexts, at="a-gpu0", staying_mib=(staying_mib,))
    return bench, grant


def test_one_that_is_off_stays_suspended_and_comes_back_on_another() -> None:
    bench, grant = suspended(off(*ALL[1:]))
    other = running(bench, memory_mib=3000, compute_percent=10)
    assert other.vgpus[0].gpu_uuid == "a-gpu0"
    assert [order.grant_id for order in fails(bench).ends] == [other.id], "what runs there ends"
    assert grant.suspension is SuspensionState.SUSPENDED
    assert "its GPU a-gpu0 has failed (XID 79, the GPU has fallen off" in grant.suspension_note
    decisions = bench.pool.lifecycle.resume(grant.id)
    assert [o.gpu_uuid for o in decisions.suspends] in (["a-gpu1"], ["a-gpu2"])
    there = decisions.suspends[0].gpu_uuid
    assert says(bench, grant, at=there, suspended=False).ends == []
    assert (grant.suspension, grant.suspension_note) == (SuspensionState.NONE, "")
    assert booked(bench)[there] == 3000 + CONTEXT


def test_one_that_is_to_come_back_does_so_as_its_gpu_fails() -> None:
    """By itself: it waited for room where it was."""
    bench, grant = suspended(off("a-gpu1"))
    bench.pool.membership.gpu_condition(GpuKey("a", "a-gpu1"), "", "it is checked", "")
    running(bench, memory_mib=8000 - CONTEXT - LEFT, compute_percent=10)
    assert bench.pool.lifecycle.resume(grant.id).suspends == []
    bench.pool.switching.switch_gpu(GpuKey("a", "a-gpu0"), GpuMode.DRAINED)
    fails(bench)
    well = bench.pool.membership.gpu_condition(GpuKey("a", "a-gpu1"), "", "", "")
    assert well.suspends == resumed(grant, "a-gpu1")


@pytest.mark.parametrize(
    ("contexts", "moves", "why"),
    [
        (off(why="[suspend] movable of its node is off"), True, "movable of its node is off"),
        (off(), False, r"node a moves no sessions"),
        (off("a-gpu1"), True, "no other GPU has room for it"),
    ],
)
def test_where_it_cannot_go_anywhere_it_waits_with_the_reason(
    contexts: SuspendedContexts, moves: bool, why: str
) -> None:
    bench, grant = suspended(contexts, moves=moves, max_suspended_seconds=1000)
    fails(bench, gpu="a-gpu1")
    fails(bench)
    assert bench.pool.lifecycle.resume(grant.id).suspends == []
    assert grant.suspension is SuspensionState.SUSPENDED
    assert "its GPU a-gpu0 has failed (XID 79, the GPU has fallen off the bus), and" in (
        grant.suspension_note
    )
    assert why in grant.suspension_note
    assert fails(bench, "").suspends == resumed(grant, "a-gpu0" if moves else ""), "well again"


def test_it_is_ended_when_that_lasts_too_long() -> None:
    bench, grant = suspended(off(why="no"), max_suspended_seconds=1000)
    fails(bench)
    bench.clock.seconds += 1001
    assert [order.grant_id for order in bench.pool.expire().ends] == [grant.id]


@pytest.mark.parametrize(
    ("contexts", "staying_mib"),
    [
        (SuspendedContexts(ContextPlace.STAYS, Stays.COMMUNICATOR, mib=(CONTEXT,)), 0),
        (SuspendedContexts(ContextPlace.LEAVING, mib=(CONTEXT,)), 0),
        (off("a-gpu1"), 20),
        (None, 0),
    ],
)
def test_of_what_something_is_there_it_ends(
    contexts: SuspendedContexts | None, staying_mib: int
) -> None:
    """Its context; memory that others have open; an older server's, which says nothing of it."""
    bench, grant = suspended(contexts, staying_mib=staying_mib)  # type: ignore[arg-type]
    assert [order.grant_id for order in fails(bench).ends] == [grant.id]


def test_one_of_which_nobody_knows_where_it_is_is_decided_when_its_server_says() -> None:
    unknown = SuspendedContexts(ContextPlace.UNKNOWN, Stays.RESTARTED, mib=(CONTEXT,))
    for contexts, ends in ((off("a-gpu1"), False), (None, True)):
        bench, grant = suspended(unknown)
        assert fails(bench).ends == []
        there = contexts or SuspendedContexts(ContextPlace.STAYS, Stays.FAILED, mib=(CONTEXT,))
        told = says(bench, grant, there, at="a-gpu0")
        assert [order.grant_id for order in told.ends] == [grant.id] * ends


def test_one_that_arrives_on_a_gpu_that_failed_meanwhile_ends() -> None:
    bench, grant = suspended(off(*ALL[1:]))
    bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")
    assert fails(bench, gpu="a-gpu2").ends == [], "its server may not have brought it there"
    refused = says(bench, grant, off(*ALL[1:]), at="a-gpu0", error="GPU a-gpu2: it has failed")
    assert (refused.ends, grant.suspension) == ([], SuspensionState.SUSPENDED)
    bench.clock.seconds += 20
    assert bench.pool.expire().suspends == resumed(grant, "a-gpu0")
    assert fails(bench).ends == []
    told = says(bench, grant, at="a-gpu0", suspended=False)
    assert [order.grant_id for order in told.ends] == [grant.id], "it was brought there"
