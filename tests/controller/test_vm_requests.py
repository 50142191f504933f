# SPDX-License-Identifier: Apache-2.0
"""What VMs ask for, changed by REST over real gRPC: done, refused, too old, changed meanwhile."""

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

VM = "606ef660-97e7-4293-92c4-c8b7480e0c99"


class VmServer(SimulatedServer):
    """A server whose libvirt is one VM; it can be told to refuse, or to hesitate."""

    def __init__(self, *arguments: Any) -> None:
        self.vm = rpc.GuestMachine(
            domain_uuid=VM, domain_name="web", project="vision", vgpu_count=1, memory_mib=1000,
            compute_percent=25, priority=2, mode="auto",
        )  # fmt: skip
        self.refusal = ""
        self.knows = True
        self.orders: list[rpc.ChangeRequest] = []
        super().__init__(*arguments)

    def inventory(self) -> rpc.Inventory:
        found = super().inventory()
        found.changes_requests = self.knows
        return found

    async def change_request(self, order: rpc.ChangeRequest) -> rpc.RequestChanged:
        self.orders.append(order)
        if not self.refusal:
            for field, value in order.ListFields():
                if field.name not in ("call", "domain_uuid"):
                    setattr(self.vm, field.name, value)
            self.report_vms()
        return rpc.RequestChanged(call=order.call, error=self.refusal, notes=["mind the region"])

    def report_vms(self) -> None:
        machines = rpc.GuestMachines(machines=[self.vm])
        self.link.report(rpc.NodeReport(guest_machines=machines))


@pytest.fixture
async def server(plane: ControlPlane) -> AsyncIterator[VmServer]:
    server = VmServer("sim", [f"127.0.0.1:{plane.grpc_port}"], 1)
    await server.joined()
    server.report_vms()
    await seen(plane, count=1)
    yield server
    await server.close()


async def ask(plane: ControlPlane, method: str, **how: Any) -> httpx.Response:
    return await asyncio.to_thread(plane.rest.request, method, f"/vms/{VM}", **how)


async def seen(plane: ControlPlane, **wanted: Any) -> dict[str, Any]:
    """The VM, once it is shown so."""
    async with asyncio.timeout(30):
        while True:
            answer = await ask(plane, "GET")
            found: dict[str, Any] = answer.json()
            if answer.status_code == 200 and wanted.items() <= found.items():
                return found
            await asyncio.sleep(0.02)


async def test_what_is_named_is_changed_and_the_rest_stays(
    plane: ControlPlane, server: VmServer
) -> None:
    before = await ask(plane, "GET")
    etag = before.headers["etag"]
    done = await ask(
        plane, "PATCH", json={"memory_mib": 3000, "priority": 0}, headers={"If-Match": etag}
    )
    assert done.status_code == 200, done.text
    assert done.json()["notes"] == ["mind the region"]
    [order] = server.orders
    assert [field.name for field, _ in order.ListFields()] == [
        "call", "domain_uuid", "memory_mib", "priority"]  # fmt: skip
    after = await seen(plane, memory_mib=3000, priority=0, count=1, compute_percent=25)
    assert after["generation"] != before.json()["generation"]
    late = await ask(plane, "PATCH", json={"count": 2}, headers={"If-Match": etag})
    assert late.status_code == 412
    assert len(server.orders) == 1


async def test_a_reservation_follows_the_request(plane: ControlPlane, server: VmServer) -> None:
    assert (await ask(plane, "PATCH", json={"mode": "reserved"})).status_code == 200
    vm = await seen(plane, mode="reserved")
    assert vm["reservation"]
    await ask(plane, "PATCH", json={"memory_mib": 2000})
    vm = await seen(plane, memory_mib=2000, mode="reserved")
    found = plane.rest.get(f"/reservations/{vm['reservation']}").json()
    assert (found["memory_mib"], found["owner"]) == (2000, VM)


@pytest.mark.parametrize(
    "body",
    [{}, {"count": 0}, {"count": 10**9}, {"memory_mib": -1}, {"compute_percent": 101},
     {"mode": "always"}, {"priority": 2**40}, {"count": "many"}],
)  # fmt: skip
async def test_what_cannot_be_is_refused_here(
    plane: ControlPlane, server: VmServer, body: dict[str, Any]
) -> None:
    assert (await ask(plane, "PATCH", json=body)).status_code == 422
    assert not server.orders


async def test_a_server_that_refuses_is_quoted(plane: ControlPlane, server: VmServer) -> None:
    server.refusal = "web has a managed save image"
    refused = await ask(plane, "PATCH", json={"count": 2})
    assert refused.status_code == 409
    assert refused.json()["detail"] == "node sim: web has a managed save image"
    missing = await asyncio.to_thread(plane.rest.patch, "/vms/none", json={"count": 2})
    assert missing.status_code == 404


async def test_a_server_that_is_too_old_or_gone_is_not_asked(
    plane: ControlPlane, server: VmServer
) -> None:
    server.knows = False
    await server.close()
    async with asyncio.timeout(60):  # a question may still be on its way when the stream ends
        while (
            "start its sluice-server"
            not in (gone := await ask(plane, "PATCH", json={"count": 2})).json()["detail"]
        ):
            assert "ended; look again" in gone.json()["detail"]
    assert gone.status_code == 503
    older = VmServer("sim", [f"127.0.0.1:{plane.grpc_port}"], 1)
    older.knows = False
    await older.joined()
    older.report_vms()
    refused = await ask(plane, "PATCH", json={"count": 2})
    assert refused.status_code == 409
    assert "sluice vm resize" in refused.json()["detail"]
    assert not older.orders
    await older.close()
