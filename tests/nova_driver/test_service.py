# SPDX-License-Identifier: Apache-2.0
"""What the adapter hears of while it is busy: none of it may be lost.

The two sides are stand-ins here that take as long as a test wants; tests/openstack has real ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import cast

import pytest

pytest.importorskip("openstack")

from sluice.nova_driver import service as service_module
from sluice.nova_driver.cloud import CloudError
from sluice.nova_driver.configuration import OpenStackConfig
from sluice.nova_driver.pool_events import PoolEvent
from sluice.nova_driver.service import OpenStackService
from sluice.nova_driver.synchronising import Sides
from sluice.pool_client.access import Access

SECONDS = 20


class SlowGrants:
    """Tells of each call as it begins, and returns when it is let go on."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._may_end = threading.Semaphore(0)
        self._error: Exception | None = None

    def go_on(self, error: Exception | None = None) -> None:
        self._error = error
        self._may_end.release()

    def _call(self, what: str) -> None:
        self._loop.call_soon_threadsafe(self.begun.put_nowait, what)
        assert self._may_end.acquire(timeout=SECONDS)
        if self._error:
            raise self._error

    def reconcile(self) -> None:
        self._call("everything")

    def reconcile_changes(self) -> None:
        self._call("changes")

    def reservation_changed(self, name: str) -> str:
        self._call(name)
        return ""

    def look(self, server: str) -> None:
        self._call(server)


class Rig:
    """A service whose events are the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.grants = SlowGrants()
        self._events: asyncio.Queue[PoolEvent] = asyncio.Queue()
        monkeypatch.setattr(service_module, "follow", self._follow)
        monkeypatch.setattr(service_module, "RETRY_SECONDS", 0.01)
        sides = SimpleNamespace(
            config=OpenStackConfig.model_validate(
                {
                    "controller": {"addresses": ["127.0.0.1:1"]},
                    "openstack": {"reconcile_seconds": 3600, "full_reconcile_seconds": 3600},
                }
            ),
            grants=self.grants,
            mend_provider=list,
        )
        self.service = OpenStackService(cast(Sides, sides))

    async def _follow(self, _: Access) -> AsyncIterator[PoolEvent]:
        while True:
            yield await self._events.get()
            self._events.task_done()

    async def tell(self, event: PoolEvent) -> None:
        """Returns when the service has heard of it."""
        self._events.put_nowait(event)
        await self._events.join()

    async def begun(self) -> str:
        async with asyncio.timeout(SECONDS):
            return await self.grants.begun.get()


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    made = Rig(monkeypatch)
    task = asyncio.create_task(made.service.run())
    yield made
    task.cancel()
    made.grants.go_on()
    await asyncio.gather(task, return_exceptions=True)


async def test_events_that_were_missed_while_everything_is_looked_at(rig: Rig) -> None:
    assert await rig.begun() == "everything"
    await rig.tell(PoolEvent())  # the stream broke and is there again
    rig.grants.go_on()
    assert await rig.begun() == "everything"
    rig.grants.go_on()


async def test_a_reservation_that_changes_again_while_it_is_asked_for(rig: Rig) -> None:
    changed = PoolEvent("reservation.resized", "r-1")
    assert await rig.begun() == "everything"
    rig.grants.go_on()
    await rig.tell(changed)
    assert await rig.begun() == "r-1"
    await rig.tell(changed)
    rig.grants.go_on()
    assert await rig.begun() == "r-1"
    rig.grants.go_on()


async def test_what_failed_is_looked_at_again(rig: Rig) -> None:
    assert await rig.begun() == "everything"
    rig.grants.go_on(CloudError("Nova is away"))
    assert await rig.begun() == "everything"
    rig.grants.go_on()
    await rig.tell(PoolEvent("reservation.resized", "r-1"))
    assert await rig.begun() == "r-1"
    rig.grants.go_on(CloudError("Nova is away"))
    assert await rig.begun() == "r-1"
    rig.grants.go_on()
