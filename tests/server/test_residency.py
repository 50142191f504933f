# SPDX-License-Identifier: Apache-2.0
"""The server's part of oversubscription: what the arbiter orders is done or refused with a reason.

Honest workers are real in tests/withstand/test_oversubscription.py; here a FakeWorker answers each
order with what a test gave it, and the arbiter is the list of what it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.config.server import ServerConfig
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import GrantedVgpu
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.sessions.given_orders import GivenOrder
from sluice.server.sessions.memory_figures import MemoryFigures
from sluice.server.sessions.records import Session
from sluice.server.sessions.residency import Residency
from sluice.server.sessions.suspending import Suspensions
from sluice.server.sessions.swap_memory import Booking, SwapMemory
from sluice.server.workers.packets import Message

from .driver_calls import contexts_over
from .ordered_worker import FakeWorker

VGPU_MIB, SWAP_MIB = 100, 64


class FakePages:
    """A TurnPages whose arbiter remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[Message] = []
        self.arbiter = SimpleNamespace(tell=self.told.append, is_connected=True)
        self.joined: list[str] = []
        self.known: list[Session] = []
        self.on_move: Callable[[Message], None] = lambda _: None
        self.memory_of: Callable[[Session], dict[str, str]] = lambda _: {}

    def join_again(self, grant_id: str) -> None:
        self.joined.append(grant_id)

    def join_all(self) -> None:
        self.joined.append("all")

    def sessions(self) -> list[Session]:
        return self.known

    async def hold(self, grant_id: str, seconds: float, lasts_seconds: float) -> bool:
        raise AssertionError("of a session alone nothing is held")

    def go_on(self, grant_id: str) -> None:
        raise AssertionError("of a session alone nothing was held")


class Bench:
    """One session, and everybody who is told of it."""

    def __init__(self, worker: FakeWorker, *, swap_mib: int = SWAP_MIB, **status: str) -> None:
        self.reports: list[rpc.GrantSuspension] = []
        self.swap = SwapMemory(swap_mib)
        self.session = _session(worker)
        gpu = LocalGpu("GPU-0", "Model", 128, True, 5, 3)
        self.suspensions = Suspensions(
            lambda grant_id: [self.session] if grant_id == "g" else [],
            lambda report: self.reports.append(report.grant_suspension),
            self.swap,
            drain_seconds=0.1,
            contexts=contexts_over(self.swap, [gpu]),
        )
        self.pages = FakePages()
        self.residency = Residency(
            self.suspensions,
            cast(Any, self.pages),
            lambda: [gpu],
            2.5,
            cast(Any, SimpleNamespace(is_connected=True, report=lambda _: None)),
        )
        said = Message("status", status) if status else None
        self.suspensions.follow(self.session, said)

    async def move(self, *, out: bool, mib: int = 0) -> Message:
        """What the arbiter is answered."""
        fields = {"tenant": "g", "out": str(int(out)), "gpus": "1"}
        order = {"gpu.0.uuid": "GPU-0", "gpu.0.mib": str(mib)}
        self.pages.told.clear()
        self.pages.on_move(Message("move", {**fields, **order}))
        while not self.pages.told:
            await asyncio.sleep(0)
        [answer] = self.pages.told
        return answer


def _session(worker: FakeWorker, grant_id: str = "g") -> Session:
    fields: dict[str, Any] = {
        "id": "s",
        "grant_id": grant_id,
        "priority": 3,
        "worker": worker,
        "opening": False,
        "context_away": False,
        "places": (0,),
        "vgpus": (GrantedVgpu("GPU-0", VGPU_MIB, 10),),
        "log": SimpleNamespace(write=lambda *_: None),
    }
    return cast(Session, SimpleNamespace(**fields))


def says(state: str, *, out: int = 0, planned: int = 0, movable: int = 50) -> dict[str, str]:
    return {
        "suspension": state,
        "movable_mib": str(movable),
        "planned_mib": str(planned),
        "moved_by": "arbiter" if out else "",
        "vgpu.0.staying_mib": "7",
        "vgpu.0.movable_mib": str(movable),
        "vgpu.0.out_mib": str(out),
    }


