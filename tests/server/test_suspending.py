# SPDX-License-Identifier: Apache-2.0
"""What a worker may say while its session is suspended: lies, silence, an earlier server's rest.

Honest workers are real in tests/withstand/test_suspension.py; one that was taken over has to be a
FakeWorker, which answers each order with what a test gave it.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import GrantedVgpu
from sluice.server.controller.orders import OrderRefused
from sluice.server.sessions.given_orders import GivenOrder
from sluice.server.sessions.records import Session
from sluice.server.sessions.suspending import Suspensions
from sluice.server.sessions.swap_memory import SwapMemory
from sluice.server.workers.packets import Message

from .driver_calls import contexts_over
from .ordered_worker import FakeWorker

VGPU_MIB, SWAP_MIB = 100, 64


class Bench:
    """Sessions of one grant, and what the controller is told of it."""

    def __init__(self, *workers: FakeWorker, swap_mib: int = SWAP_MIB) -> None:
        self.reports: list[rpc.GrantSuspension] = []
        self.swap = SwapMemory(swap_mib)
        self.sessions = [_session(number, worker) for number, worker in enumerate(workers)]
        self.suspensions = Suspensions(
            lambda _: self.sessions,
            lambda report: self.reports.append(report.grant_suspension),
            self.swap,
            drain_seconds=0.1,
            contexts=contexts_over(self.swap),
        )

    def follow(self, status: Message | None = None) -> Bench:
        for session in self.sessions:
            self.suspensions.follow(session, status)
        return self


def _session(number: int, worker: FakeWorker) -> Session:
    fields: dict[str, Any] = {
        "id": f"s{number}",
        "grant_id": "g",
        "worker": worker,
        "opening": False,
        "context_away": False,
        "places": (0,),
        "vgpus": (GrantedVgpu("GPU-0", VGPU_MIB, 10),),
        "log": SimpleNamespace(write=lambda *_: None),
    }
    return cast(Session, SimpleNamespace(**fields))


def stopped(mib: int, staying: int = 0) -> dict[str, str]:
    return {
        "suspension": "stopped", "movable_mib": str(mib), "vgpu.0.staying_mib": str(staying),
    }  # fmt: skip


def out(mib: int, staying: int = 0) -> dict[str, str]:
    return {**stopped(mib, staying), "suspension": "out"}


RUNNING = {"suspension": "running"}


async def test_what_stays_is_no_more_than_the_vgpu_has() -> None:
    bench = Bench(FakeWorker(stopped(10), out(10, 1 << 40))).follow()
    await bench.suspensions.suspend("g")
    assert list(bench.suspensions.message("g").staying_mib) == [VGPU_MIB]


async def test_what_nobody_has_asked_for_is_not_heard() -> None:
    worker = FakeWorker()
    bench = Bench(worker).follow()
    for _ in range(100):
        worker.on_suspension(Message("suspension", out(1 << 40)))
    assert bench.reports == []
    assert not bench.suspensions.is_out("g")
    assert bench.swap.used_mib == 0


async def test_a_worker_that_wants_more_than_there_is_gets_nothing_and_goes_on() -> None:
    worker = FakeWorker(stopped(1 << 40), RUNNING)
    bench = Bench(worker).follow()
    with pytest.raises(OrderRefused, match="swap_mib"):
        await bench.suspensions.suspend("g")
    assert worker.verbs == ["suspend", "wake"]
    assert bench.swap.used_mib == 0


LIE = str((1 << 63) - 1)
SAYS_HUGE = {
    **dict.fromkeys(("movable_mib", "planned_mib", "new_mib", "kept_mib"), LIE),
    **{f"vgpu.0.{name}_mib": LIE for name in ("staying", "movable", "out", "missing", "exported")},
}


async def test_no_size_that_a_worker_says_is_more_than_its_vgpus_have() -> None:
    """Nor is it waited for by that, and the host's memory is others'."""
    bench = Bench(FakeWorker(), swap_mib=2 * VGPU_MIB)
    bench.follow(Message("status", {**SAYS_HUGE, "suspension": "out"}))
    assert bench.swap.used_mib == VGPU_MIB
    [standing] = bench.suspensions._standing.values()
    assert (standing.movable_mib, standing.out, standing.missing) == (100, (100,), (100,))
    assert standing.staying_mib == (2 * VGPU_MIB,), "code is charged besides"


async def test_who_says_that_more_is_out_than_it_was_given_has_no_more_booked() -> None:
    plan = {**stopped(10), "planned_mib": "10"}
    worker = FakeWorker(plan, plan, {**SAYS_HUGE, **RUNNING}, {**SAYS_HUGE, "suspension": "out"})
    bench = Bench(worker).follow()
    with pytest.raises(OrderRefused):
        await bench.suspensions.suspend("g")
    assert bench.swap.used_mib + bench.swap.kept_mib <= 10


async def test_where_its_server_fails_in_the_middle_it_goes_on_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fails(mib: int, of_driver: bool = False) -> None:
        raise OSError("too many open files")

    worker = FakeWorker(stopped(10), RUNNING)
    bench = Bench(worker).follow()
    monkeypatch.setattr(bench.swap, "pieces", fails)
    bench.suspensions.begin("g", GivenOrder(suspend=True))
    await asyncio.gather(*bench.suspensions._tasks)
    assert worker.verbs == ["suspend", "wake"]
    [report] = bench.reports
    assert (report.state, report.error) == ("running", "its server failed: too many open files")


async def test_who_does_not_take_its_host_memory_goes_on_and_it_stays_booked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def reads_nothing(seconds: float) -> bool:
        return False

    plan = {**stopped(10), "planned_mib": "10"}
    worker = FakeWorker(plan, plan)
    monkeypatch.setattr(worker, "wait_read", reads_nothing)
    bench = Bench(worker).follow()
    order = asyncio.create_task(bench.suspensions.suspend("g"))
    async with asyncio.timeout(60):
        while worker.verbs != ["suspend", "plan", "memory", "wake"]:
            await asyncio.sleep(0.01)
    assert bench.swap.used_mib == 10, "it may have it"
    worker.on_suspension(Message("suspension", RUNNING))
    with pytest.raises(OrderRefused, match="does not take the host memory"):
        await order
    assert bench.swap.used_mib == 0


async def test_one_of_two_does_not_stop_and_both_go_on() -> None:
    willing = FakeWorker(stopped(10), RUNNING)
    other = FakeWorker({**RUNNING, "message": "an endless kernel"})
    bench = Bench(willing, other).follow()
    with pytest.raises(OrderRefused, match="an endless kernel"):
        await bench.suspensions.suspend("g")
    assert willing.verbs == ["suspend", "wake"]
    assert other.verbs == ["suspend"]


class Holds:
    """The arbiter, as far as jobs are held at their cut."""

    def __init__(self, bench: Bench, *, still: bool) -> None:
        self.said: list[str] = []
        self.workers = [cast(FakeWorker, session.worker) for session in bench.sessions]
        self.still = still
        bench.suspensions.hold, bench.suspensions.go_on = self.hold, self.go_on

    async def hold(self, grant_id: str, seconds: float, lasts_seconds: float) -> bool:
        assert lasts_seconds > seconds
        assert not any(worker.told for worker in self.workers), "they go on until the cut"
        self.said.append(f"hold {grant_id}")
        return self.still

    def go_on(self, grant_id: str) -> None:
        assert all(worker.verbs == ["suspend"] for worker in self.workers), "they are stopped"
        self.said.append(f"go on {grant_id}")


@pytest.mark.parametrize("still", [True, False])
async def test_sessions_of_a_job_are_stopped_at_its_cut_and_then_their_turns_are_free(
    *, still: bool
) -> None:
    bench = Bench(FakeWorker(stopped(10), out(10)), FakeWorker(stopped(10), out(10))).follow()
    holds = Holds(bench, still=still)
    await bench.suspensions.suspend("g")
    assert bench.suspensions.is_out("g"), "without a cut each may come to a stop all the same"
    assert holds.said == ["hold g", "go on g"]


async def test_a_job_that_began_more_at_its_cut_comes_to_another() -> None:
    other = FakeWorker({**RUNNING, "message": "a collective under way"}, stopped(10), out(10))
    bench = Bench(FakeWorker(stopped(10), RUNNING, stopped(10), out(10)), other).follow()
    held: list[str] = []

    async def hold(grant_id: str, seconds: float, lasts_seconds: float) -> bool:
        held.append(grant_id)
        return True

    bench.suspensions.hold = hold
    await bench.suspensions.suspend("g")
    assert bench.suspensions.is_out("g")
    assert held == ["g", "g"]
    assert cast(FakeWorker, bench.sessions[0].worker).verbs[:3] == ["suspend", "wake", "suspend"]


async def test_a_job_that_does_not_stop_is_held_no_longer() -> None:
    other = FakeWorker({**RUNNING, "message": "a collective under way"})
    bench = Bench(FakeWorker(stopped(10), RUNNING), other).follow()
    holds = Holds(bench, still=False)
    with pytest.raises(OrderRefused, match="a collective under way"):
        await bench.suspensions.suspend("g")
    assert holds.said == ["hold g", "go on g"]


async def test_one_of_two_comes_back_and_is_taken_out_again() -> None:
    willing = FakeWorker(stopped(10), out(10), RUNNING, stopped(10), out(10))
    other = FakeWorker(stopped(10), out(10), {**out(10), "message": "no place on the GPU"})
    bench = Bench(willing, other).follow()
    await bench.suspensions.suspend("g")
    with pytest.raises(OrderRefused, match="no place on the GPU"):
        await bench.suspensions.resume("g")
    assert bench.suspensions.is_out("g")
    assert bench.swap.used_mib == 20
    assert willing.verbs[-3:] == ["suspend", "memory", "move_out"]


async def test_a_session_that_ends_meanwhile_gives_back_what_it_had() -> None:
    worker = FakeWorker(stopped(10))  # and never says that it is out
    bench = Bench(worker).follow()
    task = asyncio.create_task(bench.suspensions.suspend("g"))
    while "move_out" not in worker.verbs:
        await asyncio.sleep(0.01)
    assert bench.swap.used_mib == 10
    bench.suspensions.leave(bench.sessions[0])
    with pytest.raises(OrderRefused, match="ended meanwhile"):
        await task
    assert bench.swap.used_mib == 0


async def test_who_was_stopped_by_a_server_that_ended_goes_on() -> None:
    worker = FakeWorker(RUNNING)
    bench = Bench(worker).follow(Message("status", stopped(10)))
    assert worker.verbs == ["wake"]
    await asyncio.sleep(0)
    assert bench.suspensions.message("g").state == "running"


async def test_what_an_earlier_server_ordered_is_told_when_it_is_done() -> None:
    worker = FakeWorker()
    bench = Bench(worker).follow(Message("status", {**out(30), "suspension": "moving-out"}))
    assert bench.swap.used_mib == 30, "it is booked, whatever comes"
    worker.on_suspension(Message("suspension", out(30, 5)))
    [report] = bench.reports
    assert (report.state, list(report.staying_mib)) == ("suspended", [5])
    worker.on_suspension(Message("suspension", RUNNING))
    assert len(bench.reports) == 1, "nothing more was owed"


async def carried_out(bench: Bench) -> None:
    """All that is under way."""
    while tasks := bench.suspensions._tasks:
        await asyncio.gather(*tasks)


def left_by_an_earlier_server(*statuses: dict[str, str], later: dict[int, list[Any]]) -> Bench:
    """Sessions of a job that its server left so; `later`: answers of some to what comes."""
    workers = [FakeWorker(*later.get(n, [])) for n in range(len(statuses))]
    bench = Bench(*workers)
    for session, status in zip(bench.sessions, statuses, strict=True):
        bench.suspensions.follow(session, Message("status", status))
    return bench


async def test_a_job_that_came_back_in_part_under_an_earlier_server_comes_back_whole() -> None:
    bench = left_by_an_earlier_server(RUNNING, out(10), RUNNING, later={1: [RUNNING]})
    await bench.suspensions.find_contexts()
    assert [each.busy for each in bench.suspensions.messages()] == [], "it has not begun"
    await carried_out(bench)
    assert [cast(FakeWorker, s.worker).verbs for s in bench.sessions] == [[], ["wake"], []]
    assert (bench.reports[-1].state, bench.reports[-1].error) == ("running", "")
    assert bench.swap.used_mib == 0


async def test_where_the_rest_finds_no_room_all_of_it_is_suspended_with_the_reason() -> None:
    no_room = {**out(10), "message": "its memory finds no place"}
    bench = left_by_an_earlier_server(
        RUNNING, out(10), later={0: [stopped(10), out(10)], 1: [no_room]}
    )
    await bench.suspensions.find_contexts()
    await carried_out(bench)
    assert bench.suspensions.is_out("g")
    last = bench.reports[-1]
    assert last.state == "suspended"
    assert "finds no place" in last.error
    assert (last.context, last.context_why) == ("stays", "restarted")


async def test_one_that_is_out_in_part_for_ever_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.server.sessions.suspending.AGAIN_SECONDS", 0.01)
    no_room = {**out(10), "message": "its memory finds no place"}
    endless = {**RUNNING, "message": "an endless kernel"}
    bench = left_by_an_earlier_server(
        RUNNING, out(10), later={0: [endless, endless], 1: [no_room, no_room, RUNNING]}
    )
    await bench.suspensions.find_contexts()
    await carried_out(bench)
    assert [report.state for report in bench.reports] == ["running"] * 3
    assert "runs in part" in bench.reports[0].error
    assert bench.reports[-1].error == ""
    assert cast(FakeWorker, bench.sessions[1].worker).verbs == ["wake"] * 3


async def test_the_rest_of_a_job_is_stopped_still_when_its_server_ends() -> None:
    """Whoever had stopped it has ended, and it goes on; so does what was out already."""
    bench = left_by_an_earlier_server(stopped(10), out(10), later={0: [RUNNING], 1: [RUNNING]})
    await bench.suspensions.find_contexts()
    await asyncio.sleep(0)
    await carried_out(bench)
    assert [cast(FakeWorker, s.worker).verbs for s in bench.sessions] == [["wake"], ["wake"]]
    assert bench.suspensions.messages() == []


async def test_an_order_waits_for_the_step_of_an_earlier_server() -> None:
    worker = FakeWorker()
    bench = Bench(worker).follow(Message("status", {**out(10), "suspension": "moving-out"}))
    bench.suspensions.begin("g", GivenOrder(suspend=True))
    for _ in range(5):
        await asyncio.sleep(0)
    assert worker.told == [], "nothing follows in the middle of a step"
    worker.on_suspension(Message("suspension", out(10)))
    await carried_out(bench)
    assert worker.told == []
    assert (bench.reports[-1].state, bench.reports[-1].error) == ("suspended", "")


async def test_what_moved_for_others_and_finds_no_way_back_comes_in_when_it_is_its_turn() -> None:
    moved = {**out(10), "moved_by": "arbiter"}
    refused = {**stopped(10), "message": "it cannot be copied"}
    no_room = {**moved, "message": "its memory finds no place"}
    bench = Bench(
        FakeWorker(stopped(10), moved, no_room),
        FakeWorker(stopped(10), refused, RUNNING, stopped(10), moved),
    ).follow()
    with pytest.raises(OrderRefused):
        await bench.suspensions.swap_out("g", {"GPU-0": 20})
    assert bench.suspensions.swapped == {"g"}
    assert bench.suspensions.messages() == [], "to the pool it runs"
