# SPDX-License-Identifier: Apache-2.0
"""Follows the pool and Nova, and keeps Placement and grants true to them: `sluice openstack serve`.

Started by commands.py; never returns until it is cancelled. One task does the work, in order, so
that nothing is done twice at a time; others only say what to look at: the pool's events, Nova's
notifications, the clock. Whoever does not answer is asked again; nothing is undone because somebody
is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from sluice.nova_driver.cloud import CloudError
from sluice.nova_driver.notifications import Notifications
from sluice.nova_driver.pool_events import follow
from sluice.nova_driver.synchronising import Sides
from sluice.pool_client.access import Access, Credentials
from sluice.pool_client.errors import PoolError

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0


class OpenStackService:
    """One cloud, followed. All methods belong to the event loop that runs `run`."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides
        self._section = sides.config.openstack
        self._instances: set[str] = set()
        self._reservations: set[str] = set()
        self._work = asyncio.Event()
        self._inventory_due: float | None = 0.0
        self._changes_due = self._everything_due = 0.0
        self._told = ""
        #: Set once everything has been looked at; for tests and for whoever waits.
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Follows until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_pool())
            if self._section.transport_url:
                tasks.create_task(self._follow_nova())
            else:
                log.warning(
                    "no transport_url in [openstack]: changes of instances are seen every %.0f s",
                    self._section.reconcile_seconds,
                )
            tasks.create_task(self._keep())

    # what says where to look

    async def _follow_pool(self) -> None:
        section = self._sides.config.controller
        credentials = Credentials(section.ca_file, section.token_file)
        async for event in follow(Access.of(",".join(section.addresses), credentials)):
            if event.kind.startswith("reservation."):
                self._reservations.add(event.subject)
                self._work.set()
            if not event.kind:
                self._everything_soon()  # events may have been missed
            self._inventory_soon()

    async def _follow_nova(self) -> None:
        loop = asyncio.get_running_loop()

        def hint(server: str, event: str) -> None:
            log.debug("instance %s: %s", server, event)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._hint, server)

        section = self._section
        listener = Notifications(
            section.transport_url, section.notification_topic, section.notification_exchange, hint
        )
        while True:
            try:
                await asyncio.to_thread(listener.start)
                break
            except Exception as error:  # whatever the messaging driver raises
                log.warning("Nova's notifications: %s; trying again", type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)
        log.info("listening to Nova's notifications")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(listener.stop)

    def _hint(self, server: str) -> None:
        self._instances.add(server)
        self._work.set()

    def _everything_soon(self) -> None:
        self._everything_due = 0.0
        self._work.set()

    def _inventory_soon(self) -> None:
        if self._inventory_due is None:
            now = asyncio.get_running_loop().time()
            self._inventory_due = now + self._section.inventory_seconds
            self._work.set()

    # what is done

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            dues = [self._changes_due, self._everything_due]
            dues += [self._inventory_due] if self._inventory_due is not None else []
            # not wait_for, which on Python 3.11 may lose the cancellation that ends this
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(dues)):
                    await self._work.wait()
            self._work.clear()
            try:
                await self._pass(loop.time())
                if self._told:
                    log.info("both sides answer again")
                self._told = ""
            except (CloudError, PoolError) as error:
                if str(error) != self._told:
                    log.warning("%s; trying again", error)
                self._told = str(error)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                # one thing that nobody foresaw must not end the rest
                log.exception("a pass failed; trying again")
                await asyncio.sleep(RETRY_SECONDS)

    async def _pass(self, now: float) -> None:
        """Whatever is due; what fails stays due.

        A mark is taken away before its work begins: what changes meanwhile is due again.
        """
        section, grants = self._section, self._sides.grants
        if self._inventory_due is not None and now >= self._inventory_due:
            due, self._inventory_due = self._inventory_due, None
            try:
                for each in await asyncio.to_thread(self._sides.mend_provider):
                    log.info("Placement: %s: %s, was %s", each.subject, each.wanted, each.found)
            except BaseException:
                self._inventory_due = due
                raise
        if now >= self._everything_due:
            self._everything_due = now + section.full_reconcile_seconds
            try:
                await asyncio.to_thread(grants.reconcile)
            except BaseException:
                self._everything_due = 0.0
                raise
            self._changes_due = now + section.reconcile_seconds
            self.ready.set()
        await _work_off(self._reservations, self._look_at_reservation)
        await _work_off(self._instances, lambda server: asyncio.to_thread(grants.look, server))
        if now >= self._changes_due:
            await asyncio.to_thread(grants.reconcile_changes)
            self._changes_due = now + section.reconcile_seconds
            self._inventory_soon()  # compute hosts may have joined

    async def _look_at_reservation(self, name: str) -> None:
        if owner := await asyncio.to_thread(self._sides.grants.reservation_changed, name):
            self._instances.add(owner)


async def _work_off(marks: set[str], look: Callable[[str], Awaitable[object]]) -> None:
    """Looks at each, those that are marked meanwhile too; one whose look fails stays marked."""
    while marks:
        mark = marks.pop()
        try:
            await look(mark)
        except BaseException:
            marks.add(mark)
            raise
