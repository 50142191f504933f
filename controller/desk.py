# SPDX-License-Identifier: Apache-2.0
"""The desk between the doors (REST, gRPC) and the pool: takes requests, stores decisions, tells.

Called by controller.api and controller.node_service. It owns the pool and the store, wakes whoever
waits for a decision, and sends orders to connected servers. It promises that nothing is told to
anyone before it is stored, and that a grant that could not be stored is not kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Protocol

from sluice.controller.pool.model import (
    Change,
    CudaStatus,
    Decisions,
    EndOrder,
    Event,
    Grant,
    Granted,
    GrantRequest,
    GrantState,
    Node,
    Refused,
    Session,
    Waiting,
)
from sluice.controller.pool.pool import Pool
from sluice.controller.store.store import Store, StoreError

log = logging.getLogger("sluice.controller")

TICK_SECONDS = 0.5


class NodeLink(Protocol):
    """A connected server, as far as the desk speaks to it."""

    def end_grant(self, order: EndOrder) -> None:
        """Tells the server to end what it runs for a grant; must not block."""
        ...

    def close(self) -> None:
        """Ends the stream; a server that still lives registers anew."""
        ...


class GrantDesk:
    """Serialises the pool's steps and makes them durable."""

    def __init__(self, pool: Pool, store: Store, waiting_line_seconds: float = 30.0) -> None:
        self.pool = pool
        self.store = store
        self.links: dict[str, NodeLink] = {}
        self._line_seconds = waiting_line_seconds
        self._answers: dict[str, asyncio.Future[Granted | Refused]] = {}
        self._unstored: list[Change] = []
        self._steps: set[asyncio.Task[None]] = set()

    async def request(
        self, request: GrantRequest, cancelled: str = "the asker went away"
    ) -> AsyncGenerator[Waiting | Granted | Refused, None]:
        """Yields Waiting any number of times, then one Granted or Refused.

        Closing the iterator early withdraws the request.
        """
        loop = asyncio.get_running_loop()
        request_id = request.request_id
        if other := self._answers.get(request_id):
            other.cancel()  # the same request asked again: the first call was lost
        answer: asyncio.Future[Granted | Refused] = loop.create_future()
        self._answers[request_id] = answer
        answered = False
        try:
            await self.step(lambda: self.pool.submit(request))
            while not answer.done():
                yield self.pool.waiting(request)
                await asyncio.wait([answer], timeout=self._line_seconds)
            answered = True
            yield answer.result()
        finally:
            if self._answers.get(request_id) is answer:
                del self._answers[request_id]
                if not answered:
                    await asyncio.shield(self._withdraw(request_id, cancelled))

    async def step(self, decide: Callable[[], Decisions]) -> None:
        """Takes one step of the pool, stores what changed, then tells what was decided.

        The step is finished even if the caller is cancelled: others wait for what it decided.
        """
        decisions = decide()
        changes = [*map(self._as_of_now, self._unstored), *self.pool.take_changes()]
        self._unstored = []
        for change in changes:
            if isinstance(change, Event):
                log.info("%s %s: %s", change.kind, change.subject, change.text)
        task = asyncio.create_task(self._store_and_tell(changes, decisions))
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        await asyncio.shield(task)

    async def _store_and_tell(self, changes: list[Change], decisions: Decisions) -> None:
        try:
            await self.store.commit(changes)
        except StoreError as error:
            log.error("%s", error)
            self._unstored = changes + self._unstored
            self._take_back(decisions, error)
        for request_id, answer in decisions.answers.items():
            waiter = self._answers.get(request_id)
            if waiter and not waiter.done():
                waiter.set_result(answer)
            elif isinstance(answer, Granted) and waiter is None:
                log.warning("grant %s has nobody waiting for it; taking it back", answer.grant.id)
                await self._withdraw(request_id, "nobody waited for it any more")
        for order in decisions.ends:
            if link := self.links.get(order.node):
                link.end_grant(order)
        for node in decisions.lost:
            if link := self.links.get(node):
                link.close()

    def _as_of_now(self, change: Change) -> Change:
        # what could not be stored may have changed again since
        current: Change | None = None
        if isinstance(change, Grant):
            current = self.pool.grants.get(change.id)
        elif isinstance(change, Session):
            current = self.pool.sessions.get(change.id)
        elif isinstance(change, Node):
            current = self.pool.nodes.get(change.name)
        return replace(current) if current else change

    async def end_grant(self, grant_id: str, reason: str) -> bool:
        """Ends a grant on an operator's word; False if it is not live.

        The server is told to end what runs; the books are cleared when it says that it has, or at
        once when the server is not connected (it is told when it returns).
        """
        grant = self.pool.grants.get(grant_id)
        if grant is None or grant.state is not GrantState.LIVE:
            return False
        if link := self.links.get(grant.node):
            self.pool.end_soon(grant_id, reason)
            link.end_grant(EndOrder(grant.node, grant_id, reason))
        else:
            await self.step(lambda: self.pool.release(grant_id, reason))
        return True

    async def tick(self) -> None:
        """Runs for ever: lets time pass in the pool and stores what could not be stored."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.step(self.pool.expire)

    async def _withdraw(self, request_id: str, reason: str) -> None:
        await self.step(lambda: self.pool.withdraw(request_id, reason))

    def _take_back(self, decisions: Decisions, error: StoreError) -> None:
        for request_id, answer in list(decisions.answers.items()):
            if isinstance(answer, Granted):
                self.pool.withdraw(request_id, "it could not be stored")
                decisions.answers[request_id] = Refused(
                    CudaStatus.UNKNOWN, f"the controller cannot store a grant: {error}"
                )