RUNNING = {"suspension": "running"}


async def test_a_part_goes_and_all_of_it_comes_back() -> None:
    worker = FakeWorker(says("stopped"), says("stopped", planned=22), says("out", out=22), RUNNING)
    bench = Bench(worker)
    answer = await bench.move(out=True, mib=20)
    assert answer.verb == "memory_moved"
    assert (answer.get("message"), answer.get("gpu.0.out_mib")) == ("", "22")
    assert worker.verbs == ["suspend", "plan", "memory", "move_out"]
    [plan] = [message for message in worker.told if message.verb == "plan"]
    assert plan.get("vgpu.0.out_mib") == "20"
    assert bench.swap.used_mib == 22
    assert bench.suspensions.messages() == [], "to the pool it runs"
    answer = await bench.move(out=False)
    assert (answer.get("message"), answer.get("gpu.0.out_mib")) == ("", "0")
    assert bench.swap.used_mib == 0


async def test_more_of_what_is_out_goes_without_another_stop() -> None:
    worker = FakeWorker(
        *(says("stopped"), says("stopped", planned=20), says("out", out=20)),
        *(says("out", out=20, planned=15), says("out", out=35)),
    )
    bench = Bench(worker)
    await bench.move(out=True, mib=20)
    answer = await bench.move(out=True, mib=35)
    assert answer.get("gpu.0.out_mib") == "35"
    assert worker.verbs[4:] == ["plan", "memory", "move_out"]
    assert bench.swap.used_mib == 35


async def test_what_cannot_stop_or_has_no_host_memory_goes_on_and_the_arbiter_hears_why() -> None:
    bench = Bench(FakeWorker({"suspension": "running", "message": "an endless kernel"}))
    answer = await bench.move(out=True, mib=20)
    assert "an endless kernel" in answer.get("message")
    worker = FakeWorker(says("stopped"), says("stopped", planned=20), RUNNING)
    bench = Bench(worker, swap_mib=10)
    answer = await bench.move(out=True, mib=20)
    assert "swap_mib" in answer.get("message")
    assert worker.verbs[-1] == "wake"
    assert bench.swap.used_mib == 0
    assert answer.get("gpu.0.out_mib") == "0"


async def test_who_finds_less_room_than_is_counted_is_told_of_and_so_is_how_much(
    caplog: pytest.LogCaptureFixture,
) -> None:
    no_place = {**says("out", out=20), "message": "no place", "vgpu.0.missing_mib": "6"}
    worker = FakeWorker(
        *(says("stopped"), says("stopped", planned=20), says("out", out=20)),
        *(no_place, RUNNING),
    )
    bench = Bench(worker)
    await bench.move(out=True, mib=20)
    answer = await bench.move(out=False)
    assert (answer.get("gpu.0.out_mib"), answer.get("gpu.0.missing_mib")) == ("20", "6")
    assert "missing: 6 MiB of GPU-0" in caplog.text
    answer = await bench.move(out=False)
    assert "gpu.0.missing_mib" not in answer.fields
    assert answer.get("gpu.0.out_mib") == "0"


async def test_a_worker_that_misses_what_there_is_not_is_believed_as_far_as_its_vgpu() -> None:
    lie = {**says("out", out=20), "message": "no place", "vgpu.0.missing_mib": str(1 << 50)}
    worker = FakeWorker(*(says("stopped"), says("stopped", planned=20), says("out", out=20)), lie)
    bench = Bench(worker)
    await bench.move(out=True, mib=20)
    answer = await bench.move(out=False)
    assert answer.get("gpu.0.missing_mib") == str(VGPU_MIB)


async def test_each_exchange_is_a_line_with_who_how_much_and_its_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "sluice.server")
    worker = FakeWorker(
        {**says("stopped"), "steps": "commands 0.001 s"},
        says("stopped", planned=20),
        {**says("out", out=20), "steps": "copied 0.002 s" + "x" * 100_000},
    )
    bench = Bench(worker)
    await bench.move(out=True, mib=20)
    [line] = [r.getMessage() for r in caplog.records if "MiB moved" in r.getMessage()]
    for part in ("grant g: 20 MiB moved to the host", "session s: suspend", "(commands 0.001 s)"):
        assert part in line
    assert "move_out" in line
    assert len(line) < 2000, "a worker does not fill the log"


