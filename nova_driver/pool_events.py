# SPDX-License-Identifier: Apache-2.0
"""Follows the controller's event log, for ever.

Used by service.py. It promises that the caller is told once more after every break, as events may
have been missed then; it connects to the controllers in turn until one answers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sluice.pool_client.access import Access
from sluice.pool_client.async_client import AsyncPoolClient

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PoolEvent:
    """A line of the log; an empty kind says that the stream has just (re)connected."""

    kind: str = ""
    subject: str = ""


async def follow(access: Access) -> AsyncIterator[PoolEvent]:
    """Yields events without end."""
    told = False

    def broke(error: Exception) -> None:
        nonlocal told
        if not told:
            log.warning("the pool's events at %s: %s; trying again", access, error)
        told = True

    async with AsyncPoolClient(access) as client:
        async for event in client.events(broke):
            told = told and bool(event)  # connected: the next break is news
            yield PoolEvent(str(event.get("kind", "")), str(event.get("subject", "")))
