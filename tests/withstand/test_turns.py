# SPDX-License-Identifier: Apache-2.0
"""Shares of a GPU's time between sessions, and what becomes of them when something ends or stops.

Real arbiter, real workers, the software GPU. What is compared is work that was done, never time.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for
from scrapes import scrape
from standing_processes import standing_processes

from .at_work import Start, goes_on, stopped, worked, worker_of, working
from .conftest import arbiter_pid
from .prompted import Prompted
from .traces import LIMIT

pytestmark = pytest.mark.control_plane(reused=True, metrics={})

ENOUGH, WHILES = 400, 12  # kernels, of both together, in a while; and how many of those there are
ENDLESS = 1 << 40
LONG = 20_000_000  # rounds of a kernel that is longer than several turns
LITTLE_NS = 20_000
SHORT_NS = 100_000  # of a kernel, of which 64 sessions have one each in little time
NEAR = 12  # of percent: how fast the host is at a time is no matter of shares. Half would be 30 off


def assert_part(one: Prompted, other: Prompted, percent: int) -> None:
    """What the one has had done of all work of a while: so many percent.

    On a busy host a program may not bring work for its share for a while: then it is another one.
    """
    seen = []
    for _ in range(WHILES):
        at = worked(one), worked(other)

        def done() -> tuple[int, int]:
            return worked(one) - at[0], worked(other) - at[1]  # noqa: B023

        wait_for(lambda: sum(done()) > ENOUGH, LIMIT, lambda: f"work: {done()}")
        had = done()
        seen.append(had)
        if abs(100 * had[0] / sum(had) - percent) <= NEAR:
            return
    raise AssertionError(f"{seen} of the work, never {percent}:{100 - percent}")


def test_each_has_its_share_of_the_work(start: Start) -> None:
    small, large = working(start, 20, "tcp"), working(start, 80)
    assert_part(small, large, 20)
    large.quit()
    goes_on(small, 20)
    small.quit()


def test_what_is_capped_leaves_the_rest_to_others(plane: ControlPlane, start: Start) -> None:
    capped, other = working(start, 20, SLUICE_SHARING="capped"), working(start, 20)
    assert_part(capped, other, 20)
    plane.stop("server", signal.SIGKILL)
    plane.start_server()
    os.kill(arbiter_pid(plane), signal.SIGKILL)  # the next one hears it of the server
    goes_on(capped)
    assert_part(capped, other, 20)


def test_a_stopped_worker_keeps_nobody_waiting(plane: ControlPlane, start: Start) -> None:
    one, other = working(start, 50), working(start, 50)
    with stopped(worker_of(plane, one)):
        goes_on(other, 20)
    goes_on(one, 20)  # what it held meanwhile is paid back first
    assert_part(one, other, 50)


def test_a_killed_worker_keeps_nobody_waiting(plane: ControlPlane, start: Start) -> None:
    one, other = working(start, 50), working(start, 50)
    os.kill(worker_of(plane, one), signal.SIGKILL)
    goes_on(other, 20)
    wait_for(lambda: "error" in one.ask("worked"), LIMIT, "the error")


def test_an_endless_kernel_keeps_nobody_waiting(start: Start) -> None:
    endless, other = start(SLUICE_RATIO="50"), working(start, 50)
    assert endless.ask(f"launch {ENDLESS}") == "launch: ok"
    goes_on(other, 20)


@pytest.mark.control_plane(throttle={"longest_overrun_seconds": 0.5})
def test_an_operator_may_set_a_limit_to_that(plane: ControlPlane, start: Start) -> None:
    endless, other = start(SLUICE_RATIO="50"), working(start, 50)
    (session,) = [s for s in plane.sessions() if s["client_pid"] == endless.pid]
    assert endless.ask(f"launch {ENDLESS}") == "launch: ok"

    def ended() -> bool:
        return bool(plane.rest.get(f"/sessions/{session['id']}").json()["cause"] == "overran")

    wait_for(ended, LIMIT, lambda: str(plane.rest.get(f"/sessions/{session['id']}").json()))
    assert "error" in endless.ask("wait")
    goes_on(other, 20)


def test_without_an_arbiter_all_go_on_and_with_the_next_shares_hold(
    plane: ControlPlane, start: Start
) -> None:
    small, large = working(start, 20), working(start, 80)
    before = arbiter_pid(plane)
    with stopped(before):
        goes_on(small, 20)
        goes_on(large)
    os.kill(before, signal.SIGKILL)
    goes_on(small)
    goes_on(large)
    # for a moment there is none
    run = plane.folder / "run"
    wait_for(
        lambda: standing_processes(run, "arbiter") not in ([], [before]), LIMIT, "another arbiter"
    )
    assert_part(small, large, 20)


def test_shares_outlive_the_server(plane: ControlPlane, start: Start) -> None:
    small, large = working(start, 20), working(start, 80)
    arbiter = arbiter_pid(plane)
    plane.stop("server", signal.SIGKILL)
    assert_part(small, large, 20)
    plane.start_server()
    assert arbiter_pid(plane) == arbiter, "it is taken over"
    assert_part(small, large, 20)
    # the pages came back with the workers: another arbiter finds them all
    os.kill(arbiter, signal.SIGKILL)
    goes_on(small)
    assert_part(small, large, 20)


@pytest.mark.chaos
def test_sixty_four_sessions_on_one_gpu_each_get_on(start: Start) -> None:
    programs = [start(SLUICE_RATIO="1") for _ in range(64)]
    for program in programs:
        assert program.ask(f"work {SHORT_NS}") == "work: ok"
    for _ in range(2):
        for program in programs:
            goes_on(program)


def dripping(start: Start) -> Prompted:
    """A program that has little done at a time, and pauses."""
    program = start(SLUICE_RATIO="25")
    assert program.ask(f"drip {LITTLE_NS}") == "drip: ok"
    wait_for(lambda: worked(program) > 0, LIMIT, "the first kernel")
    return program


def run_at_once(plane: ControlPlane) -> float:
    """For how many seconds the vGPUs that are there did, all together."""
    return scrape(plane.metrics_url).total("sluice_vgpu_together_seconds_total")


def go_on_at_once(plane: ControlPlane) -> None:
    """Waits until all have done so for longer."""
    before = run_at_once(plane)
    wait_for(lambda: run_at_once(plane) > before, LIMIT, "time at once")


@pytest.mark.control_plane(throttle={"run_together": True}, metrics={})
def test_those_that_do_not_fill_the_gpu_run_at_once(plane: ControlPlane, start: Start) -> None:
    small = [dripping(start), dripping(start)]
    go_on_at_once(plane)
    large = working(start, 50)

    def in_turns() -> bool:
        before, done = run_at_once(plane), worked(large)
        wait_for(lambda: worked(large) > done + ENOUGH, LIMIT, "its share")
        return run_at_once(plane) == before

    wait_for(in_turns, LIMIT, "turns beside one that fills it")
    for program in small:
        goes_on(program)
    large.quit()
    go_on_at_once(plane)
    with stopped(arbiter_pid(plane)):
        for program in small:
            goes_on(program, 20)
    os.kill(arbiter_pid(plane), signal.SIGKILL)
    for program in small:
        goes_on(program, 20)
    go_on_at_once(plane)  # by the next one


@pytest.mark.control_plane(metrics={})
def test_they_have_turns_unless_an_operator_wants_it(plane: ControlPlane, start: Start) -> None:
    small = [dripping(start), dripping(start)]
    for _ in range(3):
        for program in small:
            goes_on(program, ENOUGH // 2)
    assert run_at_once(plane) == 0


def vgpu_of(plane: ControlPlane, program: Prompted) -> dict[str, Any]:
    """What REST shows of a program's vGPU."""
    (found,) = [s for s in plane.sessions() if s["client_pid"] == program.pid]
    vgpus = plane.rest.get("/vgpus").json()["vgpus"]
    return dict(next(v for v in vgpus if v["grant_id"] == found["grant_id"]))


