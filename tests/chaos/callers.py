# SPDX-License-Identifier: Apache-2.0
"""Who calls the controllers over REST: tenants without a server near them, and an operator.

Used by test_chaos.py. Tenants ask for sessions and open them at the node's data port with their
one-time key. The operator reserves, resizes, ends, drains and sets quotas, and notes what was
acknowledged, so that it can be asked for at the end. Nobody retries what may have happened.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from .cluster import Cluster

RETRY_SECONDS = 0.3
PATIENCE_SECONDS = 300.0  # for whatever has no limit of its own


class PoolRest:
    """REST of whichever controller leads."""

    def __init__(self, cluster: Cluster, token: str) -> None:
        self._addresses = itertools.cycle(cluster.controllers.rest)
        self._address = next(self._addresses)
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}"}, timeout=httpx.Timeout(5, read=40)
        )

    async def call(self, method: str, path: str, **words: Any) -> httpx.Response | None:
        """The answer of the leader; None where none came, whatever has happened there."""
        for _ in range(2 * 3):
            try:
                answer = await self._client.request(
                    method, f"http://{self._address}/v1{path}", **words
                )
            except httpx.ConnectError:
                self._address = next(self._addresses)
            except httpx.HTTPError:
                self._address = next(self._addresses)
                return None
            else:
                if answer.status_code == 307:
                    self._address = httpx.URL(answer.headers["location"]).netloc.decode()
                    continue
                if answer.status_code != 503:
                    return answer
                self._address = next(self._addresses)
            await asyncio.sleep(RETRY_SECONDS)
        return None

    async def get(self, path: str, **parameters: Any) -> Any:
        """A document, asked for until it comes; fails the test when none does."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = await self.call("GET", path, params=parameters)
            if answer is not None and answer.status_code == 200:
                return answer.json()
            said = "nothing" if answer is None else f"{answer.status_code}: {answer.text[:500]}"
            assert time.monotonic() < deadline, f"{path}: {self._address} answers {said}"
            await asyncio.sleep(RETRY_SECONDS)

    async def all(self, path: str, name: str) -> list[dict[str, Any]]:
        """Every page of a list; live ones where there is a choice."""
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {}
        while True:
            document = await self.get(path, limit=10_000, **page)
            found += document[name]
            if not document.get("next_marker"):
                return found
            page = {"marker": document["next_marker"]}

    async def close(self) -> None:
        """Hangs up."""
        await self._client.aclose()


class Tenant:
    """Clients of one project over the network."""

    def __init__(self, cluster: Cluster, project: str, seed: int) -> None:
        self._rest = PoolRest(cluster, cluster.tenants[project])
        self._dice = random.Random(f"{seed}-{project}")
        self.answers: Counter[int | None] = Counter()  # by status
        self.opened = 0

    async def call(self) -> None:
        """Asks and runs, until it is cancelled."""
        dice = self._dice
        while True:
            answer = await self._rest.call(
                "POST",
                "/sessions",
                json={
                    "vgpu_count": 1,
                    "gmem_mib": dice.choice((1000, 4000, 8000)),
                    "ratio_percent": dice.choice((10, 30, 50)),
                    "wait_seconds": dice.choice((0, 5, 20)),
                    "priority": dice.choice((0, 0, 2)),
                    "program": "remote",
                },
            )
            self.answers[answer.status_code if answer is not None else None] += 1
            if answer is not None and answer.status_code == 201 and dice.random() < 0.9:
                await self._open(answer.json(), dice.uniform(0.2, 3.0))
            await asyncio.sleep(dice.uniform(0.1, 2.0))

    async def _open(self, ticket: dict[str, Any], hold_seconds: float) -> None:
        try:
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(ticket["address"], ticket["port"])
                writer.write(f"{ticket['key']} {hold_seconds}\n".encode())
                if await reader.readline() == b"running\n":
                    self.opened += 1
                writer.close()
        except (OSError, TimeoutError):
            return
        await asyncio.sleep(hold_seconds)

    async def close(self) -> None:
        """Hangs up."""
        await self._rest.close()


