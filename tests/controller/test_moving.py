# SPDX-License-Identifier: Apache-2.0
"""Grants that go on on another GPU of their node, in the books: who may, where, and what fails."""

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
    kinds,
    off,
    resumed,
    running,
    says,
)
from pool_bench import PoolBench

from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.grants.suspension import (
    SuspendedContexts,
    SuspendOrder,
    SuspensionState,
)
from sluice.controller.pool.impossible import Impossible, Over
from sluice.controller.pool.model import Gpu, GpuKey, GpuMode, Node, Sharing
from sluice.controller.rpc.messages import suspension_of
from sluice.resources.suspended_contexts import ContextPlace, Stays
from sluice.rpc import pool_pb2 as rpc


def test_one_that_runs_is_suspended_booked_on_the_other_and_resumed_there() -> None:
    bench = joined()
    grant = running(bench, memory_mib=6000, compute_percent=50)
    decisions = bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")
    assert decisions.suspends == [SuspendOrder("a", grant.id, resume=False)]
    assert says(bench, grant, LEAVING, at="a-gpu0").suspends == [], "its context is there yet"
    there = 6000 + CONTEXT
    assert booked(bench) == {"a-gpu0": there, "a-gpu1": 0, "a-gpu2": there}, "until it is decided"
    assert says(bench, grant, off(*ALL[1:]), at="a-gpu0").suspends == resumed(grant, "a-gpu2")
    assert booked(bench) == {"a-gpu0": LEFT, "a-gpu1": 0, "a-gpu2": 6000 + CONTEXT}, "it goes"
    assert grant.suspension is SuspensionState.RESUMING
    says(bench, grant, at="a-gpu2", suspended=False)
    assert (grant.suspension, grant.moving_to) == (SuspensionState.NONE, "")
    assert [vgpu.gpu_uuid for vgpu in grant.vgpus] == ["a-gpu2"]
    assert booked(bench)["a-gpu0"] == 0, "and now it is gone"
    assert grant.vgpus[0].compute_percent == 50
    assert kinds(bench)[-2:] == ["grant.resumed", "grant.moved"]


def test_a_controller_with_a_new_store_learns_where_a_move_has_ended() -> None:
    """It was told of the grant while an order that it knows nothing of was under way."""
    bench = joined()
    grant = running(bench, memory_mib=6000, compute_percent=50)
    says(bench, grant, at="a-gpu2", suspended=False)
    assert booked(bench) == {"a-gpu0": 0, "a-gpu1": 0, "a-gpu2": 6000 + CONTEXT}
    assert grant.suspension is SuspensionState.NONE


def test_without_a_name_it_goes_to_the_fullest_that_has_room() -> None:
    bench = joined()
    grant = running(bench, memory_mib=3000, compute_percent=10)
    for uuid, mib in (("a-gpu1", 2000), ("a-gpu2", 6000)):
        other = running(bench, memory_mib=mib, compute_percent=10)
        bench.pool._ledger.rebook(
            other,
            tuple(
                type(v)(uuid, v.memory_mib, v.compute_percent, v.overhead_mib) for v in other.vgpus
            ),
        )
    bench.pool.lifecycle.move(grant.id, "", "by a test")
    assert grant.moving_to == "a-gpu1"


@pytest.mark.parametrize(
    ("uuid", "why"),
    [
        ("a-gpu0", "is on GPU a:a-gpu0 already"),
        ("a-gpu9", "node a has no GPU a-gpu9"),
        ("a-gpu1", "is N with 8000 MiB, and grant"),
        ("a-gpu2", "has 500 MiB and 20 % free, and grant"),
    ],
)
def test_where_it_cannot_go_is_said_before_it_is_suspended(uuid: str, why: str) -> None:
    bench = joined(models=("M", "N", "M"))
    grant = running(bench, memory_mib=6000, compute_percent=80)
    running(bench, memory_mib=MIB - 2 * CONTEXT, compute_percent=80, gpu_model="M")
    with pytest.raises(Impossible, match=why):
        bench.pool.lifecycle.move(grant.id, uuid, "by a test")
    with pytest.raises(Impossible, match="no other GPU of node a has room"):
        bench.pool.lifecycle.move(grant.id, "", "by a test")
    assert (grant.suspension, grant.moving_to) == (SuspensionState.NONE, "")


def test_a_gpu_that_takes_nothing_new_or_is_promised_twice_is_refused() -> None:
    bench = joined()
    grant = running(bench, memory_mib=3000)
    bench.pool.switching.switch_gpu(GpuKey("a", "a-gpu1"), GpuMode.DRAINED)
    with pytest.raises(Impossible, match="takes nothing new: it is drained"):
        bench.pool.lifecycle.move(grant.id, "a-gpu1", "by a test")
    bench = joined(memory_oversubscription=1.5)
    grant = running(bench, memory_mib=3000)
    with pytest.raises(Impossible, match="promised more than once"):
        bench.pool.lifecycle.move(grant.id, "a-gpu1", "by a test")


