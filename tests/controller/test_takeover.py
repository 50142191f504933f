# SPDX-License-Identifier: Apache-2.0
"""What was ended, resized or answered while somebody was away: chaos runs found these cases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from ends import BY_OPERATOR, GAVE_WAY, GONE
from pool_bench import PoolBench

from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import EndOrder, Granted, GrantRequest, Refused, Waiting
from sluice.controller.pool.model import (
    Change,
    GpuKey,
    GrantState,
    Node,
    Quota,
    Session,
    SessionState,
    Vgpu,
)
from sluice.controller.pool.pool import NODE_LOST, ReportedSession, Snapshot
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.rpc.server_link import ServerLink
from sluice.controller.store.group_commit import GroupCommit
from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc

GPU = GpuKey("a", "a-gpu0")


def runs(granted: Granted, *, percent: int | None = None) -> ReportedSession:
    """What a server reports that runs it."""
    session = replace(granted.session, state=SessionState.RUNNING)
    vgpus = tuple(
        Vgpu(v.gpu_uuid, v.memory_mib, percent or v.compute_percent) for v in granted.grant.vgpus
    )
    return ReportedSession(session, vgpus, granted.grant.request_id, granted.grant.priority)


def register(bench: PoolBench, *reports: ReportedSession) -> Any:
    gpus = [gpu for gpu in bench.pool.gpus.values() if gpu.node == "a"]
    return bench.pool.membership.register(Node("a", "x", 1, "1", 4), gpus, reports)


def snapshot(bench: PoolBench) -> Snapshot:
    pool = bench.pool
    return Snapshot(
        [replace(node) for node in pool.nodes.values()],
        list(pool.gpus.values()),
        [replace(grant) for grant in pool.grants.values()],
        [replace(session) for session in pool.sessions.values()],
    )


def test_what_was_ended_while_its_node_was_away_keeps_its_room_until_it_is_gone(
    bench: PoolBench,
) -> None:
    bench.node("a", 8000)
    old = bench.granted(compute_percent=100)
    bench.pool.membership.disconnected("a")
    bench.pool.lifecycle.release(old.grant.id, BY_OPERATOR)
    assert bench.ask(request_id="x", compute_percent=100, wait_seconds=-1) == "x"
    decisions = register(bench, runs(old))
    assert decisions.ends == [EndOrder("a", old.grant.id, BY_OPERATOR)]
    assert "x" not in decisions.answers, "it still runs"
    assert bench.pool.usage(GPU).compute_percent == 100
    ended = bench.pool.lifecycle.session_ended(old.session.id, old.grant.id, BY_OPERATOR)
    assert isinstance(ended.answers["x"], Granted)
    assert bench.pool.grants[old.grant.id].reason == "ended by the operator"


def test_an_end_that_was_ordered_is_ordered_by_the_next_controller_too(
    bench: PoolBench, make_bench: Callable[..., PoolBench]
) -> None:
    bench.node("a", 8000)
    old = bench.granted()
    assert bench.pool.lifecycle.end_soon(old.grant.id, BY_OPERATOR).ends
    after = make_bench(snapshot=snapshot(bench))
    assert register(after, runs(old)).ends == [EndOrder("a", old.grant.id, BY_OPERATOR)]
    after.clock.seconds += 31
    after.pool.expire()
    assert after.pool.grants[old.grant.id].reason == NODE_LOST
    [order] = register(after, runs(old)).ends
    assert order.why == BY_OPERATOR, "its node's loss does not undo it"


def test_the_words_alone_are_no_loss(bench: PoolBench) -> None:
    bench.node("a", 8000)
    old = bench.granted()
    bench.pool.lifecycle.session_ended(
        old.session.id, old.grant.id, End(EndCause.NODE_LOST, NODE_LOST)
    )
    assert not bench.pool.grants[old.grant.id].lost
    [order] = register(bench, runs(old)).ends
    assert order.why.text == NODE_LOST, "somebody said so, and it is over"


def test_a_loss_that_a_store_of_release_0_1_has_only_in_words_is_one(
    bench: PoolBench, make_bench: Callable[..., PoolBench]
) -> None:
    bench.node("a", 8000)
    old = bench.granted()
    bench.clock.seconds += 31
    bench.pool.expire()
    stored = snapshot(bench)
    for grant in stored.grants:
        assert grant.lost
        grant.lost = False
    after = make_bench(snapshot=stored)
    assert not register(after, runs(old)).ends
    assert after.pool.grants[old.grant.id].state is GrantState.LIVE


def test_who_preempts_waits_for_what_ends_already_and_ends_nothing_more(
    bench: PoolBench, make_bench: Callable[..., PoolBench]
) -> None:
    bench.node("a", 8000, 8000)
    bench.pool.limits.set_quota(Quota("default", may_preempt=True))
    victims = [bench.granted(compute_percent=100) for _ in range(2)]
    wanted = {"request_id": "x", "compute_percent": 100, "priority": 1, "preempt": True}
    assert bench.ask(**wanted, wait_seconds=-1) == "x"
    [first] = [v for v in victims if v.grant.ending]
    after = make_bench(snapshot=snapshot(bench))
    after.pool.limits.set_quota(Quota("default", may_preempt=True))
    register(after, *(runs(victim) for victim in victims))
    assert after.ask(**wanted, wait_seconds=-1) == "x"
    ending = [grant.id for grant in after.pool.grants.values() if grant.ending]
    assert ending == [first.grant.id]
    answers = after.pool.lifecycle.session_ended(first.session.id, first.grant.id, GAVE_WAY).answers
    assert isinstance(answers["x"], Granted)


def test_a_resize_whose_outcome_is_not_known_is_what_the_server_says(bench: PoolBench) -> None:
    bench.node("a", 8000)
    granted = bench.granted(compute_percent=30)
    pool = bench.pool
    pool.lifecycle.begin_resize(granted.grant.id, 0, 60)
    register(bench, runs(granted, percent=30))
    assert bench.pool.usage(GPU).compute_percent == 60, "the order may still come to it"
    pool.lifecycle.finish_resize(granted.grant.id, "no answer", known=False)
    assert bench.pool.usage(GPU).compute_percent == 60, "the server may run with it"
    assert isinstance(bench.ask(compute_percent=50), Refused)
    register(bench, runs(granted, percent=30))
    assert bench.pool.usage(GPU).compute_percent == 30
    register(bench, runs(granted, percent=60))
    assert bench.pool.usage(GPU).compute_percent == 60


def test_a_resize_that_the_last_controller_did_not_finish_is_mended(
    bench: PoolBench, make_bench: Callable[..., PoolBench]
) -> None:
    bench.node("a", 8000)
    granted = bench.granted(compute_percent=30)
    bench.pool.lifecycle.begin_resize(granted.grant.id, 0, 60)
    after = make_bench(snapshot=snapshot(bench))
    assert after.pool.usage(GPU).compute_percent == 60
    register(after, runs(granted, percent=30))
    assert after.pool.usage(GPU).compute_percent == 30


class SlowStore:
    """Keeps nothing, and only when it is let."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()

    def commit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        async def later() -> None:
            await self.goes_on.wait()

        return asyncio.ensure_future(later())


