# SPDX-License-Identifier: Apache-2.0
"""Host memory that sessions keep: what is booked, who is asked for it, and what a liar can have.

Honest workers are real in tests/withstand/test_kept_memory.py; here a worker answers each order
with what a test gave it, or not at all.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.server.controller.link import GrantedVgpu
from sluice.server.controller.orders import OrderRefused
from sluice.server.host_memory.pieces import NoSwapMemory
from sluice.server.sessions.records import Session
from sluice.server.sessions.suspending import Suspensions
from sluice.server.sessions.swap_memory import PIECE_MIB, Booking, SwapMemory
from sluice.server.workers.packets import Message

from .driver_calls import contexts_over
from .ordered_worker import FakeWorker

VGPU_MIB = 100
KEPT_MEMORY = "sluice.server.sessions.kept_memory"
LONG_SECONDS = 60.0


class Bench:
    """Grants of one session each, by their ids, over one host's memory."""

    def __init__(self, swap_mib: int, **workers: FakeWorker) -> None:
        self.swap = SwapMemory(swap_mib)
        self.workers = workers
        self.said: list[str] = []
        self.sessions = {name: self._session(name, worker) for name, worker in workers.items()}
        self.suspensions = Suspensions(
            lambda grant_id: [self.sessions[grant_id]] if grant_id in self.sessions else [],
            lambda _: None,
            self.swap,
            drain_seconds=0.1,
            contexts=contexts_over(self.swap),
        )

    def _session(self, name: str, worker: FakeWorker) -> Session:
        fields: dict[str, Any] = {
            "id": name,
            "grant_id": name,
            "worker": worker,
            "opening": False,
            "context_away": False,
            "places": (0,),
            "vgpus": (GrantedVgpu("GPU-0", VGPU_MIB, 10),),
            "log": SimpleNamespace(write=lambda text: self.said.append(f"{name}: {text}")),
        }
        return cast(Session, SimpleNamespace(**fields))

    def follow(self, **kept: int) -> Bench:
        """All of them run, and keep so much."""
        for name, session in self.sessions.items():
            said = {**RUNNING, "kept_mib": str(kept.get(name, 0))}
            self.suspensions.follow(session, Message("status", said))
        return self

    async def suspend(self, name: str) -> None:
        async with self.suspensions.lock(name):
            await self.suspensions.suspend(name)

    async def resume(self, name: str) -> None:
        async with self.suspensions.lock(name):
            await self.suspensions.resume(name)

    def verbs(self, name: str) -> list[str]:
        return self.workers[name].verbs


RUNNING = {"suspension": "running"}


def running(kept: int = 0) -> dict[str, str]:
    return {**RUNNING, "kept_mib": str(kept)}


def stopped(mib: int, *, new: int | None = None, kept: int = 0) -> dict[str, str]:
    """As it is planned."""
    return {
        "suspension": "stopped", "movable_mib": str(mib), "planned_mib": str(mib),
        "new_mib": str(mib if new is None else new), "kept_mib": str(kept),
        "vgpu.0.movable_mib": str(mib), "vgpu.0.out_mib": "0",
    }  # fmt: skip


def out(mib: int, kept: int = 0) -> dict[str, str]:
    moved = {"suspension": "out", "planned_mib": "0", "new_mib": "0", "vgpu.0.out_mib": str(mib)}
    return {**stopped(mib, kept=kept), **moved}


def going(mib: int, *, new: int | None = None, kept: int = 0) -> list[dict[str, str]]:
    """What a worker says until it is out."""
    plan = stopped(mib, new=new, kept=kept)
    return [plan, plan, out(mib, max(0, kept + (mib if new is None else new) - mib))]


async def until(what: Any) -> None:
    async with asyncio.timeout(LONG_SECONDS):
        while not what():
            await asyncio.sleep(0.01)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be done in a moment is done at once."""
    monkeypatch.setattr(f"{KEPT_MEMORY}.PAUSE_SECONDS", 0.0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a worker."""
    monkeypatch.setattr(f"{KEPT_MEMORY}.ANSWER_SECONDS", 0.05)


