# SPDX-License-Identifier: Apache-2.0
"""What vGPUs had of their GPUs' time: sums, shares and reports, by a clock that the test moves."""

from __future__ import annotations

import asyncio

import pytest

from sluice.resources.vgpu_request import Sharing
from sluice.rpc import pool_pb2 as rpc
from sluice.server.sessions.figures import SessionFigures
from sluice.server.sessions.time_reports import MOST_ASKED, TimeReports, Told, tenants_of
from sluice.server.sessions.vgpu_time import TenantTime, UseWindow, VgpuTime, VgpuTimes
from sluice.server.workers.packets import Message
from sluice.server.workers.standing_process import NoAnswerError
from sluice.server.workers.worker import WorkerError

GPU = {0: "GPU-1"}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def times(clock: Clock) -> VgpuTimes:
    return VgpuTimes(clock)


def only(times: VgpuTimes) -> VgpuTime:
    (vgpu,) = times.vgpus.values()
    return vgpu


def test_shares_are_of_the_last_second_and_minute() -> None:
    window = UseWindow(0, 0)
    assert window.share(1) == window.share(60) == 0, "nothing has passed"
    for second in range(1, 31):
        window.add(second, second * 0.5)
    assert window.share(1) == pytest.approx(0.5)
    assert window.share(60) == pytest.approx(0.5), "since it began"
    for second in range(31, 121):
        window.add(second, 15)
    assert window.share(1) == window.share(60) == 0
    window.add(120.5, 15.5)
    assert window.share(1) == pytest.approx(0.5), "half of it lies in an earlier sample"
    assert window.share(60) == pytest.approx(0.5 / 60)
    assert len(window._samples) < 70


def test_samples_that_come_late_are_spread() -> None:
    window = UseWindow(0, 0)
    window.add(5, 4)
    assert window.share(1) == pytest.approx(0.8)
    window.add(5, 4.5)
    assert window.share(1) == pytest.approx(0.9), "the last word counts"


def test_what_is_said_is_summed_and_bounded_by_the_time_that_passed(
    times: VgpuTimes, clock: Clock
) -> None:
    times.begin("s", "g", GPU)
    clock.now += 10
    times.hear("s", {0: 4.0})
    assert only(times).used == 4
    times.hear("s", {0: 3.0})
    assert only(times).used == 4, "it does not fall"
    times.hear("s", {0: 1e9, 7: 5.0})
    assert only(times).used == 10, "and is no more than passed"
    times.hear("s", {0: -5.0})
    assert only(times).used == 10
    clock.now += 1
    times.hear("s", {0: 1e9 + 0.5})
    assert only(times).used == 10.5


def test_sessions_of_a_job_share_their_vgpu(times: VgpuTimes, clock: Clock) -> None:
    times.begin("a", "g", {0: "GPU-1", 1: "GPU-2"})
    times.begin("b", "g", {1: "GPU-2"})
    clock.now += 10
    times.hear("a", {0: 1.0, 1: 6.0})
    times.hear("b", {0: 7.0})
    assert times.vgpus["g", 0].used == 1
    assert times.vgpus["g", 1].used == 10, "two at once are not two GPUs"
    assert times.end("b") == []
    assert [vgpu.place for vgpu in times.end("a")] == [0, 1]
    assert times.end("a") == []


def test_a_server_that_takes_over_goes_on_where_the_worker_is(
    times: VgpuTimes, clock: Clock
) -> None:
    times.begin("s", "g", GPU, {0: 40.0}, age=100)
    vgpu = only(times)
    assert (vgpu.used, vgpu.before) == (40, 40)
    clock.now += 2
    times.hear("s", {0: 41.0})
    times.look()
    assert vgpu.used == 41
    assert vgpu.share_1s == pytest.approx(0.5), "what was before is in no window"
    times.hear_arbiter({"g": TenantTime(held=50, waited=30, turns=9)})
    assert (vgpu.waited, vgpu.waited_before, vgpu.turns_before) == (30, 30, 9)
    times.begin("liar", "h", GPU, {0: 1e9}, age=5)
    assert times.vgpus["h", 0].used == 5


