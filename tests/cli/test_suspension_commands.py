# SPDX-License-Identifier: Apache-2.0
"""Why a grant was not suspended: what this order's event says, which comes when the grant runs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from sluice.cli import suspension_commands
from sluice.cli.output import Format
from sluice.cli.rest import CommandError, Controller

OLDER = {"number": 7, "text": "of an order before"}
NEWER = {"number": 9, "text": "a stream captures a graph"}


class Pool:
    """A controller that says at once that the grant runs again, and why when it is asked anew."""

    def __init__(self, events_after: int) -> None:
        self._events_after = events_after
        self._ordered = False
        self._asked = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1")
        if path == "/grants/g/suspend":
            self._ordered = True
            return httpx.Response(202, json=self._grant("suspending"))
        if path == "/grants/g":
            return httpx.Response(200, json=self._grant(""))
        assert path == "/events", path
        if request.url.params["kind"] != "grant.not_suspended":
            return httpx.Response(200, json={"events": [], "next": None})
        self._asked += self._ordered
        late = self._ordered and self._asked > self._events_after
        return httpx.Response(200, json={"events": [NEWER if late else OLDER], "next": None})

    @staticmethod
    def _grant(state: str) -> dict[str, Any]:
        suspension = {"state": state, "note": ""} if state else None
        return {"id": "g", "state": "live", "reason": "", "suspension": suspension}


@pytest.mark.parametrize("events_after", [0, 3])
def test_the_reason_is_this_orders(events_after: int) -> None:
    api = Controller("127.0.0.1:1", httpx.MockTransport(Pool(events_after).answer))
    with pytest.raises(CommandError) as refused:
        suspension_commands._suspend(api, "/grants/g", 10, Format.TABLE)
    assert str(refused.value) == "grant g runs as before: a stream captures a graph"


def test_no_reason_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suspension_commands, "EVENT_SECONDS", 0.0)
    api = Controller("127.0.0.1:1", httpx.MockTransport(Pool(1000).answer))
    with pytest.raises(CommandError) as refused:
        suspension_commands._suspend(api, "/grants/g", 10, Format.TABLE)
    assert str(refused.value) == "grant g runs as before: see `sluice event list`"