def test_what_each_had_is_shown_and_outlives_server_and_controller(
    plane: ControlPlane, start: Start
) -> None:
    small, large = working(start, 20), working(start, 80)
    goes_on(small, 20)
    seen = [vgpu_of(plane, small), vgpu_of(plane, large)]

    def had_more() -> bool:
        now = [vgpu_of(plane, small), vgpu_of(plane, large)]
        return all(
            (after["gpu_seconds"] or 0) > (before["gpu_seconds"] or 0)
            and (after["waited_seconds"] or 0) > (before["waited_seconds"] or 0)
            and 0 < after["share_1s"] <= 1
            and 0 < after["share_60s"] <= 1
            for before, after in zip(seen, now, strict=True)
        )

    wait_for(had_more, LIMIT, lambda: f"figures after {seen}: {vgpu_of(plane, small)}")
    for stop, begin in (
        ("server", plane.start_server),
        ("controller", plane.start_controller),
    ):
        seen = [vgpu_of(plane, small), vgpu_of(plane, large)]
        plane.stop(stop, signal.SIGKILL)
        begin()
        wait_for(had_more, LIMIT, lambda: f"figures: {vgpu_of(plane, small)}")
    (usage,) = plane.rest.get("/usage").json()["usage"][-1:]
    assert usage["gpu_seconds"] > 0
    assert usage["gpu_wait_seconds"] > 0


def test_who_has_nothing_to_do_uses_nothing(plane: ControlPlane, start: Start) -> None:
    idle = start(SLUICE_RATIO="50")
    assert idle.ask(f"launch {LONG}") == "launch: ok"
    wait_for(lambda: (vgpu_of(plane, idle)["gpu_seconds"] or 0) > 0, LIMIT, "some use")
    wait_for(lambda: vgpu_of(plane, idle)["share_1s"] == 0, LIMIT, "none in the last second")
