# SPDX-License-Identifier: Apache-2.0
"""A webhook's other end: an HTTP server in a thread that keeps what it was sent.

Used by the tests of alerts. `statuses` are its next answers; when they are used up it says 200.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from http_answers import serving


@dataclass
class Receiver:
    """What came."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    @property
    def told(self) -> list[tuple[str, str, str]]:
        """Every alert that was taken: its status, rule and subject."""
        return [
            (each["status"], each["labels"]["alertname"], each["labels"]["subject"])
            for body in self.bodies
            for each in body["alerts"]
        ]


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """On a port of this machine."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Takes one."""
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            receiver.tokens.append(self.headers.get("Authorization", ""))
            status = receiver.statuses.pop(0) if receiver.statuses else 200
            if status == 200:
                receiver.bodies.append(body)
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "http://127.0.0.1:1/")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with serving(Handler) as url:
        receiver.url = f"{url}/alerts"
        yield receiver
