# SPDX-License-Identifier: Apache-2.0
"""Which sessions have nothing on a GPU that fails, and that nothing comes back on one."""

from __future__ import annotations

import asyncio

from sluice.server.sessions.given_orders import GivenOrder

from .suspended_bench import UUIDS, Bench


async def test_nothing_of_one_that_is_off_is_there_until_it_is_to_come_back_there() -> None:
    bench = Bench(movable=True, beside=UUIDS).follow()
    assert not bench.suspensions.is_off("g", "GPU-0"), "it runs"
    await bench.order(suspend=True)
    assert bench.suspensions.is_off("g", "GPU-0")
    for to, off in (("GPU-1", True), ("GPU-0", False), ("", False)):
        bench.suspensions.begin("g", GivenOrder(False, to=to, serial=7))
        bench.suspensions._orders.take("g")
        assert bench.suspensions.is_off("g", "GPU-0") is off, to
        bench.suspensions._orders.finish("g", GivenOrder(False), refused=True)
        bench.suspensions._orders.take("g")
    await asyncio.gather(*bench.suspensions._tasks)


async def test_memory_that_others_have_open_is_there() -> None:
    bench = Bench({"vgpu.0.exported_mib": "20"}).follow()
    await bench.order(suspend=True)
    assert not bench.suspensions.is_off("g", "GPU-0")


async def test_nothing_comes_back_on_a_gpu_that_has_failed_and_it_goes_elsewhere() -> None:
    bench = Bench(movable=True, beside=UUIDS).follow()
    await bench.order(suspend=True)
    closed = {"GPU-0": "it has failed: XID 79", "GPU-2": "its acceptance checks run"}
    bench.suspensions.why_closed = lambda uuid: closed.get(uuid, "")
    for to in ("", "GPU-2"):
        refused = await bench.refused(to)
        assert closed[to or "GPU-0"] in refused.error
        assert (refused.state, refused.context) == ("suspended", "off")
    last = await bench.order(suspend=False, to="GPU-1")
    assert (last.state, list(last.gpu_uuids)) == ("running", ["GPU-1"])