def test_an_arbiter_that_is_started_anew_begins_at_nothing(times: VgpuTimes, clock: Clock) -> None:
    times.begin("s", "g", GPU)
    clock.now += 100
    vgpu = only(times)
    times.hear_arbiter({"g": TenantTime(20, 10, 5), "other": TenantTime(1, 1, 1)})
    times.hear_arbiter({"g": TenantTime(24, 12, 6)})
    assert (vgpu.held, vgpu.waited, vgpu.turns) == (24, 12, 6)
    assert vgpu.in_turns
    times.arbiter_is_silent()
    assert not vgpu.in_turns
    times.hear_arbiter({})  # the session has not joined the next one yet
    assert not vgpu.in_turns
    times.hear_arbiter({"g": TenantTime(1, 2, 1)})
    assert (vgpu.held, vgpu.waited, vgpu.turns) == (25, 14, 7)
    times.hear_arbiter({"g": TenantTime(1, 1e9, 1)})
    assert vgpu.waited == 100, "no more than passed"
    assert vgpu.waited_before == 0


def test_the_arbiters_answer_is_read() -> None:
    answer = {"tenants": "1", "tenant.0.id": "g", "tenant.0.held_us": "1500000"}
    assert tenants_of(Message("figures", answer)) == {"g": TenantTime(1.5, 0, 0)}
    answer["tenant.0.together_us"] = "500000"
    assert tenants_of(Message("figures", answer))["g"].together == 0.5


def test_time_at_once_with_others_is_counted_on(times: VgpuTimes, clock: Clock) -> None:
    times.begin("s", "g", GPU, {0: 1.0}, age=10)
    times.hear_arbiter({"g": TenantTime(5, 0, 1, together=2)})
    vgpu = only(times)
    assert vgpu.together - vgpu.together_before == 0, "an earlier server's"
    times.hear_arbiter({"g": TenantTime(6, 0, 1, together=3)})
    times.hear_arbiter({"g": TenantTime(7, 0, 0, together=0.5)})  # of another arbiter
    assert vgpu.together - vgpu.together_before == 1.5


def test_the_controller_is_told_what_changed_and_all_after_a_welcome(
    times: VgpuTimes, clock: Clock
) -> None:
    told = Told()
    times.begin("s", "g", GPU, {0: 3.0}, age=10)
    times.begin("t", "h", GPU)
    clock.now += 4
    times.hear("s", {0: 5.0})
    times.look()
    first, second = told.changed(times.vgpus.values())
    assert (first.used_us, first.counted_used_us) == (5_000_000, 3_000_000)
    assert (second.grant_id, second.used_us, second.counted_used_us) == ("h", 0, 0)
    assert told.changed(times.vgpus.values()) == []
    times.hear("s", {0: 6.0})
    (changed,) = told.changed(times.vgpus.values())
    assert (changed.used_us, changed.counted_used_us) == (6_000_000, 3_000_000)
    assert not changed.HasField("waited_us"), "the arbiter has not said how long it had waited"
    times.hear_arbiter({"g": TenantTime(held=9, waited=8, turns=7)})
    (changed,) = told.changed(times.vgpus.values())
    assert (changed.waited_us, changed.counted_waited_us) == (8_000_000, 8_000_000)
    told.tell_again()
    times.hear("s", {0: 7.0})
    first, _ = told.changed(times.vgpus.values())
    assert (first.used_us, first.counted_used_us) == (7_000_000, 6_000_000)
    assert (first.waited_us, first.counted_waited_us) == (8_000_000, 8_000_000)


