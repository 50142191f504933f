# SPDX-License-Identifier: Apache-2.0
"""Orders that overtake answers: a grant that is ended while it is on its way here never runs on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import grpc
import pytest

from sluice.resources.ends import End
from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc
from sluice.server.controller.link import ControllerLink
from sluice.server.sessions.open_session import RefusalError

T = TypeVar("T")

VGPU = rpc.Vgpu(gpu_uuid="g", memory_mib=1, compute_percent=1)


class ScriptedController(pool_pb2_grpc.PoolServicer):
    """A controller's gRPC service that says what a test wants, when it wants it."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[rpc.Order] = asyncio.Queue()
        self.answers: asyncio.Queue[rpc.GrantAnswer] = asyncio.Queue()
        self.reports: asyncio.Queue[rpc.NodeReport] = asyncio.Queue()
        self.released: asyncio.Queue[rpc.GrantRelease] = asyncio.Queue()

    async def Register(  # noqa: N802
        self, request_iterator: AsyncIterator[rpc.NodeReport], context: object
    ) -> AsyncIterator[rpc.Order]:
        async def read() -> None:
            async for report in request_iterator:
                self.reports.put_nowait(report)

        reader = asyncio.create_task(read())
        try:
            yield rpc.Order(welcome=rpc.Welcome(heartbeat_seconds=60))
            while True:
                yield await self.orders.get()
        finally:
            reader.cancel()

    async def RequestGrant(  # noqa: N802
        self, request: rpc.GrantRequest, context: object
    ) -> AsyncIterator[rpc.GrantAnswer]:
        yield await self.answers.get()

    async def ReleaseGrant(  # noqa: N802
        self, request: rpc.GrantRelease, context: object
    ) -> rpc.GrantReleased:
        self.released.put_nowait(request)
        return rpc.GrantReleased(was_live=True)


class Side:
    """A server without anything, which notes what it is told to end."""

    def __init__(self) -> None:
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.resized: list[str] = []
        self.suspended: list[tuple[str, bool]] = []

    def inventory(self) -> rpc.Inventory:
        return rpc.Inventory(node="a")

    def take_assignment(self, assignment: rpc.Assignment) -> None:
        pass

    def end_grant(self, grant_id: str, why: End) -> None:
        self.ended.put_nowait(grant_id)

    async def resize_grant(self, grant_id: str, vgpus: Sequence[rpc.Vgpu]) -> None:
        self.resized.append(grant_id)

    def suspend_grant(self, order: rpc.SuspendGrant) -> None:
        self.suspended.append((order.grant_id, order.resume))

    async def hand_over(self, order: rpc.HandOver) -> None:
        pass

    async def native_order(self, order: rpc.NativeOrder) -> rpc.NativeDone:
        return rpc.NativeDone()

    def report_holdings(self) -> None:
        pass

    def read_log(self, session_id: str, tail_bytes: int) -> str:
        return ""


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[ScriptedController, Side, ControllerLink]]:
    controller, side = ScriptedController(), Side()
    server = grpc.aio.server()
    pool_pb2_grpc.add_PoolServicer_to_server(controller, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    link = ControllerLink([f"127.0.0.1:{port}"], side, wait_seconds=20)
    running = asyncio.create_task(link.run())
    try:
        yield controller, side, link
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await link.close()
        await server.stop(None)


def end_order(reason: str = "preempted: x") -> rpc.Order:
    return rpc.Order(end_grant=rpc.EndGrant(grant_id="grant", reason=reason))


def granted() -> rpc.GrantAnswer:
    return rpc.GrantAnswer(
        granted=rpc.Granted(grant_id="grant", session_id="session", vgpus=[VGPU])
    )


async def soon(queue: asyncio.Queue[T]) -> T:
    return await asyncio.wait_for(queue.get(), 20)


async def test_a_grant_that_was_ended_before_its_answer_came_is_not_run() -> None:
    async with connected() as (controller, side, link):

        async def ask() -> None:
            async with link.grant(rpc.GrantRequest(node="a"), lambda _: None):
                pytest.fail("it was begun")

        asking = asyncio.create_task(ask())
        controller.orders.put_nowait(end_order())
        assert await soon(side.ended) == "grant", "the books hear that nothing of it is here"
        controller.answers.put_nowait(granted())
        with pytest.raises(RefusalError, match="preempted: x"):
            await asyncio.wait_for(asking, 20)
        await soon(controller.released)


async def test_an_assignment_that_its_end_has_overtaken_is_not_taken() -> None:
    async with connected() as (controller, side, _):
        controller.orders.put_nowait(end_order())
        assert await soon(side.ended) == "grant", "the books give its room away"
        assignment = rpc.Assignment(session_id="session", grant_id="grant", key="k", vgpus=[VGPU])
        for expected in ("preempted: x", ""):  # what comes under that name later is another
            controller.orders.put_nowait(rpc.Order(assignment=assignment))
            while not (report := await soon(controller.reports)).HasField("assignment_taken"):
                pass
            assert report.assignment_taken.error == expected


async def test_a_grant_that_is_ended_while_its_session_is_made_ends_when_it_is_there() -> None:
    async with connected() as (controller, side, link):
        controller.answers.put_nowait(granted())
        resize = rpc.ResizeGrant(grant_id="grant", vgpus=[VGPU])
        async with link.grant(rpc.GrantRequest(node="a"), lambda _: None) as grant:
            controller.orders.put_nowait(end_order())
            controller.orders.put_nowait(rpc.Order(resize_grant=resize))
            while not (report := await soon(controller.reports)).HasField("grant_resized"):
                pass
            assert "being opened" in report.grant_resized.error
            assert side.ended.empty(), "its room would be given away before it has gone"
        assert await soon(side.ended) == grant.grant_id
        assert side.resized == []
        assert controller.released.empty()


async def test_a_grant_whose_session_cannot_be_made_is_given_back() -> None:
    async with connected() as (controller, _, link):
        controller.answers.put_nowait(granted())
        with pytest.raises(RuntimeError):
            async with link.grant(rpc.GrantRequest(node="a"), lambda _: None):
                raise RuntimeError("no worker")
        await soon(controller.released)