def memory_of(worker: FakeWorker) -> list[int]:
    """MiB that it was given."""
    return [int(told.get("bytes")) >> 20 for told in worker.told if told.verb == "memory"]


async def test_it_keeps_what_it_had_and_is_given_only_what_is_missing_the_next_time() -> None:
    worker = FakeWorker(*going(20), running(20), *going(30, new=10, kept=20))
    bench = Bench(64, a=worker).follow()
    await bench.suspend("a")
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (20, 0)
    await bench.resume("a")
    [wake] = [told for told in worker.told if told.verb == "wake"]
    assert wake.get("keep") == "1"
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (0, 20)
    await bench.suspend("a")
    assert memory_of(worker) == [20, 10]
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (30, 0)
    bench.suspensions.leave(bench.sessions["a"])
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (0, 0)


async def test_a_worker_of_an_earlier_release_keeps_nothing() -> None:
    old = {"suspension": "stopped", "movable_mib": "20"}
    worker = FakeWorker(old, {**old, "suspension": "out"}, RUNNING)
    bench = Bench(64, a=worker).follow()
    await bench.suspend("a")
    assert memory_of(worker) == [20]
    await bench.resume("a")
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (0, 0)


async def test_what_is_more_than_it_needs_stays_booked_while_it_is_out() -> None:
    worker = FakeWorker(*going(5, new=0, kept=30), running(30))
    bench = Bench(64, a=worker).follow(a=30)
    await bench.suspend("a")
    assert memory_of(worker) == []
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (5, 25)
    await bench.resume("a")
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (0, 30)


async def test_who_has_kept_the_longest_is_asked_first_and_nobody_for_nothing() -> None:
    a, b = FakeWorker(running()), FakeWorker(running())
    bench = Bench(60, a=a, b=b, c=FakeWorker(*going(30)), d=FakeWorker(*going(61), RUNNING))
    bench.follow(a=20, b=20)
    with pytest.raises(OrderRefused, match="swap_mib"):
        await bench.suspend("d")
    assert (a.verbs, b.verbs) == ([], []), "it would not fit whoever gave something up"
    await bench.suspend("c")
    assert (a.verbs, b.verbs) == (["give_up"], [])
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (30, 20)
    assert bench.said[0] == "a: gave 20 of 20 MiB of host memory up that it kept"
    assert a.told[0].get("mib") == "10", "that is missing; it gives whole pieces up"


async def test_who_has_no_room_beside_what_he_keeps_himself_gives_that_up() -> None:
    """What he is to move does not fit into that, as when he has one piece now for many before."""
    worker = FakeWorker(*going(40, new=40, kept=30)[:2], stopped(40), out(40))
    bench = Bench(60, a=worker, b=FakeWorker()).follow(a=30, b=5)
    await bench.suspend("a")
    assert worker.verbs == ["suspend", "plan", "give_up", "memory", "move_out"]
    assert worker.told[2].get("mib") == "", "all of it: what is planned is laid out anew"
    assert memory_of(worker) == [40]
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (40, 5)


async def test_a_context_finds_room_where_its_own_session_keeps_more_than_it_needs() -> None:
    worker = FakeWorker(*going(5, new=0, kept=30), out(5))
    bench = Bench(32, a=worker).follow(a=30)
    await bench.suspend("a")
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (5, 25)
    await bench.swap.book(lambda: Booking({"a": 20}))
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (20, 0)


async def test_what_is_not_needed_is_kept_on() -> None:
    a, b = FakeWorker(running(10)), FakeWorker(running())
    bench = Bench(60, a=a, b=b, c=FakeWorker(*going(30))).follow(a=20, b=20)
    await bench.suspend("c")
    assert (a.verbs, b.verbs) == (["give_up"], [])
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (30, 30)
    assert bench.said[0] == "a: gave 10 of 20 MiB of host memory up that it kept"