async def test_one_of_which_nothing_moves_is_woken() -> None:
    worker = FakeWorker(
        says("stopped", movable=0), says("stopped", movable=0), says("out", movable=0), RUNNING
    )
    bench = Bench(worker)
    answer = await bench.move(out=True, mib=20)
    assert "nothing of grant g can be moved" in answer.get("message")
    assert worker.verbs[-1] == "wake"


async def test_one_that_is_out_is_suspended_without_coming_in_and_resumed_into_its_turn() -> None:
    worker = FakeWorker(
        *(says("stopped"), says("stopped", planned=20), says("out", out=20)),
        *(says("out", out=20, planned=30), {**says("out", out=50), "moved_by": "controller"}),
        *(says("out", out=50), says("out", out=50)),
    )
    bench = Bench(worker)
    bench.pages.known = [bench.session, _session(FakeWorker(), "another")]
    await bench.move(out=True, mib=20)
    await bench.suspensions.suspend("g")
    assert bench.suspensions.is_out("g")
    assert bench.pages.joined == ["g"]
    assert bench.residency.claim(bench.session)["away"] == "1"
    assert (await bench.move(out=True, mib=60)).get("message") == "", "it has left already"
    await bench.suspensions.resume("g")
    assert not bench.suspensions.is_out("g"), "to the pool it runs"
    claim = bench.residency.claim(bench.session)
    assert (claim["away"], claim["vgpu.0.out_mib"]) == ("0", "50")
    assert "wake" not in worker.verbs, "the arbiter says when"


async def test_where_all_that_runs_fits_with_it_a_resumed_one_comes_back_at_once() -> None:
    worker = FakeWorker(
        *(says("stopped"), says("stopped", planned=50)),
        *({**says("out", out=50), "moved_by": "controller"}, RUNNING),
    )
    bench = Bench(worker)
    bench.pages.known = [bench.session]
    await bench.suspensions.suspend("g")
    bench.pages.joined.clear()
    await bench.suspensions.resume("g")
    assert worker.verbs[-1] == "wake"
    assert bench.pages.joined == ["g", "g"], "the arbiter hears that it comes, and that it is back"
    assert bench.residency.claim(bench.session)["away"] == "0"


async def test_without_an_arbiter_a_resumed_one_waits_for_the_next() -> None:
    worker = FakeWorker(
        *(says("stopped"), says("stopped", planned=50)),
        {**says("out", out=50), "moved_by": "controller"},
        *(says("out", out=50), says("out", out=50)),
    )
    bench = Bench(worker)
    bench.pages.known = [bench.session, _session(FakeWorker(), "another")]
    await bench.suspensions.suspend("g")
    bench.pages.arbiter.is_connected = False  # it was killed
    await bench.suspensions.resume("g")
    assert "wake" not in worker.verbs
    assert bench.residency.claim(bench.session)["vgpu.0.out_mib"] == "50"


async def test_who_is_on_the_way_back_counts_for_the_next_who_is_resumed() -> None:
    worker = FakeWorker(
        *(says("stopped"), says("stopped", planned=50)),
        {**says("out", out=50), "moved_by": "controller"},
    )
    bench = Bench(worker)
    await bench.suspensions.suspend("g")
    bench.pages.known = [bench.session, _session(FakeWorker(), "another")]
    assert not bench.residency.is_asked("another"), "it fits beside one that is out"
    bench.suspensions.begin("g", GivenOrder(suspend=False))
    while worker.verbs[-1] != "plan":  # which its worker does not answer yet
        await asyncio.sleep(0)
    assert bench.suspensions.is_out("g")
    assert bench.residency.is_asked("another")