class Operator:
    """One who changes things all the time."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.rest = PoolRest(cluster, cluster.controllers.token)
        self._nodes = cluster.nodes
        self._dice = random.Random(f"{seed}-operator")
        self.answers: Counter[tuple[str, int | None]] = Counter()
        self.reservations: set[str] = set()  # acknowledged, and not asked to be deleted
        self.ended: set[str] = set()  # grants whose end was acknowledged

    async def call(self) -> None:
        """Changes something now and then, until it is cancelled."""
        acts: list[Callable[[], Awaitable[httpx.Response | None]]] = [
            self._reserve,
            self._reserve,
            self._delete_reservation,
            self._resize_reservation,
            self._resize_grant,
            self._resize_grant,
            self._end_grant,
            *[self._suspend_grant] * 4,
            *[self._resume_grant] * 2,
            self._drain,
            self._undrain,
        ]
        while True:
            act = self._dice.choice(acts)
            answer = await act()
            status = answer.status_code if answer is not None else None
            self.answers[act.__name__.strip("_"), status] += 1
            await asyncio.sleep(self._dice.uniform(0.2, 1.0))

    async def lost(self) -> list[str]:
        """The reservations that were acknowledged and are not there."""
        listed = await self.rest.all("/reservations", "reservations")
        return sorted(self.reservations - {reservation["id"] for reservation in listed})

    async def tidy_up(self) -> None:
        """Gives back what is drained and reserved, so that whoever waits is served."""
        for gpu in await self.rest.all("/gpus", "gpus"):
            if gpu["mode"] != "pooled":
                await self._until_done("PUT", f"/gpus/{gpu['id']}/switch", json={"to": "pooled"})
        for reservation in await self.rest.all("/reservations", "reservations"):
            await self._until_done("DELETE", f"/reservations/{reservation['id']}")

    async def _until_done(self, method: str, path: str, **words: Any) -> None:
        for _ in range(60):
            answer = await self.rest.call(method, path, **words)
            if answer is not None and answer.status_code < 500:
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _reserve(self) -> httpx.Response | None:
        dice = self._dice
        kind, owner = dice.choice(
            (("label", "team-a"), ("label", "team-b"), ("project", "vision"), ("vm", "web"))
        )
        if len(self.reservations) > 15:
            return await self._delete_reservation()
        answer = await self.rest.call(
            "POST",
            "/reservations",
            json={
                "owner_kind": kind,
                "owner": owner,
                "count": dice.choice((1, 1, 2, 3)),
                "memory_mib": dice.choice((2000, 5000)),
                "compute_percent": dice.choice((10, 25)),
                "wait": dice.random() < 0.5,
            },
        )
        if answer is not None and answer.status_code == 201:
            self.reservations.add(answer.json()["id"])
        return answer

    async def _delete_reservation(self) -> httpx.Response | None:
        if not self.reservations:
            return None
        name = self._dice.choice(sorted(self.reservations))
        self.reservations.discard(name)
        return await self.rest.call("DELETE", f"/reservations/{name}")

    async def _resize_reservation(self) -> httpx.Response | None:
        if not self.reservations:
            return None
        name = self._dice.choice(sorted(self.reservations))
        size = {"count": self._dice.choice((1, 2)), "memory_mib": self._dice.choice((1000, 4000))}
        return await self.rest.call("PATCH", f"/reservations/{name}", json=size)

    async def _some_grant(self) -> str:
        answer = await self.rest.call("GET", "/grants", params={"limit": 500})
        if answer is None or answer.status_code != 200 or not answer.json()["grants"]:
            return "none"
        return str(self._dice.choice(answer.json()["grants"])["id"])

    async def _resize_grant(self) -> httpx.Response | None:
        size = {"compute_percent": self._dice.choice((5, 20, 45, 80))}
        return await self.rest.call("PATCH", f"/grants/{await self._some_grant()}", json=size)

    async def _end_grant(self) -> httpx.Response | None:
        grant = await self._some_grant()
        answer = await self.rest.call("DELETE", f"/grants/{grant}")
        if answer is not None and answer.status_code == 202:
            self.ended.add(grant)
        return answer

    async def _suspend_grant(self) -> httpx.Response | None:
        return await self.rest.call("POST", f"/grants/{await self._some_grant()}/suspend")

    async def _resume_grant(self) -> httpx.Response | None:
        suspended = await self._suspended()
        grant = self._dice.choice(suspended) if suspended else "none"
        return await self.rest.call("POST", f"/grants/{grant}/resume")

    async def _suspended(self) -> list[str]:
        answer = await self.rest.call("GET", "/grants", params={"limit": 10_000})
        if answer is None or answer.status_code != 200:
            return []
        return [str(g["id"]) for g in answer.json()["grants"] if g["suspension"]]

    async def resume_all(self) -> None:
        """Whoever is suspended is to go on."""
        for grant in await self._suspended():
            await self.rest.call("POST", f"/grants/{grant}/resume")

    def _gpu(self) -> str:
        node = self._dice.choice(self._nodes)
        return f"{node}:{node}-{self._dice.choice((0, 1))}"

    async def _drain(self) -> httpx.Response | None:
        body = {"to": "drained", "preempt": self._dice.random() < 0.3}
        return await self.rest.call("PUT", f"/gpus/{self._gpu()}/switch", json=body)

    async def _undrain(self) -> httpx.Response | None:
        drained = [
            gpu["id"] for gpu in await self.rest.all("/gpus", "gpus") if gpu["mode"] != "pooled"
        ]
        if not drained:
            return None
        body = {"to": "pooled"}
        return await self.rest.call("PUT", f"/gpus/{self._dice.choice(drained)}/switch", json=body)
