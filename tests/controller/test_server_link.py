# SPDX-License-Identifier: Apache-2.0
"""Calls to a server: each has one answer, and none is taken for another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sluice.controller.pool.decisions import ResizeOrder
from sluice.controller.pool.model import Vgpu
from sluice.controller.rpc.server_link import (
    ANSWERS,
    ASSIGN,
    GPU,
    RESIZE,
    OrderRefused,
    ServerLink,
    ServerSilent,
)
from sluice.rpc import pool_pb2 as rpc

RESIZED = ResizeOrder("node", "grant-1", (Vgpu("GPU-0", 64, 10),))

CALLS: dict[str, Callable[[ServerLink, float], Coroutine[Any, Any, Any]]] = {
    "resize_grant": lambda link, timeout: link.resize(RESIZED, timeout),
    "read_log": lambda link, timeout: link.read_log("session-1", 64, timeout),
    "native": lambda link, timeout: link.native(rpc.NativeOrder(gpu_uuid="GPU-0"), timeout),
    "gpu_order": lambda link, timeout: link.order_gpu("GPU-0", clear=True, timeout=timeout),
}


async def sent(link: ServerLink) -> Any:
    """What the server reads next, without its Order around it."""
    order = await asyncio.wait_for(link.orders.get(), 20)
    assert order is not None
    return getattr(order, str(order.WhichOneof("order")))


async def test_a_late_answer_is_not_taken_for_the_next_of_the_same_grant() -> None:
    link = ServerLink()
    with pytest.raises(ServerSilent):
        await link.resize(RESIZED, 0.01)
    first = await sent(link)
    again = asyncio.create_task(link.resize(RESIZED, 20))
    second = await sent(link)
    link.answered(RESIZE, rpc.GrantResized(grant_id="grant-1", call=first.call, error="too late"))
    link.answered(RESIZE, rpc.GrantResized(grant_id="grant-1", call=second.call))
    await again


async def test_a_server_of_0_1_names_the_grant_that_it_answers_about() -> None:
    link = ServerLink()
    resizing = asyncio.create_task(link.resize(RESIZED, 20))
    await sent(link)
    link.answered(RESIZE, rpc.GrantResized(grant_id="grant-2"))
    link.answered(ASSIGN, rpc.AssignmentTaken(session_id="grant-1"))
    await asyncio.sleep(0)
    assert not resizing.done()
    link.answered(RESIZE, rpc.GrantResized(grant_id="grant-1", error="no"))
    with pytest.raises(OrderRefused, match="no"):
        await resizing


async def test_an_answer_of_another_kind_is_none() -> None:
    link = ServerLink()
    resizing = asyncio.create_task(link.resize(RESIZED, 20))
    order = await sent(link)
    link.answered(GPU, rpc.GpuOrderTaken(call=order.call))
    await asyncio.sleep(0)
    assert not resizing.done()
    link.answered(RESIZE, rpc.GrantResized(call=order.call))
    await resizing


@pytest.mark.parametrize("name", CALLS)
async def test_a_lost_line_and_a_silent_server_are_the_same_for_every_call(name: str) -> None:
    link = ServerLink()
    with pytest.raises(ServerSilent, match="did not answer within"):
        await CALLS[name](link, 0.01)
    asking = asyncio.create_task(CALLS[name](link, 20))
    await sent(link)
    await sent(link)
    link.close()
    with pytest.raises(ServerSilent, match="stream of its server ended"):
        await asking


def test_every_answer_of_the_protocol_with_an_error_is_known() -> None:
    """But HandedOver and GrantSuspension, which a server also sends of its own accord."""
    with_error = {
        field.name
        for field in rpc.NodeReport.DESCRIPTOR.fields
        if "error" in field.message_type.fields_by_name
    }
    assert with_error == {*ANSWERS, "handed_over", "grant_suspension"}
    for kind in ANSWERS.values():
        order = rpc.Order.DESCRIPTOR.fields_by_name[kind.order].message_type
        assert {"call", kind.name} <= set(order.fields_by_name), kind
