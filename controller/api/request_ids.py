# SPDX-License-Identifier: Apache-2.0
"""A name for every REST request, by which its log lines, audit line and answer are found.

Put around the whole REST application by controller.service. The name is the caller's `X-Request-ID`
where that is fit for a log, else a new one; the answer carries it back. It is also the one place
that sees every answer, so answers are counted here.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders

from sluice.config.log_ids import METADATA_KEY, bound, fit_or_new

App = Callable[..., Any]


class RequestIds:
    """The middleware; `answered` is told each answer's method and status."""

    def __init__(self, app: App, answered: Callable[[str, int], None]) -> None:
        self._app = app
        self._answered = answered

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Passes a request on under its name."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = fit_or_new(Headers(scope=scope).get(METADATA_KEY))

        async def send_named(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[METADATA_KEY] = name
                self._answered(scope["method"], message["status"])
            await send(message)

        with bound(request_id=name):
            await self._app(scope, receive, send_named)