async def first_answer(asked: AsyncIterator[Waiting | Granted | Refused]) -> Granted | Refused:
    async for answer in asked:
        if isinstance(answer, Granted | Refused):
            return answer
    raise AssertionError


async def test_a_request_asked_again_while_its_grant_is_stored_is_answered_then_and_keeps_it(
    bench: PoolBench,
) -> None:
    bench.node("a", 8000)
    goes_on = asyncio.Event()

    async def write(_: list[Change]) -> None:
        await goes_on.wait()

    store = GroupCommit(write, 100)
    grant_service = GrantService(bench.pool, store)  # type: ignore[arg-type]
    request = GrantRequest("x", wait_seconds=-1)
    lost = asyncio.create_task(first_answer(grant_service.request(request)))
    await asyncio.sleep(0.01)
    assert bench.pool.requests.node_of("x"), "decided, and not stored"
    again = asyncio.create_task(first_answer(grant_service.request(request)))
    await asyncio.sleep(0.01)
    assert not again.done(), "nobody is told of what is not stored"
    goes_on.set()
    answer = await again
    await store.drain()
    assert isinstance(answer, Granted)
    assert bench.pool.grants[answer.grant.id].state is GrantState.LIVE
    with pytest.raises(asyncio.CancelledError):
        await lost


