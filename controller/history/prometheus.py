# SPDX-License-Identifier: Apache-2.0
"""History out of a Prometheus that scrapes the pool, where [console] prometheus_url names one.

Used by the console's charts in the place of keeper. One question is one request with all values of
a series, of 5 seconds and 1 MiB at most; those who look at the same at once, or within seconds,
share its answer, and so few are under way at a time that Prometheus notices no crowd. What it
answers is checked as any peer's. No proxy and no redirection is followed, since the address is an
operator's and may be inside. It promises to raise nothing but HistoryError, whose words name the
setting and not the address, as members of projects read them too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import httpx

from sluice.config.controller import ConsoleSection
from sluice.controller.history.history_file import HistoryError
from sluice.controller.history.prometheus_queries import FIELD_LABEL, STEPS, Queries
from sluice.controller.history.series import Point, Span, Values

log = logging.getLogger("sluice.controller")

PATIENCE_SECONDS = 5.0
MOST_BYTES = 1 << 20
MOST_AT_ONCE = 8
#: How long an answer is good for, and a failure: browsers ask every half a minute.
GOOD_SECONDS, BAD_SECONDS = 10.0, 5.0
MOST_KEPT = 256
WHERE = "see [console] prometheus_url in controller.conf"

Key = tuple[str, Span]


class PrometheusHistory:
    """Asks one Prometheus about one pool."""

    def __init__(self, section: ConsoleSection, wall: Callable[[], float] = time.time) -> None:
        self._section = section
        self._queries = Queries(section.prometheus_labels, section.prometheus_scrape_seconds)
        self._wall = wall
        self._tls: ssl.SSLContext | None = None
        self._asked: OrderedDict[Key, tuple[float, asyncio.Task[list[Point]]]] = OrderedDict()
        self._under_way = 0
        self._said = ""

    async def read(self, name: str, span: Span) -> list[Point]:
        """A series, oldest first; empty: Prometheus has none of it. Raises HistoryError."""
        key, now = (name, span), time.monotonic()
        asked = self._asked.get(key)
        if asked is None or self._is_old(asked, now):
            if self._under_way >= MOST_AT_ONCE:
                raise HistoryError("too many ask Prometheus; try again in a moment")
            self._under_way += 1
            task = asyncio.create_task(self._ask_once(name, span))
            task.add_done_callback(_looked_at)
            asked = self._asked[key] = now, task
            self._asked.move_to_end(key)
            while len(self._asked) > MOST_KEPT:
                self._asked.popitem(last=False)
        return await asyncio.shield(asked[1])  # others may wait for it, too

    @staticmethod
    def _is_old(asked: tuple[float, asyncio.Task[list[Point]]], now: float) -> bool:
        began, task = asked
        if not task.done():
            return False
        bad = task.cancelled() or task.exception() is not None
        return now - began > (BAD_SECONDS if bad else GOOD_SECONDS)

    async def _ask_once(self, name: str, span: Span) -> list[Point]:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                points = await self._ask(name, span)
        except TimeoutError:
            self._say(f"it does not answer within {PATIENCE_SECONDS:g} seconds")
            raise HistoryError(
                f"Prometheus does not answer within {PATIENCE_SECONDS:g} seconds; {WHERE}"
            ) from None
        except HistoryError as error:
            self._say(str(error))
            raise
        finally:
            self._under_way -= 1
        self._said = ""
        return points

    async def _ask(self, name: str, span: Span) -> list[Point]:
        step, count = STEPS[span]
        end = int(self._wall() // step) * step
        query = {
            "query": self._queries.of(name, span),
            "start": str(end - (count - 1) * step),
            "end": str(end),
            "step": str(step),
            "timeout": f"{PATIENCE_SECONDS:g}s",
        }
        section = self._section
        address = section.prometheus_url.rstrip("/") + "/api/v1/query_range"
        try:
            headers = {"Accept-Encoding": "identity"}  # so that what comes is as long as it is
            if section.prometheus_token_file:
                token = section.prometheus_token_file.read_text().strip()
                headers["Authorization"] = f"Bearer {token}"
            if self._tls is None:
                self._tls = ssl.create_default_context(cafile=section.prometheus_ca_file)
        except (OSError, ValueError) as error:
            raise HistoryError(
                "[console] prometheus_token_file or prometheus_ca_file cannot be read: "
                f"{getattr(error, 'strerror', '') or type(error).__name__}"
            ) from None
        try:
            async with (
                httpx.AsyncClient(
                    verify=self._tls, timeout=PATIENCE_SECONDS, trust_env=False
                ) as client,
                client.stream("GET", address, params=query, headers=headers) as answer,
            ):
                if not answer.is_success:
                    raise HistoryError(f"Prometheus {_refusal(answer.status_code)}; {WHERE}")
                body = await _bounded(answer)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            # ValueError: a token that no header can carry, or what is compressed and is not
            log.debug("history: Prometheus: %s: %s", type(error).__name__, error)
            raise HistoryError(
                f"Prometheus cannot be reached ({type(error).__name__}); {WHERE}"
            ) from None
        return points_of(body, end - (count - 1) * step, step, count)

    def _say(self, text: str) -> None:
        if text != self._said:
            log.warning("history: Prometheus: %s", text)
            self._said = text


def _looked_at(task: asyncio.Task[list[Point]]) -> None:
    """Why it failed is said by whoever waited, who may have left."""
    if not task.cancelled():
        task.exception()


def _refusal(status: int) -> str:
    if status in (401, 403):
        return f"wants another token ([console] prometheus_token_file): it answered {status}"
    if 300 <= status < 400:
        return f"is at another address, to which it leads ({status}): give that one"
    if status == 404:
        return "is not at that address: there is no /api/v1/query_range (404)"
    return f"answered {status}"


async def _bounded(answer: httpx.Response) -> bytes:
    """The body; raises HistoryError where it is larger than any answer of a Prometheus is."""
    found = bytearray()
    async for piece in answer.aiter_raw():
        found += piece
        if len(found) > MOST_BYTES:
            raise HistoryError(f"Prometheus answers with more than {MOST_BYTES:,} bytes; {WHERE}")
    return bytes(found)


def points_of(body: bytes, first: int, step: int, count: int) -> list[Point]:
    """An answer's points, from the first to the last that has a value; raises HistoryError."""
    try:
        series = _series(json.loads(body))
        values = {field: [math.nan] * count for field in Values._fields}
        for labels, pairs in series:
            row = values[labels[FIELD_LABEL]]
            for when, text in pairs:
                place, rest = divmod(float(when) - first, step)
                if rest == 0 and 0 <= place < count:
                    value = float(text)
                    row[int(place)] = value if math.isfinite(value) else math.nan
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise HistoryError(f"what answers is no Prometheus; {WHERE}") from None
    rows = list(zip(*(values[field] for field in Values._fields), strict=True))
    known = [i for i, row in enumerate(rows) if not all(map(math.isnan, row))]
    if not known:
        return []
    return [Point(first + (i - 1) * step, Values(*rows[i])) for i in range(known[0], known[-1] + 1)]


def _series(answer: Any) -> list[tuple[dict[str, str], list[tuple[Any, Any]]]]:
    """Raises KeyError, TypeError or ValueError for what is no range of vectors."""
    data = answer["data"]
    if answer["status"] != "success" or data["resultType"] != "matrix":
        raise ValueError
    return [(each["metric"], [(when, text) for when, text in each["values"]])
            for each in data["result"]]  # fmt: skip
