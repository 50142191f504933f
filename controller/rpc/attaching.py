# SPDX-License-Identifier: Apache-2.0
"""Has servers put native GPUs into VMs and take them out, from an operator's word to its outcome.

Called by controller.api.attachment_routes. It owns what is under way, which goes on when whoever
asked has gone. It promises that a server hears of nothing that is not stored, and that each outcome
is recorded; where a server does not answer, its next report of what libvirt says decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.gpus.attachment import (
    AttachOrder,
    AttachWhen,
    DetachOrder,
    ReportedHolding,
)
from sluice.controller.pool.model import GpuKey
from sluice.controller.rpc.messages import holding_of, native_message
from sluice.controller.rpc.node_service import PoolService
from sluice.controller.rpc.server_link import NotConnected, OrderRefused, ServerSilent
from sluice.controller.store.store import StoreError

#: libvirt waits for drivers and guests; a server that is silent for longer is not asked again.
ANSWER_SECONDS = 180.0

Finish = Callable[[GpuKey, ReportedHolding | None, str, str], None]


class Attaching:
    """What is under way between REST and servers about VMs' own GPUs."""

    def __init__(self, grant_service: GrantService, service: PoolService) -> None:
        self._grant_service = grant_service
        self._service = service
        self._tasks: set[asyncio.Task[None]] = set()

    async def attach(
        self, key: GpuKey, domain: str, when: AttachWhen, *, rom_bar: bool
    ) -> asyncio.Task[None]:
        """Books it and tells the server; the task raises OrderRefused or ServerSilent, if any.

        Raises Impossible, Unknown, StoreError, and nothing is booked then.
        """
        attachments = self._grant_service.pool.native_gpus
        order: AttachOrder | None = None

        def begin() -> Decisions:
            nonlocal order
            order = attachments.begin_attach(key, domain, when, rom_bar=rom_bar)
            return Decisions()

        await self._stored(begin, key, attachments.finish_attach)
        assert order
        return self._in_background(self._carry_out(order, attachments.finish_attach))

    async def detach(self, key: GpuKey) -> asyncio.Task[None]:
        """Tells the server to take it out of its VM; as attach()."""
        attachments = self._grant_service.pool.native_gpus
        order: DetachOrder | None = None

        def begin() -> Decisions:
            nonlocal order
            order = attachments.begin_detach(key)
            return Decisions()

        await self._stored(begin, key, attachments.finish_detach)
        assert order
        return self._in_background(self._carry_out(order, attachments.finish_detach))

    async def _stored(self, begin: Callable[[], Decisions], key: GpuKey, finish: Finish) -> None:
        if await self._grant_service.step(begin):
            return
        why = f"it could not be stored: {self._grant_service.trouble}"
        await self._grant_service.step(lambda: _nothing_else(lambda: finish(key, None, why, "")))
        raise StoreError(why)

    async def _carry_out(self, order: AttachOrder | DetachOrder, finish: Finish) -> None:
        key = GpuKey(order.node, order.uuid)
        attachments = self._grant_service.pool.native_gpus
        try:
            link = self._service.link_of(order.node)
            done = await link.native(native_message(order), ANSWER_SECONDS)
        except (NotConnected, ServerSilent) as silent:
            why = str(silent)
            await self._grant_service.step(
                lambda: _nothing_else(lambda: attachments.unanswered(key, why))
            )
            raise
        holding = holding_of(done.holding) if done.HasField("holding") else None
        note = "; ".join(done.notes)
        await self._grant_service.step(
            lambda: _nothing_else(lambda: finish(key, holding, done.error, note))
        )
        if done.error:
            raise OrderRefused(done.error)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: a controller that was deposed meanwhile leaves it to the next


def _nothing_else(step: Callable[[], None]) -> Decisions:
    step()
    return Decisions()
