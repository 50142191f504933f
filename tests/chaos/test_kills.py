# SPDX-License-Identifier: Apache-2.0
"""kill -9 of a real controller amid reservations, usage accounting and preemption, a second a life.

One controller on SQLite and one simulated server (node.py); the checker looks at its account too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from controllers import Controllers
from ends import DONE, GAVE_WAY

from . import checker
from .account import read_accounts
from .node import SimulatedNode, Worker

pytestmark = pytest.mark.chaos

PATIENCE_SECONDS = 180.0
KILLS = 5
NODE = "node-a"


class Pool:
    """The controller and the server of one test."""

    def __init__(self, folder: Path) -> None:
        self.accounts = folder / "account"
        self.accounts.mkdir()
        auth = {"local": "operator", "requests_per_second": 0}
        self.controllers = Controllers(folder, 1, {"kind": "sqlite"}, auth=auth, anew=True)
        self._client = httpx.AsyncClient(timeout=20)

    async def start(self) -> SimulatedNode:
        await asyncio.to_thread(self.controllers.start)
        node = SimulatedNode(NODE, self.controllers.grpc, self.accounts)
        await node.start()
        await self.until(lambda: node.link.is_connected)
        return node

    async def kill(self) -> None:
        """And starts it again at once."""
        self.controllers.signal(0, signal.SIGKILL)
        self.controllers.start_one(0)

    async def call(self, method: str, path: str, **words: Any) -> httpx.Response | None:
        """None where no answer came."""
        with contextlib.suppress(httpx.TransportError):
            address = f"http://{self.controllers.rest[0]}/v1{path}"
            return await self._client.request(method, address, **words)
        return None

    async def get(self, path: str, **parameters: Any) -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (answer := await self.call("GET", path, params=parameters)) is None:
                await asyncio.sleep(0.1)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def until(self, what: Any) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not what():
                await asyncio.sleep(0.02)

    async def settled(self) -> None:
        """What is granted is what runs."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.differences():
                await asyncio.sleep(0.2)
        lines = read_accounts(self.accounts)
        assert checker.overcommitted(lines) == []
        assert checker.owners(lines) == []
        assert checker.ended_without_reason(lines) == []

    async def differences(self) -> list[checker.Violation]:
        found = await self.get("/grants")
        grants = {grant["id"]: grant for grant in found["grants"]}
        snapshot = checker.Snapshot(time.monotonic(), grants, frozenset([NODE]))
        return checker.differences(read_accounts(self.accounts), snapshot)

    async def used(self, project: str) -> float:
        """MiB-seconds."""
        found = await self.get("/usage", project=project)
        return sum(float(record["memory_mib_seconds"]) for record in found["usage"])

    async def close(self) -> None:
        await self._client.aclose()
        self.controllers.close()


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    made = Pool(tmp_path)
    try:
        yield made
    finally:
        await made.close()


async def run(node: SimulatedNode, percent: int, **wanted: Any) -> Worker:
    worker = await node.ask(
        hold_seconds=None, vgpu_count=1, memory_mib=1000, compute_percent=percent,
        wait_seconds=-1, **wanted,
    )  # fmt: skip
    assert worker
    return worker


async def test_usage_is_neither_lost_nor_counted_twice(pool: Pool) -> None:
    node = await pool.start()
    began = time.monotonic()
    await run(node, 10)
    started = time.monotonic()
    reserved = await pool.call(
        "POST",
        "/reservations",
        json={"owner_kind": "vm", "owner": "v", "project": "r", "memory_mib": 500,
              "compute_percent": 10},
    )  # fmt: skip
    assert reserved is not None
    assert reserved.status_code == 201
    held = time.monotonic()
    dice = random.Random(1)
    for _ in range(KILLS):
        await asyncio.sleep(dice.uniform(0.2, 2.0))
        await pool.kill()
        # something changes in each life: that is when usage is stored
        worker = await run(node, 1, priority=0)
        node.end_grant(worker.grant, DONE)
        await pool.until(lambda worker=worker: worker.session not in node.workers)
    await pool.get("/grants")
    for project, mib, earliest, latest in (
        ("default", 1000, began, started),
        ("r", 500, started, held),
    ):
        before = time.monotonic()
        used = await pool.used(project)
        after = time.monotonic()
        extra = 2 * 1000 * (after - began) if project == "default" else 0.0  # the passing workers
        assert mib * (before - latest) - mib <= used <= mib * (after - earliest) + extra + mib


async def test_a_reservation_is_held_as_a_whole_or_was_never_acknowledged(pool: Pool) -> None:
    node = await pool.start()
    acknowledged: dict[str, int] = {}
    dice = random.Random(2)

    async def reserve() -> None:
        while True:
            count = dice.choice((1, 2))
            answer = await pool.call(
                "POST",
                "/reservations",
                json={"owner_kind": "label", "owner": "team", "count": count,
                      "memory_mib": 100, "compute_percent": 1},
            )  # fmt: skip
            if answer is not None and answer.status_code == 201:
                acknowledged[answer.json()["id"]] = count
            await asyncio.sleep(0.01)

    reserving = asyncio.create_task(reserve())
    for _ in range(KILLS):
        more = len(acknowledged) + 3
        await pool.until(lambda more=more: len(acknowledged) >= more or len(acknowledged) > 40)
        await pool.kill()
    await pool.until(lambda: node.link.is_connected)
    reserving.cancel()
    await asyncio.gather(reserving, return_exceptions=True)
    found = (await pool.get("/reservations"))["reservations"]
    states = {r["id"]: (r["state"], len(r["slots"])) for r in found}
    assert acknowledged.items() <= {name: slots for name, (_, slots) in states.items()}.items()
    assert {state for state, _ in states.values()} == {"held"}
    kept = sum(gpu["kept_mib"] for gpu in (await pool.get("/gpus"))["gpus"])
    assert kept == sum(slots for _, slots in states.values()) * (100 + 300)
    drawing = await node.ask(
        hold_seconds=None, label="team", vgpu_count=1, memory_mib=100, compute_percent=1,
        wait_seconds=-1,
    )  # fmt: skip
    assert drawing
    [grant] = (await pool.get("/grants"))["grants"]
    await pool.kill()
    await pool.settled()
    drawn = [r for r in (await pool.get("/reservations"))["reservations"] if r["grants"]]
    assert [r["grants"] for r in drawn] == [[grant["id"]]]


async def test_who_preempts_has_its_room_whenever_the_controller_dies(pool: Pool) -> None:
    node = await pool.start()
    quota = {"may_preempt": True}
    answer = await pool.call("PUT", "/quotas/default", json=quota)
    assert answer is not None
    assert answer.status_code == 200
    dice = random.Random(3)
    for _ in range(KILLS):
        victims = [await run(node, 100, priority=0) for _ in range(2)]
        preempting = asyncio.create_task(run(node, 100, priority=5, preempt=True))
        await asyncio.sleep(dice.uniform(0.0, 0.3))
        await pool.kill()
        winner = await asyncio.wait_for(preempting, PATIENCE_SECONDS)
        left = [worker for worker in victims if worker.session in node.workers]
        assert len(left) == 1, "the cheapest set is one, in one life or in two"
        await pool.settled()
        for worker in (*left, winner):
            node.end_grant(worker.grant, GAVE_WAY)
        await pool.until(lambda: not node.workers)