async def test_a_context_that_leaves_has_room_made_for_it_too() -> None:
    a = FakeWorker(running())
    bench = Bench(60, a=a, b=FakeWorker(*going(30))).follow(a=20)
    await bench.suspend("b")
    assert await bench.suspensions.contexts._book([bench.sessions["b"]])
    assert a.verbs == [], "nothing is left that is not counted"
    await bench.swap.book(lambda: Booking({"b": 45}))
    assert a.verbs == ["give_up"]
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (45, 0)


async def test_who_is_moved_just_now_is_not_asked_and_nobody_waits_for_him() -> None:
    a, c = FakeWorker(), FakeWorker(*going(30), RUNNING)
    bench = Bench(40, a=a, c=c).follow(a=20)
    async with bench.suspensions.lock("a"):
        with pytest.raises(OrderRefused, match=r"session a keeps 20 MiB \(its memory moves\)"):
            await bench.suspend("c")
    assert a.told == []
    assert bench.swap.kept_mib == 20


async def test_two_that_need_what_a_third_keeps_have_it_asked_once() -> None:
    a = FakeWorker(running())
    bench = Bench(60, a=a, b=FakeWorker(*going(30)), c=FakeWorker(*going(30))).follow(a=60)
    await asyncio.gather(bench.suspend("b"), bench.suspend("c"))
    assert a.verbs == ["give_up"]
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (60, 0)


@pytest.mark.usefixtures("impatient")
async def test_a_worker_that_does_not_answer_stays_booked_and_is_not_asked_again() -> None:
    a, b = FakeWorker(), FakeWorker(running())
    c, d = FakeWorker(*going(20), running()), FakeWorker(*going(30), RUNNING)
    bench = Bench(40, a=a, b=b, c=c, d=d).follow(a=20, b=20)
    await bench.suspend("c")
    assert (a.verbs, b.verbs) == (["give_up"], ["give_up"]), "another one has it"
    await bench.resume("c")
    with pytest.raises(OrderRefused, match=r"session a keeps 20 MiB \(its worker does not answer"):
        await bench.suspend("d")
    assert a.verbs == ["give_up"]
    assert bench.swap.kept_mib == 20
    a.on_suspension(Message("suspension", running()))
    assert bench.swap.kept_mib == 0, "it was slow"


@pytest.mark.usefixtures("impatient")
async def test_what_it_says_late_is_no_answer_to_what_it_was_told_since() -> None:
    a = FakeWorker()
    bench = Bench(40, a=a, c=FakeWorker(*going(30), RUNNING)).follow(a=20)
    with pytest.raises(OrderRefused, match="did not answer"):
        await bench.suspend("c")
    task = asyncio.create_task(bench.suspend("a"))
    await asyncio.sleep(0.01)
    assert a.verbs == ["give_up"], "nothing follows before that"
    a.answers.extend(going(10))
    a.on_suspension(Message("suspension", running()))
    await task
    assert bench.suspensions.is_out("a")
    assert (bench.swap.used_mib, bench.swap.kept_mib) == (10, 0)


async def test_a_worker_that_gives_nothing_up_stays_booked_and_is_asked_once() -> None:
    a = FakeWorker(running(20), running(20))
    b, c = FakeWorker(*going(30), RUNNING), FakeWorker(*going(30), RUNNING)
    bench = Bench(40, a=a, b=b, c=c).follow(a=20)
    for name in "bc":
        with pytest.raises(OrderRefused, match=r"session a keeps 20 MiB \(its worker gave"):
            await bench.suspend(name)
    assert a.verbs == ["give_up"]
    assert bench.swap.kept_mib == 20


