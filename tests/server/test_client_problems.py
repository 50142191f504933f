# SPDX-License-Identifier: Apache-2.0
"""What a program makes of a controller's problems: their types decide, not their words."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from network_program import built, run

pytestmark = pytest.mark.skipif(not built(), reason="the native part is not built")

URN = "urn:sluice:problem:"


def problem(status: int, kind: str, title: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "title": title, "status": status, "detail": f"said {title}", **more}


LAST = problem(409, f"{URN}not-granted", "Not granted", cuda_error=2)


@contextmanager
def controller(answers: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Answers so, one request after the other; yields its address and the keys that came."""
    keys: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = answers[min(len(keys), len(answers) - 1)]
            keys.append(self.headers.get("Idempotency-Key", ""))
            body = json.dumps(answer).encode()
            self.send_response(answer["status"])
            self.send_header("Content-Type", "application/problem+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", keys
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("under_way", "unknown", "too_many"),
    [
        pytest.param(
            problem(409, f"{URN}request-under-way", "it runs"),
            problem(409, f"{URN}outcome-unknown", "who knows"),
            problem(429, f"{URN}too-many-keys", "enough"),
            id="by their types",
        ),
        pytest.param(
            problem(409, "about:blank", "Request is under way"),
            problem(409, "about:blank", "Outcome is not known"),
            problem(429, f"{URN}too-many-keys", "Too many keys"),
            id="of release 0.1",
        ),
    ],
)
def test_what_a_program_does_about_its_key(
    under_way: dict[str, Any], unknown: dict[str, Any], too_many: dict[str, Any], tmp_path: Path
) -> None:
    with controller([under_way, unknown, too_many, LAST]) as (address, keys):
        ok, said = run(tmp_path, SLUICE_CONTROLLER=address, SLUICE_WAIT=60)
    assert not ok
    assert "said Not granted" in said
    first, again, new, without = keys
    assert first
    assert again == first, "the request is under way: it is asked for again"
    assert new not in ("", first), "its outcome is unknown: a request of its own"
    assert without == "", "no more keys are kept: it goes without"


def test_the_title_of_another_type_decides_nothing(tmp_path: Path) -> None:
    misleading = problem(409, f"{URN}not-granted", "Request is under way")
    with controller([misleading, LAST]) as (address, keys):
        ok, said = run(tmp_path, SLUICE_CONTROLLER=address, SLUICE_WAIT=60)
    assert not ok
    assert "said Request is under way" in said
    assert len(keys) == 1