async def test_who_comes_back_unasked_is_in_to_the_arbiter_before_anything_has_moved() -> None:
    worker = FakeWorker(
        *(says("stopped"), says("stopped", planned=50)),
        {**says("out", out=50), "moved_by": "controller"},
    )
    bench = Bench(worker)
    bench.pages.known = [bench.session]
    await bench.suspensions.suspend("g")
    bench.pages.joined.clear()
    bench.suspensions.begin("g", GivenOrder(suspend=False))
    while worker.verbs[-1] != "wake":  # which its worker does not answer yet
        await asyncio.sleep(0)
    assert bench.pages.joined == ["g"]
    claim = bench.residency.claim(bench.session)
    assert (claim["away"], claim["vgpu.0.out_mib"]) == ("0", "0")
    no_place = {**says("out", out=50), "moved_by": "controller", "message": "no place"}
    worker.on_suspension(Message("suspension", no_place))
    while not bench.reports:
        await asyncio.sleep(0)
    claim = bench.residency.claim(bench.session)
    assert (claim["away"], claim["vgpu.0.out_mib"]) == ("1", "50")
    assert len(bench.pages.joined) > 1, "and hears that it did not"


async def test_what_comes_in_by_a_killed_arbiters_order_is_in_to_the_next() -> None:
    stops = says("stopped"), says("stopped", planned=22), says("out", out=22)
    worker = FakeWorker(*stops)
    bench = Bench(worker)
    await bench.move(out=True, mib=20)
    assert bench.residency.claim(bench.session)["vgpu.0.out_mib"] == "22"
    bench.pages.told.clear()
    bench.pages.on_move(Message("move", {"tenant": "g", "out": "0", "gpus": "0"}))
    # from the order on, which may have to wait for another's step
    assert bench.residency.claim(bench.session)["vgpu.0.out_mib"] == "0"
    while worker.verbs[-1] != "wake":  # which its worker does not answer yet
        await asyncio.sleep(0)
    assert bench.residency.claim(bench.session)["vgpu.0.out_mib"] == "0"
    worker.on_suspension(Message("suspension", {**says("out", out=22), "message": "no place"}))
    while not bench.pages.told:
        await asyncio.sleep(0)
    assert bench.pages.told[0].get("gpu.0.out_mib") == "22"
    assert bench.residency.claim(bench.session)["vgpu.0.out_mib"] == "22"


async def test_who_begins_asks_for_all_that_it_takes_where_more_is_promised_than_there_is() -> None:
    bench = Bench(FakeWorker())
    bench.pages.known = [bench.session]
    assert not bench.residency.asks_at_first(bench.session)
    bench.pages.known = [bench.session, _session(FakeWorker(), "another")]
    assert bench.residency.asks_at_first(bench.session)


async def test_a_later_server_knows_whose_order_it_was() -> None:
    mine = Bench(FakeWorker(), **says("out", out=20))
    assert mine.suspensions.messages() == []
    assert mine.swap.used_mib == 20
    pools = Bench(FakeWorker(), **{**says("out", out=20), "moved_by": "controller"})
    assert [each.state for each in pools.suspensions.messages()] == ["suspended"]


async def test_what_an_earlier_server_had_begun_is_told_when_it_is_done() -> None:
    worker = FakeWorker()
    bench = Bench(worker, **{**says("moving-out", planned=20), "moved_by": "arbiter"})
    worker.on_suspension(Message("suspension", says("out", out=20)))
    assert bench.pages.joined == ["g"]
    assert bench.reports == []


async def test_what_the_arbiter_is_told_of_gpus_and_sessions() -> None:
    bench = Bench(FakeWorker())
    bench.residency.tell_everything()
    assert [(m.verb, m.fields) for m in bench.pages.told] == [
        ("idle", {"idle_ms": "2500"}),
        ("memory", {"gpu": "GPU-0", "memory_mib": "125", "margin_mib": "0"}),
    ]
    assert bench.pages.memory_of(bench.session) == {
        "priority": "3",
        "away": "0",
        "kept_mib": "0",
        "vgpus": "1",
        "vgpu.0.gpu": "GPU-0",
        "vgpu.0.memory_mib": "100",
        "vgpu.0.fixed_mib": "5",
        "vgpu.0.out_mib": "0",
    }


