# SPDX-License-Identifier: Apache-2.0
"""The CLI's line to the controller's REST API.

Used by every command that asks the controller. It finds the controller's address and turns every
failure into a CommandError, which main prints as one line and an exit status. Of several
controllers it speaks to the one that leads, which the others name.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import httpx

from sluice.config.ini import ConfigError
from sluice.config.server import DEFAULT_PATH, ServerConfig, read_server_config
from sluice.resources.problem_types import type_in

DEFAULT_ADDRESS = "127.0.0.1:9123"
ADDRESS_VARIABLES = ("SLUICE_CONTROLLER", "ORION_CONTROLLER")

ELECTION_SECONDS = 6.0  # that several controllers may be without a leader
BUSY_SECONDS = 20.0  # that the controller may find itself asked too often
MOST_REDIRECTS = 3

EXIT_REFUSED = 1
EXIT_NOT_FOUND = 3
EXIT_UNREACHABLE = 4
EXIT_NOT_ALLOWED = 5

TOKEN_PATH = Path("~/.sluice/token")
PATIENCE_SECONDS = 15.0  # for an answer
STREAM_SILENT_SECONDS = 60.0  # the stream says something every 15


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
    if config := _server_config():
        return ",".join(config.controller.rest_addresses)
    return DEFAULT_ADDRESS


def _server_config() -> ServerConfig | None:
    if not DEFAULT_PATH.exists() or not os.access(DEFAULT_PATH, os.R_OK):
        return None
    try:
        return read_server_config(Path(DEFAULT_PATH))
    except ConfigError as error:
        raise CommandError(str(error)) from None


@dataclass(frozen=True)
class Credentials:
    """What the command line says of them; the environment and files are looked at when asked."""

    ca_file: Path | None = None
    token_file: Path | None = None

    def ca(self) -> Path | None:
        """The CA to check the controller with; None for plain HTTP or the system's CAs."""
        if self.ca_file:
            return self.ca_file
        if named := os.environ.get("SLUICE_CA"):
            return Path(named)
        config = _server_config()
        return config.tls.ca_file if config else None

    def token(self) -> str:
        """The caller's token; empty if there is none."""
        if self.token_file is None and (token := os.environ.get("SLUICE_TOKEN")):
            return token.strip()
        path = self.token_file or TOKEN_PATH.expanduser()
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                print(f"sluice: {path} can be read by others: chmod 600 {path}", file=sys.stderr)
            return path.read_text().strip()
        except OSError as error:
            if self.token_file:
                raise CommandError(f"{path}: cannot be read ({error.strerror})") from None
            return ""


