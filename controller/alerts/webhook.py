# SPDX-License-Identifier: Apache-2.0
"""Tells an operator's webhook what fires and what is over, in Alertmanager's form.

Used by watch. It never holds anything up: what cannot be delivered is tried again a few times and
then given up, with a line in the log, and what waits is bounded. No proxy and no redirection is
followed, since the address is an operator's and may be inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx

from sluice.config.controller import AlertsSection
from sluice.controller.alerts.book import Alert

log = logging.getLogger("sluice.controller")

MOST_WAITING = 500
MOST_AT_ONCE = 100
PATIENCE_SECONDS = 10.0
PAUSES = (1.0, 5.0, 30.0, 120.0)
_NEVER_ENDS = "0001-01-01T00:00:00Z"  # Alertmanager's


class Webhook:
    """One address; run() sends what tell() took in."""

    def __init__(
        self,
        section: AlertsSection,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._section = section
        self._pause = pause
        self._waiting: deque[Alert] = deque(maxlen=MOST_WAITING)
        self._news = asyncio.Event()
        self.trouble = ""  # why the last delivery failed; empty: it did not

    def tell(self, alerts: Sequence[Alert]) -> None:
        """Lets them be sent; of too many the oldest are forgotten."""
        if self._section.webhook:
            self._waiting.extend(alerts)
            self._news.set()

    async def run(self) -> None:
        """Sends for ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                several = [
                    self._waiting.popleft() for _ in range(min(MOST_AT_ONCE, len(self._waiting)))
                ]
                await self._deliver(several)

    async def _deliver(self, alerts: Sequence[Alert]) -> None:
        for pause in (*PAUSES, None):
            self.trouble = await self._send(alerts)
            if not self.trouble:
                return
            if pause is not None:
                await self._pause(pause)
        log.warning(
            "alerts: the webhook was not told of %d: %s; see [alerts] webhook",
            len(alerts),
            self.trouble,
        )

    async def _send(self, alerts: Sequence[Alert]) -> str:
        """Why it failed; empty: it was taken."""
        section = self._section
        headers = {}
        try:
            if section.webhook_token_file:
                token = section.webhook_token_file.read_text().strip()
                headers["Authorization"] = f"Bearer {token}"
            tls = ssl.create_default_context(cafile=section.webhook_ca_file)
        except (OSError, ValueError) as error:
            return f"its token or CA cannot be read: {getattr(error, 'strerror', '') or error}"
        try:
            async with (
                httpx.AsyncClient(verify=tls, timeout=PATIENCE_SECONDS, trust_env=False) as client,
                client.stream(
                    "POST", section.webhook or "", json=document(alerts), headers=headers
                ) as answer,
            ):
                if answer.is_success:
                    return ""
                return f"it answered {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{type(error).__name__}: {error}".rstrip(": ")


def document(alerts: Sequence[Alert]) -> dict[str, Any]:
    """What is sent: Alertmanager's webhook, version 4, as far as there is something to say."""
    return {
        "version": "4",
        "receiver": "sluice",
        "status": "firing" if any(alert.until is None for alert in alerts) else "resolved",
        "alerts": [
            {
                "status": "firing" if alert.until is None else "resolved",
                "labels": {
                    "alertname": alert.rule,
                    "severity": alert.severity.value,
                    "subject": alert.subject,
                },
                "annotations": {"summary": alert.text},
                "startsAt": _moment(alert.since),
                "endsAt": _NEVER_ENDS if alert.until is None else _moment(alert.until),
            }
            for alert in alerts
        ],
    }


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@contextlib.asynccontextmanager
async def sending(webhook: Webhook) -> Any:
    """While the block runs, what it tells is sent."""
    task = asyncio.create_task(webhook.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
