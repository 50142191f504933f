# SPDX-License-Identifier: Apache-2.0
"""A controller that still loads its pool: who calls waits, and is checked all the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from free_ports import free_port

from sluice.config.controller import AuthSection, ControllerConfig, ControllerSection
from sluice.controller.pool.pool import Snapshot
from sluice.controller.service import Controller
from sluice.controller.store.sqlite import SqliteStore
from sluice.controller.store.store import StoreError
from sluice.rpc import pool_pb2 as rpc
from sluice.rpc import pool_pb2_grpc


class HeldLoad:
    """Holds every load of a SQLite store until it is let on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.error: StoreError | None = None
        load = SqliteStore.load

        async def held(store: SqliteStore) -> Snapshot:
            self.begun.set()
            await self.go_on.wait()
            if self.error:
                raise self.error
            return await load(store)

        monkeypatch.setattr(SqliteStore, "load", held)


@contextlib.asynccontextmanager
async def starting(
    folder: Path, held: HeldLoad, required: Any
) -> AsyncIterator[tuple[asyncio.Task[None], Any]]:
    """A controller that loads, and a stub that has called it."""
    port = free_port()
    controller = Controller(
        ControllerConfig(
            controller=ControllerSection(
                store=folder / "store.db", rest_port=free_port(), grpc_port=port
            ),
            auth=AuthSection(required=required),
        )
    )
    start = asyncio.create_task(controller.start())
    await asyncio.wait_for(held.begun.wait(), 10)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            yield start, pool_pb2_grpc.PoolStub(channel)
        finally:
            held.go_on.set()
            with contextlib.suppress(StoreError):
                await start
                await controller.stop()


async def reports(node: str) -> AsyncIterator[rpc.NodeReport]:
    yield rpc.NodeReport(inventory=rpc.Inventory(node=node, data_address="127.0.0.1", data_port=1))
    await asyncio.Event().wait()


async def test_a_server_that_calls_meanwhile_waits_and_is_welcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldLoad(monkeypatch)
    async with starting(tmp_path, held, "no") as (start, stub):
        call = stub.Register(reports("a"))
        first = asyncio.ensure_future(call.read())
        done, _ = await asyncio.wait([first], timeout=0.5)
        assert not done
        held.go_on.set()
        await start
        assert (await asyncio.wait_for(first, 10)).WhichOneof("order") == "welcome"
        call.cancel()


async def test_who_calls_meanwhile_without_a_token_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldLoad(monkeypatch)
    async with starting(tmp_path, held, "yes") as (_, stub):
        calls = [
            asyncio.ensure_future(stub.Register(reports("a")).read()),
            asyncio.ensure_future(stub.RequestGrant(rpc.GrantRequest(node="a")).read()),
            asyncio.ensure_future(stub.ReleaseGrant(rpc.GrantRelease(grant_id="g")).code()),
        ]
        done, _ = await asyncio.wait(calls, timeout=0.5)
        assert not done
        held.go_on.set()
        for call in calls[:2]:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asyncio.wait_for(call, 10)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await asyncio.wait_for(calls[2], 10) is grpc.StatusCode.UNAUTHENTICATED


async def test_a_store_that_cannot_be_read_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldLoad(monkeypatch)
    held.error = StoreError("the store is no store")
    async with starting(tmp_path, held, "no") as (start, stub):
        call = asyncio.ensure_future(stub.RequestGrant(rpc.GrantRequest(node="a")).read())
        await asyncio.wait([call], timeout=0.2)
        held.go_on.set()
        with pytest.raises(StoreError, match="is no store"):
            await start
        with pytest.raises(grpc.aio.AioRpcError):
            await asyncio.wait_for(call, 10)