async def test_a_request_asked_again_while_its_first_answer_was_stored_is_not_refused(
    bench: PoolBench,
) -> None:
    bench.node("a", 8000)
    store = SlowStore()
    grant_service = GrantService(bench.pool, store)  # type: ignore[arg-type]
    request = GrantRequest("x", wait_seconds=-1)
    first = asyncio.create_task(first_answer(grant_service.request(request)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.pool.requests.node_of("x"), "decided, and not stored"
    first.cancel()  # its call broke
    await asyncio.sleep(0)
    again = asyncio.create_task(first_answer(grant_service.request(request)))
    await asyncio.sleep(0.05)
    store.goes_on.set()
    answer = await asyncio.wait_for(again, 10)
    assert isinstance(answer, Granted), answer
    assert answer.grant.state is GrantState.LIVE
    live = [g for g in bench.pool.grants.values() if g.state is GrantState.LIVE]
    assert live == [answer.grant]


async def test_an_inventory_that_crosses_an_assignment_does_not_end_it(bench: PoolBench) -> None:
    bench.node("a", 8000)
    store = SlowStore()
    store.goes_on.set()
    service = PoolService(GrantService(bench.pool, store), 5)  # type: ignore[arg-type]
    link = ServerLink()
    granted = bench.granted(channel="tcp", request_id="x")
    service.under_way.add("x")
    gpus = [rpc.Gpu(uuid="a-gpu0", model="Model", memory_mib=8000)]
    await service._register(rpc.Inventory(node="a", vgpu_count=4, gpus=gpus), link)
    assert granted.grant.state is GrantState.LIVE
    service.under_way.clear()
    await service._register(rpc.Inventory(node="a", vgpu_count=4, gpus=gpus), link)
    assert granted.grant.state is GrantState.ENDED, "it has been told of it, and has it no more"


def test_a_session_of_a_job_that_is_adopted_to_be_ended_does_not_take_the_jobs_place(
    bench: PoolBench,
) -> None:
    bench.node("a", 8000)
    job = {"job": "j", "job_domain": "d", "memory_mib": 1000, "compute_percent": 10}
    old = bench.granted(**job)
    bench.pool.lifecycle.release(old.grant.id, BY_OPERATOR)
    new = bench.granted(**job)
    report = runs(old)
    register(bench, replace(report, job="j", job_domain="d"), runs(new))
    joined = bench.granted(**job)
    assert joined.grant.id == new.grant.id
    bench.pool.lifecycle.session_ended(old.session.id, old.grant.id, GONE)
    assert bench.pool.grants[old.grant.id].state is GrantState.ENDED
    assert bench.granted(**job).grant.id == new.grant.id


def test_opening_sessions_are_sessions(bench: PoolBench) -> None:
    """Of an ended grant a session may be expected still: that is ended, too."""
    bench.node("a", 8000)
    old = bench.granted()
    bench.pool.lifecycle.release(old.grant.id, BY_OPERATOR)
    opening = Session(
        old.session.id, old.grant.id, "a", "tcp", "h", "p", 0, 0, "", "", 1.0, SessionState.OPENING
    )
    [order] = register(bench, ReportedSession(opening, old.grant.vgpus, "", 0)).ends
    assert order.grant_id == old.grant.id
