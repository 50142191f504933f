# SPDX-License-Identifier: Apache-2.0
"""The CLI's line to the controller's REST API.

Used by every command that asks the controller. It finds the controller's address and turns every
failure into a CommandError, which main prints as one line and an exit status. Of several
controllers it speaks to the one that leads, which the others name.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import httpx

from sluice.config.ini import ConfigError
from sluice.config.server import DEFAULT_PATH, read_server_config

DEFAULT_ADDRESS = "127.0.0.1:9123"
ADDRESS_VARIABLES = ("SLUICE_CONTROLLER", "ORION_CONTROLLER")

ELECTION_SECONDS = 6.0  # that several controllers may be without a leader
MOST_REDIRECTS = 3

EXIT_REFUSED = 1
EXIT_NOT_FOUND = 3
EXIT_UNREACHABLE = 4


class CommandError(Exception):
    """Ends the command with a line on standard error and this exit status."""

    def __init__(self, message: str, status: int = EXIT_REFUSED) -> None:
        super().__init__(message)
        self.status = status


def controller_address(given: str | None) -> str:
    """--controller, else the environment, else this host's server.conf, else this host."""
    if given:
        return given
    for variable in ADDRESS_VARIABLES:
        if address := os.environ.get(variable):
            return address
    if DEFAULT_PATH.exists() and os.access(DEFAULT_PATH, os.R_OK):
        try:
            return ",".join(read_server_config(Path(DEFAULT_PATH)).controller.rest_addresses)
        except ConfigError as error:
            raise CommandError(str(error)) from None
    return DEFAULT_ADDRESS


class Controller:
    """The API of one controller, or of several with commas; every method raises CommandError."""

    def __init__(self, address: str, transport: httpx.BaseTransport | None = None) -> None:
        self.address = address
        self._bases = [
            one if "://" in one else f"http://{one}"
            for one in (part.strip() for part in address.split(","))
            if one
        ]
        self._client = httpx.Client(timeout=15, transport=transport)

    def get(self, path: str, **parameters: Any) -> Any:
        """The JSON of a GET."""
        return self._ask("GET", path, params=parameters).json()

    def text(self, path: str, **parameters: Any) -> str:
        """The text of a GET."""
        return self._ask("GET", path, params=parameters).text

    def delete(self, path: str) -> Any:
        """The JSON of a DELETE."""
        return self._ask("DELETE", path).json()

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = self._answer(method, path, **options)
        if answer.status_code < 400:
            return answer
        status = EXIT_NOT_FOUND if answer.status_code == 404 else EXIT_REFUSED
        try:
            detail = answer.json()["detail"]
        except (ValueError, KeyError, TypeError):
            detail = f"HTTP {answer.status_code} from {self.address}: is that a Sluice controller?"
        raise CommandError(str(detail), status)

    def _answer(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The first answer of a controller that leads; what none was heard by is tried anew."""
        deadline = time.monotonic() + (ELECTION_SECONDS if len(self._bases) > 1 else 0.0)
        while True:
            leaderless: httpx.Response | None = None
            trouble: Exception | None = None
            for base in self._bases:
                try:
                    answer = self._follow(method, f"{base}/v1{path}", **options)
                except (httpx.TransportError, httpx.InvalidURL) as error:
                    trouble = error
                    if method != "GET" and not isinstance(error, httpx.ConnectError):
                        break  # it may have been done
                    continue
                if answer.status_code != 503 or len(self._bases) == 1:
                    return answer
                leaderless = answer
            else:
                if time.monotonic() < deadline:
                    time.sleep(0.25)
                    continue
            if leaderless is not None:
                return leaderless
            raise CommandError(
                f"the controller at {self.address} does not answer ({trouble}); start "
                "sluice-controller, or name another with --controller or SLUICE_CONTROLLER",
                EXIT_UNREACHABLE,
            )

    def _follow(self, method: str, url: str, **options: Any) -> httpx.Response:
        # by hand: a redirect to the leader takes method, body and credentials along
        answer = self._client.request(method, url, **options)
        for _ in range(MOST_REDIRECTS):
            if answer.status_code != 307 or "location" not in answer.headers:
                break
            options.pop("params", None)  # the address has them
            answer = self._client.request(method, answer.headers["location"], **options)
        return answer
