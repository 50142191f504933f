# SPDX-License-Identifier: Apache-2.0
"""Ending one session and moving what waits, in the console: who may, guards, what REST says."""

from __future__ import annotations

from sluice.controller.pool.decisions import GrantRequest
from tests.console.place import Place


def wait(place: Place, *names: str) -> None:
    for name in names:
        wanted = {"memory_mib": 8000, "compute_percent": 100, "wait_seconds": -1}
        place.pool.requests.submit(GrantRequest(name, project="vision", **wanted))


def order(place: Place) -> list[str]:
    return [entry.request.request_id for entry in place.pool.queue]


async def test_a_tenant_may_end_its_own_session_and_sees_what_goes_with_it(place: Place) -> None:
    place.node()
    own, other = await place.granted("vision"), await place.granted("speech")
    browser = await place.signed_in("tenant")
    assert "action=session.end" in (await browser.get("/session", id=own.session.id)).text
    page = await browser.get("/do", action="session.end", target=own.session.id)
    assert "It is the only one of grant" in page.text
    for target in (other.session.id, "no-such-session"):
        answer = await browser.get("/do", action="session.end", target=target)
        assert answer.status_code == 403
    form = {**await browser.form("session.end", own.session.id), "target": other.session.id}
    assert (await browser.post("/do", form)).status_code == 404
    viewer = await place.signed_in("viewer")
    assert "session.end" not in (await viewer.get("/session", id=own.session.id)).text


async def test_what_rest_cannot_do_is_said_on_the_page(place: Place) -> None:
    """Its server is not connected here."""
    place.node()
    own = await place.granted("vision")
    browser = await place.signed_in("operator")
    answer = await browser.act("session.end", own.session.id)
    assert answer.status_code == 503
    assert "is not connected, and runs the session" in answer.text
    line = next(each for each in await place.audit() if "DELETE /v1/sessions/" in each)
    assert ": 503" in line


async def test_a_request_moves_and_the_queue_shows_it(place: Place) -> None:
    place.node(gpus=1)
    await place.granted(memory_mib=8000, compute_percent=100)
    wait(place, "a", "b", "c")
    operator = await place.signed_in("operator")
    page = (await operator.get("/queue")).text
    assert "target=a" not in page, "the next cannot move up"
    assert "target=c" in page
    assert "target=c" not in (await (await place.signed_in("viewer")).get("/queue")).text
    plan = await operator.get("/do", action="queue.move", target="c")
    assert "It is at place 3 of 3" in plan.text
    done = await operator.act("queue.move", "c", position="2")
    assert done.headers["location"] == "/console/queue?done=queue.move"
    assert order(place) == ["a", "c", "b"]
    assert any("PATCH /v1/queue/c: 200" in each for each in await place.audit())
    assert (
        "The request has its new place." in (await operator.get("/queue", done="queue.move")).text
    )


async def test_two_operators_do_not_undo_one_another(place: Place) -> None:
    place.node(gpus=1)
    await place.granted(memory_mib=8000, compute_percent=100)
    wait(place, "a", "b", "c")
    first, second = await place.signed_in("operator"), await place.signed_in("admin")
    stale = {**await first.form("queue.move", "b"), "position": "1"}
    assert (await second.act("queue.move", "c", position="1")).status_code == 303
    refused = await first.post("/do", stale)
    assert refused.status_code == 412
    assert "read it again and decide anew" in refused.text
    assert order(place) == ["c", "a", "b"]
    # one that has left meanwhile is no error of the console's
    place.pool.queue.remove("b")
    gone = await first.post("/do", stale)
    assert gone.status_code == 404
