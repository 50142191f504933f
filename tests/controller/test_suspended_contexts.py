# SPDX-License-Identifier: Apache-2.0
"""Contexts of suspended grants in the books: gone when the node says so, back before it is told."""

from __future__ import annotations

from typing import Any

import pytest
from ends import GONE
from pool_bench import PoolBench

from sluice.controller.api.suspension_view import suspension_view
from sluice.controller.pool.decisions import Granted
from sluice.controller.pool.grants.suspension import (
    ReportedSuspension,
    SuspendedContexts,
    SuspendOrder,
    SuspensionState,
)
from sluice.controller.pool.model import Event, Gpu, Grant, Node
from sluice.controller.rpc.messages import suspension_of
from sluice.resources.suspended_contexts import TEXTS, ContextPlace, Stays
from sluice.rpc import pool_pb2 as rpc

MIB, CONTEXT, LEFT = 8000, 500, 4
LEAVING = SuspendedContexts(ContextPlace.LEAVING, mib=(CONTEXT,))
OFF = SuspendedContexts(ContextPlace.OFF, mib=(LEFT,))


def joined(**options: Any) -> PoolBench:
    """A pool of one node with one GPU."""
    bench = PoolBench(node_timeout_seconds=1e9, **options)
    node = Node("a", "10.0.0.1", 9960, "1", 4, swap_mib=10_000)
    gpu = Gpu("a", "a-gpu0", "Model", MIB, context_overhead_mib=CONTEXT)
    bench.pool.membership.register(node, [gpu], [], [])
    return bench


def running(bench: PoolBench, **wanted: Any) -> Grant:
    granted = bench.granted(**wanted)
    bench.pool.lifecycle.session_started(granted.session.id, 7, "shm")
    return granted.grant


def says(
    bench: PoolBench, grant: Grant, contexts: SuspendedContexts | None, staying: int = 0
) -> None:
    bench.pool.lifecycle.suspension(
        "a",
        ReportedSuspension(grant.id, suspended=True, staying_mib=(staying,), contexts=contexts),
    )


def suspended(bench: PoolBench, grant: Grant) -> None:
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    says(bench, grant, LEAVING, 100)


def kinds(bench: PoolBench) -> list[str]:
    return [c.kind for c in bench.pool.take_changes() if isinstance(c, Event)]


def booked(grant: Grant) -> tuple[int, int]:
    [vgpu] = grant.vgpus
    return vgpu.memory_mib, vgpu.overhead_mib


def test_its_room_is_free_when_it_has_left_and_not_before() -> None:
    bench = joined()
    grant = running(bench, memory_mib=6000, compute_percent=80)
    suspended(bench, grant)
    assert booked(grant) == (100, CONTEXT)
    rest = MIB - CONTEXT - LEFT  # fits only where the other's context is gone
    assert bench.ask(request_id="waits", memory_mib=rest, wait_seconds=-1) == "waits"
    decisions = bench.pool.lifecycle.suspension(
        "a", ReportedSuspension(grant.id, suspended=True, staying_mib=(0,), contexts=OFF)
    )
    assert isinstance(decisions.answers["waits"], Granted)
    assert booked(grant) == (0, LEFT)
    assert kinds(bench).count("grant.contexts_off") == 1
    says(bench, grant, OFF)
    assert "grant.contexts_off" not in kinds(bench), "it is told of once"


def test_all_of_it_is_booked_again_before_it_is_told_to_come_back() -> None:
    bench = joined()
    grant = running(bench, memory_mib=6000, compute_percent=80)
    suspended(bench, grant)
    says(bench, grant, OFF)
    # beside what it has when it runs there would be room for this one, but for its context
    other = running(bench, memory_mib=MIB - 6000 - 2 * CONTEXT + 1, compute_percent=10)
    assert bench.pool.lifecycle.resume(grant.id).suspends == []
    decisions = bench.pool.lifecycle.session_ended("", other.id, GONE)
    assert decisions.suspends == [SuspendOrder("a", grant.id, resume=True)]
    assert booked(grant) == (6000, CONTEXT)
    bench.pool.lifecycle.suspension("a", ReportedSuspension(grant.id, suspended=False))
    assert (grant.suspension, grant.contexts) == (SuspensionState.NONE, None)