async def test_the_arbiter_is_told_what_a_session_keeps_until_it_gives_that_up() -> None:
    keeps = {**RUNNING, "kept_mib": "22"}
    worker = FakeWorker(says("stopped"), says("stopped", planned=22), says("out", out=22), keeps)
    bench = Bench(worker)
    assert (await bench.move(out=True, mib=20)).get("kept_mib") == "0"
    assert (await bench.move(out=False)).get("kept_mib") == "22"
    assert bench.pages.memory_of(bench.session)["kept_mib"] == "22"
    bench.pages.told.clear()
    worker.answers.append(RUNNING)
    await bench.swap.book(lambda: Booking({"another": SWAP_MIB}))
    assert worker.verbs[-1] == "give_up"
    told = [(message.verb, message.get("kept_mib")) for message in bench.pages.told]
    assert told == [("memory_kept", "0")]


def test_sums_outlive_the_arbiter_and_each_change_is_told_once() -> None:
    figures = MemoryFigures()

    def said(moves: int, waited: int) -> Message:
        of = {"id": "g", "resident_mib": "5", "out_mib": "3", "moves": str(moves)}
        more = {"memory_waited_us": str(waited), "memory_why": "room"}
        fields = {f"tenant.0.{name}": text for name, text in {**of, **more}.items()}
        return Message("figures", {"tenants": "1", **fields})

    figures.hear(said(4, 10))
    [report] = figures.changed()
    assert (report.resident_mib, report.swapped_mib, report.moves, report.why) == (5, 3, 4, "room")
    assert figures.changed() == []
    figures.hear(said(1, 2))  # another arbiter
    assert (figures.moves, figures.waited_us) == (5, 12)
    assert len(figures.changed()) == 1
    figures.tell_again()
    assert len(figures.changed()) == 1


@pytest.mark.parametrize(
    ("suspend", "throttle", "named"),
    [
        ({"memory_oversubscription": 2.0}, {}, "swap_mib"),
        (
            {"memory_oversubscription": 2.0, "swap_mib": 10},
            {"enable_computation_throttle": False},
            "enable_computation_throttle",
        ),
        ({"memory_oversubscription": 0.5, "swap_mib": 10}, {}, "memory_oversubscription"),
        ({"gpu_memory_oversubscription": "GPU-1 = 2"}, {}, "of GPU-1 is 2.*swap_mib"),
        (
            {"gpu_memory_oversubscription": "GPU-1 = 2", "swap_mib": 10},
            {"enable_computation_throttle": False},
            "of GPU-1 is 2.*enable_computation_throttle",
        ),
        ({"gpu_memory_oversubscription": "GPU-1 = 2, GPU-1 = 3", "swap_mib": 9}, {}, "twice"),
        ({"gpu_memory_oversubscription": "GPU-1 = 0.5", "swap_mib": 9}, {}, "GPU-1"),
        ({"gpu_memory_oversubscription": "GPU-1", "swap_mib": 9}, {}, "GPU-1"),
        ({"gpu_memory_oversubscription": "= 2", "swap_mib": 9}, {}, "gpu_memory_oversub"),
        ({"gpu_memory_oversubscription": "GPU-1 = nan", "swap_mib": 9}, {}, "GPU-1"),
    ],
)
def test_a_factor_that_cannot_be_kept_is_refused_with_the_field(
    suspend: dict[str, Any], throttle: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        ServerConfig.model_validate({"suspend": suspend, "throttle": throttle})


def test_a_gpu_has_a_factor_of_its_own() -> None:
    suspend = {"gpu_memory_oversubscription": "GPU-1 = 1.5, GPU-2=1", "swap_mib": 9}
    config = ServerConfig.model_validate({"suspend": suspend})
    found = [config.memory_factor_of(gpu) for gpu in ("GPU-1", "GPU-2", "GPU-3")]
    assert found == [1.5, 1.0, 0.0]