def test_who_never_moves_is_told_why() -> None:
    bench = joined(moves=False)
    grant = running(bench, memory_mib=3000)
    with pytest.raises(Impossible, match=r"set \[suspend\] movable = on"):
        bench.pool.lifecycle.move(grant.id, "a-gpu1", "by a test")
    bench = joined()
    grant = running(bench, memory_mib=3000, count=2)
    with pytest.raises(Impossible, match="on several GPUs"):
        bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")
    bench.pool.lifecycle.session_ended("", grant.id, GONE)
    with pytest.raises(Over):
        bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")


def test_a_job_moves_with_the_contexts_of_all_its_processes() -> None:
    bench = joined()
    job = {"job": "j", "job_domain": "d", "memory_mib": 3000, "compute_percent": 10}
    grant = running(bench, request_id="one", **job)
    second = bench.granted(request_id="two", **job)
    bench.pool.lifecycle.session_started(second.session.id, 8, "shm")
    bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")
    off_both = SuspendedContexts(ContextPlace.OFF, mib=(2 * LEFT,), moves_to=ALL[1:])
    says(bench, grant, LEAVING, at="a-gpu0")
    assert says(bench, grant, off_both, at="a-gpu0").suspends == resumed(grant, "a-gpu2")
    assert booked(bench) == {"a-gpu0": 2 * LEFT, "a-gpu1": 0, "a-gpu2": 3000 + 2 * CONTEXT}
    says(bench, grant, at="a-gpu2", suspended=False)
    assert grant.suspension is SuspensionState.NONE
    bench.pool.lifecycle.session_ended("", grant.id, GONE)


def test_one_that_runs_at_once_with_others_stays() -> None:
    bench = PoolBench(node_timeout_seconds=1e9)
    node = Node(
        "a", "10.0.0.1", 9960, "1", 4, swap_mib=10_000, moves_sessions=True, concurrent=True
    )
    gpus = [Gpu("a", uuid, "M", MIB, context_overhead_mib=CONTEXT) for uuid in ALL]
    bench.pool.membership.register(node, gpus, [], [])
    grant = running(bench, memory_mib=3000, sharing=Sharing.CONCURRENT, compute_percent=50)
    with pytest.raises(Impossible, match="MPS"):
        bench.pool.lifecycle.move(grant.id, "a-gpu1", "by a test")


@pytest.mark.parametrize(
    "contexts",
    [
        off(why="other processes may have memory of it open"),
        SuspendedContexts(ContextPlace.STAYS, Stays.COMMUNICATOR, mib=(CONTEXT,), moves_not="NCCL"),
        off("a-gpu1"),
    ],
)
def test_what_its_server_does_not_move_goes_on_where_it_is_with_the_reason(
    contexts: SuspendedContexts,
) -> None:
    bench = joined()
    grant = running(bench, memory_mib=3000)
    bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")
    says(bench, grant, LEAVING, at="a-gpu0")
    assert says(bench, grant, contexts, at="a-gpu0").suspends == (resumed(grant, "a-gpu0"))
    assert "grant.not_moved" in kinds(bench)
    assert booked(bench)["a-gpu2"] == 0


def test_room_that_was_lost_meanwhile_brings_it_back_where_it_was() -> None:
    """Its VM is paused on the way, and it keeps nobody from its place."""
    bench = joined()
    grant = running(bench, memory_mib=3000, compute_percent=10)
    bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")
    says(bench, grant, LEAVING, at="a-gpu0")
    bench.pool.lifecycle.guest_standing("a", grant.id, paused=True)
    for mib in (4000, 4000, MIB - CONTEXT):
        running(bench, memory_mib=mib, compute_percent=10)
    says(bench, grant, off(*ALL[1:]), at="a-gpu0")
    decisions = bench.pool.lifecycle.guest_standing("a", grant.id, paused=False)
    assert decisions.suspends == resumed(grant, "a-gpu0")
    assert "grant.not_moved" in kinds(bench)


def test_a_move_that_failed_is_booked_where_its_server_says_that_it_is() -> None:
    bench = joined()
    grant = running(bench, memory_mib=3000)
    bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")
    says(bench, grant, LEAVING, at="a-gpu0")
    says(bench, grant, off(*ALL[1:]), at="a-gpu0")
    says(bench, grant, off(*ALL[1:]), at="a-gpu0", error="no room")
    assert (grant.suspension, grant.suspension_note) == (SuspensionState.SUSPENDED, "no room")
    assert booked(bench) == {"a-gpu0": LEFT, "a-gpu1": 0, "a-gpu2": 0}
    bench.clock.seconds += 20
    assert bench.pool.expire().suspends == resumed(grant, "a-gpu0"), "and it comes back"


def test_an_order_that_was_lost_is_given_again_as_it_was() -> None:
    bench = joined()
    grant = running(bench, memory_mib=3000)
    bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")
    says(bench, grant, LEAVING, at="a-gpu0")
    says(bench, grant, off(*ALL[1:]), at="a-gpu0")
    again = says(bench, grant, off(*ALL[1:]), at="a-gpu0")
    assert again.suspends == resumed(grant, "a-gpu2")
    assert booked(bench)["a-gpu2"] == 3000 + CONTEXT, "its room is kept"


