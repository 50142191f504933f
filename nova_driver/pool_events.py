# SPDX-License-Identifier: Apache-2.0
"""Follows the controller's event log, for ever.

Used by service.py. It promises that the caller is told once more after every break, as events may
have been missed then; it connects to the controllers in turn until one answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import httpx

from sluice.cli.rest import STREAM_SILENT_SECONDS, CommandError, Credentials, leader_of

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 1.0
CONNECT_SECONDS = 5.0


@dataclass(frozen=True)
class PoolEvent:
    """A line of the log; an empty kind says that the stream has just (re)connected."""

    kind: str = ""
    subject: str = ""


async def follow(addresses: Sequence[str], credentials: Credentials) -> AsyncIterator[PoolEvent]:
    """Yields events without end."""
    ca, token = credentials.ca(), credentials.token()
    scheme = "https" if ca else "http"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    verify = ssl.create_default_context(cafile=ca) if ca else True
    timeout = httpx.Timeout(STREAM_SILENT_SECONDS, connect=CONNECT_SECONDS)
    told = False
    async with httpx.AsyncClient(headers=headers, verify=verify, timeout=timeout) as client:
        while True:
            for address in addresses:
                base = address if "://" in address else f"{scheme}://{address}"
                try:
                    async with _stream(client, f"{base}/v1/events/stream") as answer:
                        answer.raise_for_status()
                        told = False
                        yield PoolEvent()
                        async for line in answer.aiter_lines():
                            if line.startswith("data: "):
                                yield _event(line.removeprefix("data: "))
                except (httpx.HTTPError, httpx.InvalidURL, ValueError, CommandError) as error:
                    if not told:
                        log.warning("the pool's events at %s: %s; trying again", base, error)
                    told = True
            await asyncio.sleep(RECONNECT_SECONDS)


@contextlib.asynccontextmanager
async def _stream(client: httpx.AsyncClient, url: str) -> AsyncIterator[httpx.Response]:
    """A controller's stream, or that of the one that leads, which the others name."""
    async with client.stream("GET", url) as answer:
        leader = leader_of(url, answer)
        if not leader:
            yield answer
            return
    async with client.stream("GET", leader) as answer:
        yield answer


def _event(text: str) -> PoolEvent:
    value = json.loads(text)
    return PoolEvent(str(value.get("kind", "")), str(value.get("subject", "")))