class FakeController:
    def __init__(self) -> None:
        self.is_connected = True
        self.told: list[rpc.VgpuTime] = []

    def report(self, report: rpc.NodeReport) -> None:
        self.told += report.vgpu_times.times


class FakeWorker:
    """Says what it used, or nothing."""

    def __init__(self) -> None:
        self.asked = 0
        self.used_us = 0
        self.silent = False

    async def status(self, seconds: float) -> Message:
        self.asked += 1
        if self.silent:
            raise WorkerError("it does not answer")
        return Message("status", {"vgpu.0.busy_us": str(self.used_us)})


class FakeRequester:
    channel = "shm"


class FakeVgpu:
    gpu_uuid = "GPU-1"
    memory_mib = 1
    compute_percent = 1
    sharing = Sharing.TURNS


class FakeSession:
    """A session as far as its figures are concerned."""

    def __init__(self, name: str) -> None:
        self.id, self.grant_id = name, f"grant {name}"
        self.places = (0,)
        self.vgpus = (FakeVgpu(),)
        self.worker = FakeWorker()
        self.opening = False
        self.gone = asyncio.Event()
        self.requester = FakeRequester()


class FakeTurns:
    def __init__(self) -> None:
        self.answers = True

    async def figures(self) -> Message:
        if not self.answers:
            raise NoAnswerError("it is gone")
        fields = {"tenants": "1", "tenant.0.id": "grant 0", "tenant.0.waited_us": "2000000"}
        return Message("figures", fields)


class Rounds:
    """Reports of so many sessions."""

    def __init__(self, count: int, clock: Clock) -> None:
        self.figures = SessionFigures(clock)
        self.sessions = {str(n): FakeSession(str(n)) for n in range(count)}
        for session in self.sessions.values():
            self.figures.begin(session)  # type: ignore[arg-type]
        self.controller, self.turns = FakeController(), FakeTurns()
        self.reports = TimeReports(
            self.sessions,  # type: ignore[arg-type]
            self.figures,
            self.controller,  # type: ignore[arg-type]
            lambda: self.turns,  # type: ignore[arg-type,return-value]
        )


async def test_a_round_asks_everybody_and_reports(clock: Clock) -> None:
    rounds = Rounds(2, clock)
    clock.now += 10
    rounds.sessions["0"].worker.used_us = 4_000_000
    await rounds.reports.take_round()
    by_grant = {time.grant_id: time for time in rounds.controller.told}
    assert by_grant["grant 0"].used_us == 4_000_000
    assert by_grant["grant 0"].waited_us == 2_000_000
    assert by_grant["grant 1"].used_us == 0
    rounds.controller.told.clear()
    rounds.turns.answers = False
    rounds.controller.is_connected = False
    rounds.sessions["1"].worker.used_us = 1_000_000
    await rounds.reports.take_round()
    assert rounds.controller.told == []
    rounds.controller.is_connected = True
    rounds.reports.end("1")
    (last,) = rounds.controller.told
    assert (last.grant_id, last.used_us) == ("grant 1", 1_000_000), "before its end is told"


async def test_who_does_not_answer_is_left_in_peace_for_a_while(clock: Clock) -> None:
    rounds = Rounds(2, clock)
    silent, other = rounds.sessions["0"].worker, rounds.sessions["1"].worker
    silent.silent = True
    for _ in range(50):
        await rounds.reports.take_round()
    assert (silent.asked, other.asked) == (1, 50)
    for _ in range(50):
        await rounds.reports.take_round()
    assert silent.asked == 2


async def test_many_sessions_take_turns_at_being_asked(clock: Clock) -> None:
    count = 2 * MOST_ASKED + 50
    rounds = Rounds(count, clock)
    await rounds.reports.take_round()
    assert sum(s.worker.asked for s in rounds.sessions.values()) == MOST_ASKED
    for _ in range(8):
        await rounds.reports.take_round()
    assert {s.worker.asked for s in rounds.sessions.values()} == {4}