def test_one_that_moved_while_nobody_heard_is_booked_where_it_is() -> None:
    """Its server was restarted when the driver had restored it, and it is off again there."""
    bench = joined()
    grant = running(bench, memory_mib=3000)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    says(bench, grant, off(*ALL[1:]), at="a-gpu0")
    says(bench, grant, off("a-gpu0", "a-gpu2"), at="a-gpu1")
    assert booked(bench) == {"a-gpu0": 0, "a-gpu1": LEFT, "a-gpu2": 0}
    says(bench, grant, off("a-gpu0"), at="a-gpu77")
    assert booked(bench)["a-gpu1"] == LEFT, "a GPU that its node does not have is nonsense"


def test_where_its_gpu_is_taken_it_comes_back_on_another_that_it_can_be_restored_on() -> None:
    bench = joined()
    grant = running(bench, memory_mib=6000, compute_percent=10)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    says(bench, grant, off("a-gpu2"), at="a-gpu0")
    taker = running(bench, memory_mib=MIB - CONTEXT - LEFT, compute_percent=10)
    assert taker.vgpus[0].gpu_uuid == "a-gpu0"
    decisions = bench.pool.lifecycle.resume(grant.id)
    assert decisions.suspends == resumed(grant, "a-gpu2"), "a-gpu1 it does not see"
    assert booked(bench)["a-gpu2"] == 6000 + CONTEXT


def test_one_whose_context_stays_waits_for_its_own() -> None:
    bench = joined()
    grant = running(bench, memory_mib=6000, compute_percent=10)
    bench.pool.lifecycle.suspend(grant.id, "by a test")
    stays = SuspendedContexts(ContextPlace.STAYS, Stays.COMMUNICATOR, mib=(CONTEXT,))
    says(bench, grant, stays, at="a-gpu0")
    running(bench, memory_mib=MIB - 2 * CONTEXT, compute_percent=10)
    assert bench.pool.lifecycle.resume(grant.id).suspends == []
    with pytest.raises(Impossible, match="cannot be moved"):
        bench.pool.lifecycle.move(grant.id, "a-gpu2", "by a test")


def test_a_gpu_that_is_drained_is_left_and_what_does_not_move_is_tried_once() -> None:
    bench = joined()
    moves = running(bench, memory_mib=2000, compute_percent=10)
    stays = running(bench, memory_mib=2000, compute_percent=10)
    assert {moves.vgpus[0].gpu_uuid, stays.vgpus[0].gpu_uuid} == {"a-gpu0"}
    decisions = bench.pool.switching.switch_gpu(GpuKey("a", "a-gpu0"), GpuMode.DRAINED)
    assert {order.grant_id for order in decisions.suspends} == {moves.id, stays.id}
    says(bench, moves, off(*ALL[1:]), at="a-gpu0")
    says(bench, moves, at=moves.vgpus[0].gpu_uuid, suspended=False)
    assert moves.vgpus[0].gpu_uuid != "a-gpu0"
    says(bench, stays, off(why="no"), at="a-gpu0")
    again = says(bench, stays, at="a-gpu0", suspended=False)
    bench.clock.seconds += 100
    assert [*again.suspends, *bench.pool.expire().suspends] == [], "it is waited for"


@pytest.mark.parametrize(
    "contexts",
    [
        SuspendedContexts(ContextPlace.STAYS, Stays.RESTARTED, mib=(CONTEXT,), moves_not="restart"),
        SuspendedContexts(ContextPlace.UNKNOWN, Stays.RESTARTED, mib=(CONTEXT,), moves_not="?"),
    ],
)
def test_one_whose_server_was_restarted_in_the_middle_is_tried_for_the_drain_again(
    contexts: SuspendedContexts,
) -> None:
    bench = joined()
    grant = running(bench, memory_mib=2000, compute_percent=10)
    bench.pool.switching.switch_gpu(GpuKey("a", "a-gpu0"), GpuMode.DRAINED)
    assert says(bench, grant, contexts, at="a-gpu0").suspends == resumed(grant, "a-gpu0")
    again = says(bench, grant, at="a-gpu0", suspended=False)
    bench.clock.seconds += 100
    again = Decisions(suspends=[*again.suspends, *bench.pool.expire().suspends])
    assert again.suspends == [SuspendOrder("a", grant.id, resume=False)]


def test_what_a_server_says_is_read_with_bounds() -> None:
    message = rpc.GrantSuspension(
        grant_id="g",
        state="suspended",
        context="off",
        gpu_uuids=["x"],
        moves_to=["y"],
        moves_not="z" * 100_000,
    )
    report = suspension_of(message)
    assert report.gpu_uuids == ("x",)
    assert report.contexts
    assert report.contexts.moves_to == ("y",)
    assert len(report.contexts.moves_not) < 10_000
