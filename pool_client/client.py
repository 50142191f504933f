# SPDX-License-Identifier: Apache-2.0
"""The client for programs without an event loop: the CLI, the Nova driver's passes.

It owns its connections, and finds the controller that leads (conversation.py). Every method raises
PoolError.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from sluice.pool_client.access import Access
from sluice.pool_client.conversation import (
    MOST_REDIRECTS,
    STREAM_SILENT_SECONDS,
    Failure,
    Patience,
    Pause,
    Send,
    checked,
    converse,
    leader_of,
)
from sluice.pool_client.errors import PoolError, Refused

RECONNECT_SECONDS = 1.0


class PoolClient:
    """The API of a pool's controllers."""

    def __init__(
        self,
        access: Access,
        patience: Patience | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.access = access
        self._patience = patience or Patience()
        self._client = httpx.Client(
            timeout=self._patience.answer,
            transport=transport,
            headers=access.headers,
            verify=access.tls(),
        )

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()

    def get(self, path: str, **parameters: Any) -> Any:
        """The JSON of a GET."""
        return self.ask("GET", path, params=parameters).json()

    def text(self, path: str, **parameters: Any) -> str:
        """The text of a GET."""
        return self.ask("GET", path, params=parameters).text

    def every(self, path: str, key: str, **parameters: Any) -> dict[str, list[Any]]:
        """A list's pages, put together."""
        found: list[Any] = []
        marker: dict[str, str] = {}
        while True:
            part = self.get(path, **parameters, **marker)
            found += part[key]
            if not part.get("next_marker"):
                return {key: found}
            marker = {"marker": part["next_marker"]}

    def post(self, path: str, body: Any, idempotency_key: str = "") -> Any:
        """The JSON of a POST."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self.ask("POST", path, json=body, headers=headers).json()

    def put(self, path: str, body: Any) -> Any:
        """The JSON of a PUT."""
        return self.ask("PUT", path, json=body).json()

    def patch(self, path: str, body: Any) -> Any:
        """The JSON of a PATCH."""
        return self.ask("PATCH", path, json=body).json()

    def delete(self, path: str, if_match: str = "", **parameters: Any) -> Any:
        """The JSON of a DELETE."""
        headers = {"If-Match": if_match} if if_match else {}
        return self.ask("DELETE", path, params=parameters, headers=headers).json()

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A controller's answer; `options` are httpx's."""
        steps = converse(self.access, self._patience, method, path, options)
        try:
            step = next(steps)
            while True:
                step = steps.send(self._take(step))
        except StopIteration as end:
            answer: httpx.Response = end.value
            return answer

    def _take(self, step: Send | Pause) -> httpx.Response | Failure | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            return self._client.request(step.method, step.url, **step.options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return error

    def events(
        self, since: int | None, broke: Callable[[Exception], None], **parameters: Any
    ) -> Iterator[dict[str, Any]]:
        """Follows the event log, for ever; a line that `broke` is taken up where it ended."""
        while True:
            for base in self.access.bases:
                where = {} if since is None else {"since": since}
                try:
                    with self._stream(
                        Send("GET", f"{base}/events/stream", {"params": {**parameters, **where}})
                    ) as answer:
                        for event in _server_sent(answer):
                            since = event.get("number", since)
                            yield event
                except Refused as refused:
                    if refused.status != 503:
                        raise
                except httpx.TransportError as error:
                    broke(error)
                except httpx.InvalidURL as error:
                    raise PoolError(f"{base} is no address of a controller ({error})") from None
            # without a place to resume at, what happens meanwhile is missed: ask for the place
            if since is None:
                newest = self.get("/events", limit=1)["events"]
                since = newest[0]["number"] if newest else 0
            time.sleep(RECONNECT_SECONDS)

    @contextlib.contextmanager
    def _stream(self, request: Send) -> Iterator[httpx.Response]:
        """An answer that is read as it comes; of the leader's, if it is named."""
        options: dict[str, Any] = {**request.options, "timeout": STREAM_SILENT_SECONDS}
        with contextlib.ExitStack() as open_streams:
            answer = open_streams.enter_context(self._client.stream("GET", request.url, **options))
            for _ in range(MOST_REDIRECTS):
                if not (leader := leader_of(request.url, answer)):
                    break
                options["params"] = None  # the address has them
                open_streams.close()
                answer = open_streams.enter_context(self._client.stream("GET", leader, **options))
            if answer.is_error:
                answer.read()
                checked(answer, self.access)
            yield answer


def _server_sent(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: "):
            value: dict[str, Any] = json.loads(line.removeprefix("data: "))
            yield value