async def test_a_liar_keeps_no_more_than_it_was_given() -> None:
    lie = 1 << 40
    worker = FakeWorker(*going(20), running(lie), *going(20, new=0, kept=lie), running(lie))
    bench = Bench(64, a=worker).follow()
    for _ in range(2):
        await bench.suspend("a")
        assert (bench.swap.used_mib, bench.swap.kept_mib) == (20, 0)
        await bench.resume("a")
        assert (bench.swap.used_mib, bench.swap.kept_mib) == (0, 20)


async def test_of_an_earlier_servers_worker_no_more_is_believed_than_its_vgpus_have() -> None:
    bench = Bench(1000, a=FakeWorker()).follow(a=1 << 40)
    assert bench.swap.kept_mib == VGPU_MIB


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("swap_mib", [0, 19])
async def test_a_server_without_room_for_it_has_it_given_up(swap_mib: int) -> None:
    a = FakeWorker(running())
    bench = Bench(swap_mib, a=a).follow(a=20)
    await until(lambda: not bench.swap.kept_mib)
    assert a.verbs == ["give_up"]


async def test_who_was_stopped_by_an_earlier_server_goes_on_with_what_it_keeps() -> None:
    for swap_mib, keep in ((64, "1"), (5, "")):
        worker = FakeWorker()
        bench = Bench(swap_mib, a=worker)
        bench.suspensions.follow(bench.sessions["a"], Message("status", stopped(10, kept=10)))
        [wake] = worker.told
        assert (wake.verb, wake.get("keep")) == ("wake", keep)


async def test_it_is_kept_only_beside_what_is_used_and_what_is_to_be_ready() -> None:
    swap = SwapMemory(4 * PIECE_MIB, ready_mib=2 * PIECE_MIB)
    swap.take(Booking({"a": 2 * PIECE_MIB}, new={"a": 2 * PIECE_MIB}))
    assert swap.may_keep("a")
    swap.take(Booking({"b": 1}, new={"b": 1}))
    assert not swap.may_keep("a")
    swap.give("b")
    swap.settle("a", 0, 2 * PIECE_MIB)
    assert (swap.kept_mib, swap.crowded_mib) == (2 * PIECE_MIB, 0)
    swap.take(Booking({"b": PIECE_MIB}, new={"b": PIECE_MIB}))
    assert swap.may_keep("b"), "who has kept it for longer makes room"
    swap.settle("b", 0, PIECE_MIB)
    assert (swap.keepers(), swap.crowded_mib) == (["a", "b"], PIECE_MIB)
    assert not SwapMemory(0).may_keep("a")


@pytest.mark.usefixtures("soon")
async def test_what_is_kept_makes_room_for_what_is_to_be_ready() -> None:
    a, b = FakeWorker(running()), FakeWorker(*going(30), running(30))
    bench = Bench(50, a=a, b=b).follow(a=30)
    bench.swap.limit_mib = 60
    await bench.suspend("b")
    assert a.verbs == []
    bench.swap.limit_mib = 50
    await bench.resume("b")
    await until(lambda: a.verbs == ["give_up"])
    await until(lambda: bench.swap.kept_mib == 30)
    assert bench.swap.keepers() == ["b"]


async def test_what_is_ready_and_what_is_kept_are_never_more_than_there_is() -> None:
    swap = SwapMemory(3 * PIECE_MIB, ready_mib=2 * PIECE_MIB)
    task = asyncio.create_task(swap.keep_ready())
    try:
        await until(lambda: swap.ready_mib == 2 * PIECE_MIB)
        swap.take(Booking({"a": PIECE_MIB}, new={"a": PIECE_MIB}))
        swap.settle("a", 0, PIECE_MIB)
        await swap.book(lambda: Booking({"b": 2 * PIECE_MIB}))
        assert swap.ready_mib == 0, "none of it is for who has his own"
        with pytest.raises(NoSwapMemory, match="0 MiB are left"):
            swap.take(Booking({"c": 1}, new={"c": 1}))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
