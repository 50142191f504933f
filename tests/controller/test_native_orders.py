# SPDX-License-Identifier: Apache-2.0
"""Orders about whole GPUs over real gRPC: answered, refused, late, or cut off in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane
from controllers import SimulatedServer

from sluice.rpc import pool_pb2 as rpc

pytestmark = pytest.mark.control_plane(with_server=False, fake=True)

PCI = "0000:65:00.0"
VM = "606ef660-97e7-4293-92c4-c8b7480e0c99"
GPU = "sim:sim-0"


class VmServer(SimulatedServer):
    """A server whose libvirt is a set of names; it can be told to hesitate."""

    def __init__(self, *arguments: Any) -> None:
        self.holders: set[str] = set()
        self.refusal = ""
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.orders: list[str] = []
        super().__init__(*arguments)

    def inventory(self) -> rpc.Inventory:
        found = super().inventory()
        found.hands_over = True
        found.gpus[0].pci_address = PCI
        return found

    async def native_order(self, order: rpc.NativeOrder) -> rpc.NativeDone:
        self.orders.append(str(order.WhichOneof("step")))
        await self.go_on.wait()
        done = rpc.NativeDone(call=order.call, error=self.refusal)
        if not self.refusal and order.HasField("attach"):
            self.holders.add(order.attach.domain)
            done.notes.append("mind its BARs")
        elif not self.refusal:
            self.holders.clear()
        for name in self.holders:
            done.holding.CopyFrom(holding(name))
        return done

    def report_holdings(self) -> None:
        holdings = rpc.NativeHoldings(holdings=[holding(name) for name in self.holders])
        self.link.report(rpc.NodeReport(native_holdings=holdings))


def holding(name: str) -> rpc.NativeHolding:
    return rpc.NativeHolding(
        pci_address=PCI, domain_uuid=VM, domain_name=name, live=True, config=True
    )


@pytest.fixture
async def server(plane: ControlPlane) -> AsyncIterator[VmServer]:
    server = VmServer("sim", [f"127.0.0.1:{plane.grpc_port}"], 1)
    await server.joined()
    await until(plane, "mode", "pooled")
    assert (await ask(plane, "PUT", "switch", json={"to": "native"})).status_code == 202
    await until(plane, "mode", "native")
    yield server
    await server.close()


async def ask(plane: ControlPlane, method: str, what: str = "attachment", **how: Any) -> Any:
    path = f"/gpus/{GPU}/{what}" if what else f"/gpus/{GPU}"
    return await asyncio.to_thread(plane.rest.request, method, path, **how)


async def attach(plane: ControlPlane, **how: Any) -> httpx.Response:
    answer: httpx.Response = await ask(plane, "PUT", json={"domain": "web"}, **how)
    return answer


async def until(plane: ControlPlane, field: str, value: Any) -> None:
    """Waits for a GPU that looks so."""
    async with asyncio.timeout(30):
        while (await ask(plane, "GET", "")).json().get(field) != value:
            await asyncio.sleep(0.05)


async def state(plane: ControlPlane) -> str:
    answer = await ask(plane, "GET")
    return str(answer.json()["state"]) if answer.status_code == 200 else ""


async def test_it_is_done_when_the_answer_comes(plane: ControlPlane, server: VmServer) -> None:
    answer = await attach(plane, headers={"If-Match": '"7"'})
    assert answer.status_code == 412
    shown = (await attach(plane)).json()
    assert (shown["state"], shown["domain_uuid"], shown["reason"]) == (
        "attached", VM, "mind its BARs",
    )  # fmt: skip
    assert (await ask(plane, "GET", "")).json()["held_by"] == "web"
    assert (await ask(plane, "DELETE")).json()["state"] == "detached"
    assert server.orders == ["attach", "detach"]
    assert (await ask(plane, "DELETE")).status_code == 404


async def test_what_the_server_refuses_is_the_answer(plane: ControlPlane, server: VmServer) -> None:
    server.refusal = "0000:65:00.1 shares its IOMMU group"
    answer = await attach(plane)
    assert (answer.status_code, answer.json()["title"]) == (409, "Not attached")
    assert "0000:65:00.1" in answer.json()["detail"]
    assert await state(plane) == ""
    server.refusal = ""
    await attach(plane)
    server.refusal = "the guest has not released it"
    answer = await ask(plane, "DELETE")
    assert (answer.status_code, "not released" in answer.json()["detail"]) == (409, True)
    assert await state(plane) == "attached"


async def test_an_answer_that_is_late_counts_all_the_same(
    plane: ControlPlane, server: VmServer
) -> None:
    server.go_on.clear()
    answer = await attach(plane)
    assert (answer.status_code, answer.json()["state"]) == (202, "attaching")
    refused = await attach(plane)
    assert (refused.status_code, "has an order about" in refused.json()["detail"]) == (409, True)
    server.go_on.set()
    await until(plane, "held_by", "web")
    async with asyncio.timeout(30):
        while await state(plane) != "attached":
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("was_done", [True, False])
async def test_what_became_of_a_cut_off_order_is_what_libvirt_says(
    plane: ControlPlane, server: VmServer, was_done: bool
) -> None:
    server.go_on.clear()
    asking = asyncio.create_task(attach(plane))
    async with asyncio.timeout(30):
        while not server.orders:
            await asyncio.sleep(0.02)
    if was_done:
        server.holders.add("web")
    else:
        server.refusal = "libvirtd was restarted"
    plane.stop("controller")  # it knows of the order by its store only, and of no answer
    server.go_on.set()
    await asyncio.to_thread(plane.start_controller)
    with pytest.raises(httpx.HTTPError):
        (await asking).raise_for_status()
    async with asyncio.timeout(60):
        while await state(plane) != ("attached" if was_done else ""):
            await asyncio.sleep(0.05)