class Controller:
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
        credentials = credentials or Credentials()
        ca, token = credentials.ca(), credentials.token()
        scheme = "https" if ca else "http"
        self._bases = [
            one if "://" in one else f"{scheme}://{one}"
            for one in (part.strip() for part in address.split(","))
            if one
        ]
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._client = httpx.Client(
                timeout=patience_seconds,
                transport=transport,
                headers=self._headers,
                verify=ssl.create_default_context(cafile=ca) if ca else True,
            )
        except (OSError, ValueError) as error:
            raise CommandError(f"{ca or 'the token'}: cannot be used: {error}") from None

    def get(self, path: str, **parameters: Any) -> Any:
        """The JSON of a GET."""
        return self._ask("GET", path, params=parameters).json()

    def text(self, path: str, **parameters: Any) -> str:
        """The text of a GET."""
        return self._ask("GET", path, params=parameters).text

    def every(self, path: str, key: str, **parameters: Any) -> dict[str, list[Any]]:
        """A list's pages, put together."""
        found: list[Any] = []
        marker: dict[str, str] = {}
        while True:
            part = self.get(path, **parameters, **marker)
            found += part[key]
            if not part.get("next_marker"):
                return {key: found}
            marker = {"marker": part["next_marker"]}

    def post(self, path: str, body: Any, idempotency_key: str = "") -> Any:
        """The JSON of a POST."""
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._ask("POST", path, json=body, headers=headers).json()

    def put(self, path: str, body: Any) -> Any:
        """The JSON of a PUT."""
        return self._ask("PUT", path, json=body).json()

    def patch(self, path: str, body: Any) -> Any:
        """The JSON of a PATCH."""
        return self._ask("PATCH", path, json=body).json()

    def delete(self, path: str, if_match: str = "", **parameters: Any) -> Any:
        """The JSON of a DELETE."""
        headers = {"If-Match": if_match} if if_match else {}
        return self._ask("DELETE", path, params=parameters, headers=headers).json()

    def events(self, since: int | None, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Follows the event log; a line that breaks is taken up where it ended."""
        while True:
            for base in self._bases:
                where = {} if since is None else {"since": since}
                try:
                    with self._stream(
                        f"{base}/v1/events/stream", {**parameters, **where}
                    ) as answer:
                        if answer.status_code >= 400:
                            answer.read()
                            if answer.status_code == 503:
                                continue
                            self._refused(answer)
                        for event in _server_sent(answer):
                            since = event.get("number", since)
                            yield event
                except httpx.TransportError as error:
                    print(f"sluice: the stream broke ({error}); connecting anew", file=sys.stderr)
                except httpx.InvalidURL as error:
                    raise CommandError(f"{base} is no address of a controller ({error})") from None
            # without a place to resume at, what happens meanwhile is missed: ask for the place
            if since is None:
                newest = self.get("/events", limit=1)["events"]
                since = newest[0]["number"] if newest else 0
            time.sleep(1)

    def _ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        answer = self._answer(method, path, **options)
        if answer.status_code >= 400:
            self._refused(answer)
        return answer

    def _refused(self, answer: httpx.Response) -> NoReturn:
        status = {
            401: EXIT_NOT_ALLOWED,
            403: EXIT_NOT_ALLOWED,
            404: EXIT_NOT_FOUND,
        }.get(answer.status_code, EXIT_REFUSED)
        raise CommandError(detail_of(answer, self.address), status)

    def _answer(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The first answer of a controller that leads; what none was heard by is tried anew."""
        deadline = time.monotonic() + (ELECTION_SECONDS if len(self._bases) > 1 else 0.0)
        while True:
            leaderless: httpx.Response | None = None
            trouble: Exception | None = None
            for base in self._bases:
                try:
                    answer = self._patiently(method, f"{base}/v1{path}", **options)
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

    def _patiently(self, method: str, url: str, **options: Any) -> httpx.Response:
        """Asks later where the controller says that it is asked too often."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            answer = self._follow(method, url, **options)
            told = answer.headers.get("retry-after", "1")
            seconds = float(told) if told.isascii() and told.isdigit() else 1.0
            if answer.status_code != 429 or time.monotonic() + seconds > deadline:
                return answer
            time.sleep(seconds)

    def _follow(self, method: str, url: str, **options: Any) -> httpx.Response:
        # by hand: a redirect to the leader takes method, body and credentials along
        answer = self._client.request(method, url, **options)
        for _ in range(MOST_REDIRECTS):
            if not (leader := leader_of(url, answer)):
                break
            options.pop("params", None)  # the address has them
            answer = self._client.request(method, leader, **options)
        return answer

    @contextlib.contextmanager
    def _stream(self, url: str, parameters: dict[str, Any]) -> Iterator[httpx.Response]:
        """An answer that is read as it comes; of the leader's, if it is named."""
        options: dict[str, Any] = {"params": parameters, "timeout": STREAM_SILENT_SECONDS}
        with contextlib.ExitStack() as open_streams:
            answer = open_streams.enter_context(self._client.stream("GET", url, **options))
            for _ in range(MOST_REDIRECTS):
                if not (leader := leader_of(url, answer)):
                    break
                options["params"] = None  # the address has them
                open_streams.close()
                answer = open_streams.enter_context(self._client.stream("GET", leader, **options))
            yield answer


def leader_of(url: str, answer: httpx.Response) -> str:
    """Whom a controller names that does not lead itself; empty if it has answered.

    Raises CommandError where the caller's token would leave TLS. Clients follow by hand, as they
    drop the token on the way to another host.
    """
    leader: str = answer.headers.get("location", "") if answer.status_code == 307 else ""
    if leader and url.startswith("https:") and not leader.startswith("https:"):
        raise CommandError(f"{url} names {leader}, where the token would be in the clear")
    return leader


def detail_of(answer: httpx.Response, address: str) -> str:
    """Why a controller refuses, in its own words; `address`: who answered, if that is none."""
    try:
        return str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code} from {address}: is that a Sluice controller?"


def type_of(answer: httpx.Response) -> str:
    """The type of the problem that a controller answers with; "" if that has none."""
    try:
        document = answer.json()
    except ValueError:
        return ""
    return type_in(document) if isinstance(document, dict) else ""


def _server_sent(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: "):
            value: dict[str, Any] = json.loads(line.removeprefix("data: "))
            yield value
