# SPDX-License-Identifier: Apache-2.0
"""The CLI's line to the controller's REST API: pool_client, with errors that end a command.

Used by every command that asks the controller. It finds the controller's address and turns every
failure into a CommandError, which main prints as one line and an exit status.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import httpx

from sluice.pool_client.access import Access, Credentials, server_config
from sluice.pool_client.client import PoolClient
from sluice.pool_client.conversation import Patience
from sluice.pool_client.errors import PoolError, Refused, Unanswered

__all__ = ["CommandError", "Controller", "Credentials", "controller_address"]

DEFAULT_ADDRESS = "127.0.0.1:9123"
ADDRESS_VARIABLES = ("SLUICE_CONTROLLER", "ORION_CONTROLLER")

EXIT_REFUSED = 1
EXIT_NOT_FOUND = 3
EXIT_UNREACHABLE = 4
EXIT_NOT_ALLOWED = 5
_STATUS: dict[int, int] = {
    HTTPStatus.UNAUTHORIZED: EXIT_NOT_ALLOWED,
    HTTPStatus.FORBIDDEN: EXIT_NOT_ALLOWED,
    HTTPStatus.NOT_FOUND: EXIT_NOT_FOUND,
}

PATIENCE_SECONDS = Patience().answer


class CommandError(Exception):
    """Ends the command with a line on standard error and this exit status."""

    def __init__(self, message: str, status: int = EXIT_REFUSED) -> None:
        super().__init__(message)
        self.status = status


def command_error(error: PoolError) -> CommandError:
    """What came of asking, as the end of a command."""
    if isinstance(error, Unanswered):
        advice = "start sluice-controller, or name another with --controller or SLUICE_CONTROLLER"
        return CommandError(f"{error}; {advice}", EXIT_UNREACHABLE)
    if isinstance(error, Refused):
        return CommandError(str(error), _STATUS.get(error.status, EXIT_REFUSED))
    return CommandError(str(error))


def controller_address(given: str | None) -> str:
    """--controller, else the environment, else this host's server.conf, else this host."""
    if given:
        return given
    for variable in ADDRESS_VARIABLES:
        if address := os.environ.get(variable):
            return address
    try:
        config = server_config()
    except PoolError as error:
        raise command_error(error) from None
    return ",".join(config.controller.rest_addresses) if config else DEFAULT_ADDRESS


class Controller(PoolClient):
    """The API of one controller, or of several with commas; every method raises CommandError."""

    def __init__(
        self,
        address: str,
        transport: httpx.BaseTransport | None = None,
        credentials: Credentials | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.address = address
        try:
            access = Access.of(address, credentials or Credentials())
            super().__init__(access, Patience(answer=patience_seconds), transport)
        except PoolError as error:
            raise command_error(error) from None

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A controller's answer."""
        try:
            return super().ask(method, path, **options)
        except PoolError as error:
            raise command_error(error) from None

    def follow_events(self, since: int | None, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Follows the event log; that a line broke is said on standard error."""

        def broke(error: Exception) -> None:
            print(f"sluice: the stream broke ({error}); connecting anew", file=sys.stderr)

        try:
            yield from self.events(since, broke, **parameters)
        except PoolError as error:
            raise command_error(error) from None
