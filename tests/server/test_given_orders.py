# SPDX-License-Identifier: Apache-2.0
"""Orders to suspend and resume with serials: carried out in turn, each once, and reported."""

from __future__ import annotations

import asyncio

from sluice.rpc import pool_pb2 as rpc
from sluice.server.sessions.given_orders import GivenOrder

from .suspended_bench import UUIDS, Bench


def suspend(serial: int, moving_to: str = "") -> GivenOrder:
    order = rpc.SuspendGrant(grant_id="g", serial=serial, moving_to=moving_to)
    return GivenOrder.read(order)


def resume(serial: int, to: str = "") -> GivenOrder:
    return GivenOrder.read(rpc.SuspendGrant(grant_id="g", resume=True, serial=serial, gpu_uuid=to))


async def given(bench: Bench, *orders: GivenOrder) -> rpc.GrantSuspension:
    """All of them at once; what was reported last, when nothing of it is under way any more."""
    for order in orders:
        bench.suspensions.begin("g", order)
    while tasks := bench.suspensions._tasks:
        await asyncio.gather(*tasks)
    return bench.reports[-1]


def verbs(bench: Bench) -> list[str]:
    steps = ("suspend", "move_out", "wake")
    return [verb for verb in bench.workers[0].verbs if verb in steps]


async def test_an_order_that_comes_while_another_is_carried_out_is_carried_out_behind_it() -> None:
    bench = Bench().follow()
    bench.suspensions.begin("g", suspend(1))
    assert bench.suspensions.message("g").busy, "before anything of it has happened"
    await asyncio.sleep(0)
    await given(bench, resume(2))
    assert verbs(bench) == ["suspend", "move_out", "wake"]
    told = [(report.state, report.serial, report.busy) for report in bench.reports]
    assert told == [("suspended", 1, True), ("running", 2, False)]


async def test_of_those_that_wait_the_newest_is_carried_out() -> None:
    bench = Bench().follow()
    last = await given(bench, suspend(1), resume(2), suspend(3))
    assert verbs(bench) == ["suspend", "move_out"]
    assert {report.state for report in bench.reports} == {"suspended"}
    assert last.serial == 3


async def test_what_was_carried_out_is_reported_and_not_carried_out_again() -> None:
    bench = Bench().follow()
    await given(bench, suspend(3))
    await given(bench, resume(4))
    for stale in (suspend(3), resume(4)):
        last = await given(bench, stale)
        assert (last.state, last.serial) == ("running", 4)
    assert verbs(bench) == ["suspend", "move_out", "wake"]


async def test_a_controller_that_comes_is_told_what_was_carried_out_of_what_runs_too() -> None:
    bench = Bench().follow()
    assert bench.suspensions.messages() == []
    await given(bench, suspend(1))
    await given(bench, resume(2))
    [message] = bench.suspensions.messages()
    assert (message.state, message.serial) == ("running", 2)
    bench.suspensions.leave(bench.sessions[0])
    assert bench.suspensions._orders._done == {}


async def test_where_it_is_to_go_is_remembered_until_it_is_there_or_not_to_go() -> None:
    bench = Bench(movable=True, beside=UUIDS).follow()
    bench.suspensions.begin("g", suspend(1, "GPU-1"))
    assert bench.suspensions.message("g").moving_to == "GPU-1"
    assert (await given(bench)).moving_to == "GPU-1"
    bench.suspensions.begin("g", resume(2, "GPU-2"))
    await asyncio.sleep(0)
    assert bench.suspensions.message("g").moving_to == "GPU-2", "it is told otherwise"
    last = await given(bench)
    assert (last.serial, last.moving_to, list(last.gpu_uuids)) == (2, "", ["GPU-2"])


async def test_a_move_that_is_refused_is_not_remembered() -> None:
    bench = Bench().follow()
    await given(bench, suspend(1, "GPU-1"))
    bench.reports.clear()
    await given(bench, resume(2, "GPU-1"))
    [refusal] = [report for report in bench.reports if report.error]
    assert (refusal.serial, refusal.moving_to) == (2, "")


async def test_an_older_controllers_order_that_comes_meanwhile_is_given_again_by_it() -> None:
    bench = Bench().follow()
    last = await given(bench, suspend(0), resume(0))
    assert (last.state, verbs(bench)) == ("suspended", ["suspend", "move_out"])
    assert (await given(bench, resume(0))).state == "running"
