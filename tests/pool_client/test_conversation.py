# SPDX-License-Identifier: Apache-2.0
"""How a question finds the controller that leads, step by step and without a network."""

from __future__ import annotations

from collections.abc import Sequence

import httpx
import pytest

from sluice.pool_client.access import Access
from sluice.pool_client.conversation import Failure, Patience, Pause, Send, converse
from sluice.pool_client.errors import PoolError, Refused, Unanswered, UnusableAccess
from sluice.resources.problem_types import ProblemType

ONE = Access(["a:1"])
TWO = Access(["a:1", "b:1"], token="secret")
OK = httpx.Response(200, json={"gpus": []})
NO_LEADER = httpx.Response(503, json={"detail": "nobody leads"})
BUSY = httpx.Response(429, headers={"retry-after": "2"}, json={"detail": "too often"})
AWAY = httpx.ConnectError("refused")
BROKE = httpx.ReadError("the line broke")


def to(leader: str) -> httpx.Response:
    return httpx.Response(307, headers={"location": leader})


def told(
    access: Access, replies: Sequence[httpx.Response | Failure], method: str = "GET"
) -> tuple[list[str | float], httpx.Response]:
    """What is asked and waited for, and the answer, where that is what comes back."""
    now = 0.0
    asked: list[str | float] = []
    left = list(replies)
    patience = Patience(election=1.0, busy=5.0)
    steps = converse(access, patience, method, "/gpus", {"params": {"x": "1"}}, lambda: now)
    reply: httpx.Response | Failure | None = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            assert not left
            return asked, end.value
        if isinstance(step, Pause):
            now += step.seconds
            asked.append(step.seconds)
            reply = None
            continue
        assert isinstance(step, Send)
        asked.append(step.url)
        assert (step.options["params"] is None) == step.url.endswith("?x=1"), "it is in the address"
        reply = left.pop(0)


def test_the_others_are_asked_when_one_is_away_or_does_not_lead() -> None:
    a, b = (f"{base}/gpus" for base in TWO.bases)
    assert told(TWO, [AWAY, OK]) == ([a, b], OK)
    assert told(TWO, [NO_LEADER, OK]) == ([a, b], OK)
    assert told(TWO, [to("http://b:1/v1/gpus?x=1"), OK]) == ([a, f"{b}?x=1"], OK)
    assert told(TWO, [AWAY, NO_LEADER, AWAY, OK]) == ([a, b, 0.25, a, b], OK)


def test_an_election_is_waited_for_and_no_longer() -> None:
    with pytest.raises(Refused, match="nobody leads") as refused:
        told(TWO, [NO_LEADER] * 20)
    assert refused.value.status == 503
    with pytest.raises(Unanswered, match="a:1, b:1 does not answer"):
        told(TWO, [AWAY] * 20)
    with pytest.raises(Unanswered, match="refused"):
        told(ONE, [AWAY])


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_change_that_may_have_been_made_is_not_asked_for_again(method: str) -> None:
    with pytest.raises(Unanswered, match="the line broke"):
        told(TWO, [BROKE], method)
    assert told(TWO, [AWAY, OK], method)[1] is OK
    assert told(TWO, [BROKE, OK])[1] is OK


def test_one_that_is_asked_too_often_is_asked_later() -> None:
    a = f"{ONE.bases[0]}/gpus"
    assert told(ONE, [BUSY, BUSY, OK]) == ([a, 2.0, a, 2.0, a], OK)
    with pytest.raises(Refused, match="too often") as refused:
        told(ONE, [BUSY] * 3)
    assert refused.value.status == 429
    unreadable = httpx.Response(429, headers={"retry-after": "soon"})
    assert told(ONE, [unreadable, OK]) == ([a, 1.0, a], OK)


def test_the_token_does_not_leave_tls() -> None:
    access = Access(["https://a:1"], token="secret")
    with pytest.raises(PoolError, match="in the clear"):
        told(access, [to("http://b:1/v1/gpus?x=1")])
    with pytest.raises(Refused, match="is that a Sluice controller"):
        told(ONE, [to("http://b:1/v1/gpus?x=1")] * 3 + [httpx.Response(500)])


def test_a_refusal_has_a_type_and_the_controllers_words() -> None:
    def refusal(status: int, kind: str) -> Refused:
        document = {"type": kind, "detail": "it has ended"}
        with pytest.raises(Refused, match="it has ended") as refused:
            told(ONE, [httpx.Response(status, json=document)])
        return refused.value

    assert refusal(409, ProblemType.RESERVATION_OVER.uri).is_over
    assert not refusal(409, ProblemType.NOT_POSSIBLE.uri).is_over
    assert not refusal(409, "urn:sluice:problem:of-a-later-release").is_over
    assert refusal(409, "about:blank").is_over, "a controller of 0.1 gives no types"
    assert refusal(404, "about:blank").is_not_found
    for answer in (httpx.Response(400, text="<html>"), httpx.Response(400, json=["x"])):
        with pytest.raises(Refused, match="HTTP 400 from a:1: is that a Sluice controller"):
            told(ONE, [answer])


def test_a_token_that_is_none_is_said_before_anybody_is_asked() -> None:
    for token in ("two\nlines", "schlüssel"):
        with pytest.raises(UnusableAccess, match="is that its file"):
            _ = Access(["a:1"], token=token).headers
