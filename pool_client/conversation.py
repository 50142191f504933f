# SPDX-License-Identifier: Apache-2.0
"""How a question finds the controller that leads: steps without I/O, which both clients take.

A conversation yields what is to be sent, and is sent the answer or what went wrong; it yields
pauses; it returns the answer of a controller that leads. Any other names that one, and the token
goes along, but never out of TLS. What a GET was not answered is asked again; what changes
something is not, unless nobody was reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httpx

from sluice.pool_client.access import Access
from sluice.pool_client.errors import PoolError, Refused, Unanswered
from sluice.resources.problem_types import type_in

MOST_REDIRECTS = 3
ELECTION_PAUSE = 0.25
STREAM_SILENT_SECONDS = 60.0  # an event stream says something every 15


@dataclass(frozen=True)
class Patience:
    """How long what is waited for, in seconds."""

    answer: float = 15.0
    election: float = 6.0  # that several controllers may be without a leader
    busy: float = 20.0  # that the controller may find itself asked too often


@dataclass(frozen=True)
class Send:
    """A request."""

    method: str
    url: str
    options: Mapping[str, Any] = field(default_factory=dict)  # httpx's


@dataclass(frozen=True)
class Pause:
    """Nothing is to be done for so many seconds."""

    seconds: float


Failure = httpx.HTTPError | httpx.InvalidURL
Steps = Generator[Send | Pause, httpx.Response | Failure | None, httpx.Response]


def converse(
    access: Access,
    patience: Patience,
    method: str,
    path: str,
    options: Mapping[str, Any],
    clock: Callable[[], float] = time.monotonic,
) -> Steps:
    """The answer to a request. Raises Refused, Unanswered, PoolError."""
    several = len(access.bases) > 1
    elected_by = clock() + (patience.election if several else 0.0)
    while True:
        leaderless: httpx.Response | None = None
        trouble: Failure | None = None
        for base in access.bases:
            answer = yield from _patiently(Send(method, base + path, options), patience, clock)
            if not isinstance(answer, httpx.Response):
                trouble = answer
                if method != "GET" and not isinstance(answer, httpx.ConnectError):
                    raise unanswered(access, answer)  # it may have been done
            elif answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE or not several:
                return checked(answer, access)
            else:
                leaderless = answer
        if clock() >= elected_by:
            if leaderless is not None:
                return checked(leaderless, access)
            raise unanswered(access, trouble)
        yield Pause(ELECTION_PAUSE)


def _patiently(
    request: Send, patience: Patience, clock: Callable[[], float]
) -> Generator[Send | Pause, httpx.Response | Failure | None, httpx.Response | Failure]:
    """Asks later where the controller says that it is asked too often."""
    deadline = clock() + patience.busy
    while True:
        answer = yield request
        for _ in range(MOST_REDIRECTS):
            if not isinstance(answer, httpx.Response) or not (
                leader := leader_of(request.url, answer)
            ):
                break
            # the address has the parameters
            answer = yield Send(request.method, leader, {**request.options, "params": None})
        assert answer is not None
        if not isinstance(answer, httpx.Response):
            return answer
        told = answer.headers.get("retry-after", "1")
        seconds = float(told) if told.isascii() and told.isdigit() else 1.0
        if answer.status_code != HTTPStatus.TOO_MANY_REQUESTS or clock() + seconds > deadline:
            return answer
        yield Pause(seconds)


def leader_of(url: str, answer: httpx.Response) -> str:
    """Whom a controller names that does not lead itself; "" if it has answered.

    Raises PoolError where the caller's token would leave TLS. Clients follow by hand: they drop
    the token on the way to another host.
    """
    leader: str = answer.headers.get("location", "") if answer.status_code == 307 else ""
    if leader and url.startswith("https:") and not leader.startswith("https:"):
        raise PoolError(f"{url} names {leader}, where the token would be in the clear")
    return leader


def checked(answer: httpx.Response, access: Access) -> httpx.Response:
    """The answer, which has been read. Raises Refused with the controller's own words."""
    if answer.status_code < HTTPStatus.BAD_REQUEST:
        return answer
    detail = f"HTTP {answer.status_code} from {access}: is that a Sluice controller?"
    kind = ""
    try:
        document = answer.json()
        detail, kind = str(document["detail"]), type_in(document)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise Refused(detail, answer.status_code, kind)


def unanswered(access: Access, trouble: Exception | None) -> Unanswered:
    """Nobody answered, as far as that can be said."""
    why = str(trouble) or type(trouble).__name__
    return Unanswered(f"the controller at {access} does not answer ({why})")