def test_one_that_could_not_come_back_is_booked_as_its_node_says() -> None:
    bench = joined()
    grant = running(bench, memory_mib=6000)
    suspended(bench, grant)
    says(bench, grant, OFF)
    bench.pool.lifecycle.resume(grant.id)
    report = ReportedSuspension(
        grant.id, suspended=True, error="no place", staying_mib=(100,), contexts=LEAVING
    )
    bench.pool.lifecycle.suspension("a", report)
    assert booked(grant) == (100, CONTEXT), "it is on the GPU again"
    says(bench, grant, OFF)
    assert booked(grant) == (0, LEFT)


@pytest.mark.parametrize("mib", [(), (CONTEXT * 100,), (0, 0, 0)])
def test_what_a_node_says_of_contexts_is_never_more_than_they_take(mib: tuple[int, ...]) -> None:
    bench = joined()
    grant = running(bench, memory_mib=6000)
    suspended(bench, grant)
    says(bench, grant, SuspendedContexts(ContextPlace.OFF, mib=mib))
    assert booked(grant)[1] <= CONTEXT


def test_one_that_ends_gives_back_what_was_booked_and_no_more() -> None:
    bench = joined()
    grant = running(bench, memory_mib=6000)
    suspended(bench, grant)
    says(bench, grant, OFF)
    bench.pool.lifecycle.session_ended("", grant.id, GONE)
    assert isinstance(bench.ask(memory_mib=MIB - CONTEXT), Granted)


def test_a_job_of_which_a_session_ends_meanwhile_is_booked_no_higher() -> None:
    bench = joined()
    job = {"job": "j", "job_domain": "d", "memory_mib": 4000}
    grant = running(bench, request_id="one", **job)
    second = bench.granted(request_id="two", **job)
    bench.pool.lifecycle.session_started(second.session.id, 8, "shm")
    assert booked(grant)[1] == 2 * CONTEXT
    suspended(bench, grant)
    says(bench, grant, SuspendedContexts(ContextPlace.OFF, mib=(2 * LEFT,)))
    bench.pool.lifecycle.session_ended(second.session.id, grant.id, GONE)
    assert booked(grant)[1] == 2 * LEFT
    bench.pool.lifecycle.resume(grant.id)
    assert booked(grant) == (4000, CONTEXT), "of the one that is left"


def test_where_memory_is_promised_twice_its_server_is_told_so() -> None:
    bench = joined(memory_oversubscription=2.0)
    node = Node("a", "10.0.0.1", 9960, "1", 4, swap_mib=10_000)
    gpu = Gpu("a", "a-gpu0", "Model", MIB, context_overhead_mib=CONTEXT)
    bench.pool.membership.register(node, [gpu], [], [])
    grant = running(bench, memory_mib=6000)
    [order] = bench.pool.lifecycle.suspend(grant.id, "by a test").suspends
    assert order == SuspendOrder("a", grant.id, resume=False, promised=True)


def test_what_is_shown_has_the_reason_as_a_word_and_in_words() -> None:
    bench = joined()
    grant = running(bench, memory_mib=6000)
    suspended(bench, grant)
    says(bench, grant, SuspendedContexts(ContextPlace.STAYS, Stays.COMMUNICATOR, "session s"))
    view = suspension_view(grant)
    assert view
    assert (view.context, view.context_stays) == ("stays", "communicator")
    assert view.context_note == f"{TEXTS[Stays.COMMUNICATOR]} (session s)"
    says(bench, grant, None)
    older = suspension_view(grant)
    assert older
    assert (older.context, older.context_stays, older.context_note) == (None, "", "")
    assert booked(grant)[1] == CONTEXT


def test_what_a_newer_server_says_is_as_far_as_it_is_known() -> None:
    told = rpc.GrantSuspension(grant_id="g", state="suspended", context="elsewhere")
    assert suspension_of(told).contexts is None
    told = rpc.GrantSuspension(
        grant_id="g", state="suspended", context="stays", context_why="the moon",
        context_note="x" * 10_000,
    )  # fmt: skip
    contexts = suspension_of(told).contexts
    assert contexts
    assert contexts.why is Stays.NONE
    assert len(contexts.note) == 500
