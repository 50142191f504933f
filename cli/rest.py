# SPDX-License-Identifier: Apache-2.0
"""The CLI's line to the controller's REST API.

Used by every command that asks the controller. It finds the controller's address and turns every
failure into a CommandError, which main prints as one line and an exit status.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx

from sluice.config.ini import ConfigError
from sluice.config.server import DEFAULT_PATH, read_server_config

DEFAULT_ADDRESS = "127.0.0.1:9123"
ADDRESS_VARIABLES = ("SLUICE_CONTROLLER", "ORION_CONTROLLER")

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
            return read_server_config(Path(DEFAULT_PATH)).controller.controller_addr
        except ConfigError as error:
            raise CommandError(str(error)) from None
    return DEFAULT_ADDRESS


class Controller:
    """One controller's API; every method raises CommandError."""

    def __init__(self, address: str, transport: httpx.BaseTransport | None = None) -> None:
        self.address = address
        base = address if "://" in address else f"http://{address}"
        self._client = httpx.Client(base_url=f"{base}/v1", timeout=15, transport=transport)

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
        try:
            answer = self._client.request(method, path, **options)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise CommandError(
                f"the controller at {self.address} does not answer ({error}); start "
                "sluice-controller, or name another with --controller or SLUICE_CONTROLLER",
                EXIT_UNREACHABLE,
            ) from None
        if answer.status_code < 400:
            return answer
        status = EXIT_NOT_FOUND if answer.status_code == 404 else EXIT_REFUSED
        try:
            detail = answer.json()["detail"]
        except (ValueError, KeyError, TypeError):
            detail = f"HTTP {answer.status_code} from {self.address}: is that a Sluice controller?"
        raise CommandError(str(detail), status)
