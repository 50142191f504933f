# SPDX-License-Identifier: Apache-2.0
"""The client for services with an event loop: vSphere's, and who follows the pool's events.

As client.PoolClient; besides, so many calls at once share the controller's writes and no more.
Every method raises PoolError.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self

import httpx

from sluice.pool_client.access import Access
from sluice.pool_client.conversation import (
    STREAM_SILENT_SECONDS,
    Failure,
    Patience,
    Pause,
    Send,
    checked,
    converse,
    leader_of,
)
from sluice.pool_client.errors import PoolError

AT_ONCE = 16
PAGE = 1000
CONNECT_SECONDS = 5.0
RECONNECT_SECONDS = 1.0


class AsyncPoolClient:
    """The API of a pool's controllers."""

    def __init__(
        self, access: Access, patience: Patience | None = None, *, trust_env: bool = True
    ) -> None:
        """`trust_env`: the proxies of the environment are used."""
        self.access = access
        self.calls = 0  # that were sent
        self._patience = patience or Patience()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._client = httpx.AsyncClient(
            timeout=self._patience.answer,
            headers=access.headers,
            verify=access.tls(),
            trust_env=trust_env,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connections."""
        await self._client.aclose()

    async def get(self, path: str, **parameters: Any) -> Any:
        """The JSON of a GET."""
        return await self.ask("GET", path, params=parameters)

    async def every(self, path: str, key: str, **parameters: Any) -> list[Any]:
        """A list's pages, put together."""
        found: list[Any] = []
        marker: dict[str, str] = {}
        while True:
            part = await self.get(path, limit=PAGE, **parameters, **marker)
            found += part[key]
            if not part.get("next_marker"):
                return found
            marker = {"marker": part["next_marker"]}

    async def post(self, path: str, body: Any) -> Any:
        """The JSON of a POST."""
        return await self.ask("POST", path, json=body)

    async def put(self, path: str) -> Any:
        """The JSON of a PUT without body."""
        return await self.ask("PUT", path)

    async def patch(self, path: str, body: Any) -> Any:
        """The JSON of a PATCH."""
        return await self.ask("PATCH", path, json=body)

    async def delete(self, path: str) -> Any:
        """The JSON of a DELETE."""
        return await self.ask("DELETE", path)

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """The JSON of a controller's answer, None if it is empty; `options` are httpx's."""
        async with self._turns:
            answer = await self._answer(method, path, options)
        return answer.json() if answer.content else None

    async def _answer(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        steps = converse(self.access, self._patience, method, path, options)
        try:
            step = next(steps)
            while True:
                step = steps.send(await self._take(step))
        except StopIteration as end:
            answer: httpx.Response = end.value
            return answer

    async def _take(self, step: Send | Pause) -> httpx.Response | Failure | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        self.calls += 1
        try:
            return await self._client.request(step.method, step.url, **step.options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return error

    async def events(self, broke: Callable[[Exception], None]) -> AsyncIterator[dict[str, Any]]:
        """Follows the event log, for ever; {} says that it is followed from now on.

        What was said between two of them is not told: whoever follows looks anew after each.
        """
        while True:
            for base in self.access.bases:
                try:
                    async with self._stream(f"{base}/events/stream") as answer:
                        yield {}
                        async for line in answer.aiter_lines():
                            if line.startswith("data: "):
                                yield json.loads(line.removeprefix("data: "))
                except (httpx.HTTPError, httpx.InvalidURL, ValueError, PoolError) as error:
                    broke(error)
            await asyncio.sleep(RECONNECT_SECONDS)

    @contextlib.asynccontextmanager
    async def _stream(self, url: str) -> AsyncIterator[httpx.Response]:
        """A controller's stream, or that of the one that leads, which the others name."""
        timeout = httpx.Timeout(STREAM_SILENT_SECONDS, connect=CONNECT_SECONDS)
        async with contextlib.AsyncExitStack() as streams:
            answer = await streams.enter_async_context(
                self._client.stream("GET", url, timeout=timeout)
            )
            if leader := leader_of(url, answer):
                await streams.aclose()
                answer = await streams.enter_async_context(
                    self._client.stream("GET", leader, timeout=timeout)
                )
            if answer.is_error:
                await answer.aread()
                checked(answer, self.access)
            yield answer
