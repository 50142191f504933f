# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus that scrapes a pool once a second, and a stand-in that answers what one says.

Used by tests of charts from Prometheus. PROMETHEUS is the program (dev/prometheus.sh takes it out
of Debian's package), None where there is none.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import yaml
from control_plane import wait_for
from http_answers import serving

_TOOLS = Path(__file__).resolve().parents[2] / "build" / "tools"
PROMETHEUS = shutil.which("prometheus") or shutil.which(str(_TOOLS / "prometheus"))


@contextlib.contextmanager
def prometheus(
    folder: Path, port: int, targets: Mapping[str, str], labels: Mapping[str, str]
) -> Iterator[str]:
    """Its address, once it answers; `targets` are jobs and the host:port that each scrapes."""
    assert PROMETHEUS
    settings = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {
                "job_name": job,
                "static_configs": [{"targets": [target], "labels": dict(labels)}],
            }
            for job, target in targets.items()
        ],
    }
    folder.mkdir(parents=True)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    url = f"http://127.0.0.1:{port}"
    with (folder / "prometheus.out").open("wb") as out:
        process = subprocess.Popen(
            [
                PROMETHEUS,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=out,
            stderr=out,
        )
    try:
        wait_for(lambda: _is_ready(url), message="Prometheus")
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").is_success
    except httpx.TransportError:
        return False


@dataclass
class Answers:
    """What the stand-in says, and what it was asked."""

    url: str = ""
    status: int = 200
    body: bytes = b""
    seconds: float = 0.0  # that it takes
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)


@contextlib.contextmanager
def answering() -> Iterator[Answers]:
    """A server on a port of this machine that is no Prometheus."""
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Says it."""
            answers.asked.append(self.path)
            answers.tokens.append(self.headers.get("Authorization", ""))
            time.sleep(answers.seconds)
            with contextlib.suppress(OSError):  # who asked has gone
                self.send_response(answers.status)
                for name, value in answers.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answers.body)))
                self.end_headers()
                self.wfile.write(answers.body)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with serving(Handler) as answers.url:
        yield answers
