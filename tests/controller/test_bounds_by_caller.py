# SPDX-License-Identifier: Apache-2.0
"""What one caller can take of the REST API: its own part, never everybody's."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from sluice.config.peer_lines import WINDOW_SECONDS
from sluice.controller.api import access_middleware, event_routes, tcp_sessions
from sluice.controller.auth import node_guard
from sluice.controller.auth.audit import OFTEN, AuditTrail
from sluice.controller.pool.model import Change, Event
from sluice.controller.rpc import node_service
from sluice.controller.rpc.node_service import PoolService, ServerLink
from sluice.controller.store.store import EventQuery
from sluice.rpc import pool_pb2 as rpc

from .rest_callers import FakeStore, Place, Waiting, until


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    await place.open()
    yield place
    await place.store.close()


# event streams


async def test_streams_of_one_project_leave_others_and_operators_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_routes, "MOST_STREAMS", 30)
    monkeypatch.setattr(event_routes, "MOST_OF_CALLER", 4)
    monkeypatch.setattr(event_routes, "KEPT_FOR_OPERATORS", 2)
    place = Place(tmp_path)
    await place.open()
    streams = [Waiting(place, "one", "GET", "/events/stream") for _ in range(4)]
    assert [await stream.status for stream in streams] == [200] * 4
    refused = await place.ask("also one", "GET", "/events/stream")
    assert refused.status_code == 429, "a project's tokens share its places"
    assert refused.json()["type"] == "urn:sluice:problem:too-many-streams"
    assert "project p1 has 4 event streams already" in refused.json()["detail"]
    for who in ("two", "three"):
        streams.append(Waiting(place, who, "GET", "/events/stream"))
        assert await streams[-1].status == 200
    operators = [Waiting(place, "operator", "GET", "/events/stream") for _ in range(3)]
    assert [await stream.status for stream in operators] == [200] * 3
    await streams.pop(0).close()
    again = Waiting(place, "one", "GET", "/events/stream")
    assert await again.status == 200, "a stream that ends gives its place back"
    for stream in (*streams, *operators, again):
        await stream.close()
    await place.store.close()


async def test_a_stream_that_ends_before_its_first_line_gives_its_place_back(
    place: Place,
) -> None:
    for _ in range(3 * event_routes.MOST_OF_CALLER):
        stream = Waiting(place, "one", "GET", "/events/stream")
        stream._gone.set()
        await stream.task
    stream = Waiting(place, "one", "GET", "/events/stream")
    assert await stream.status == 200
    await stream.close()


async def test_a_stream_passes_over_what_is_not_asked_for_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_routes, "POLL_SECONDS", 0.001)
    await place.store.commit([Event(1.0, "adapter.x", f"s{n}", "text") for n in range(50)])
    stream = Waiting(place, "operator", "GET", "/events/stream?kind=adapter.other&since=0")
    assert await stream.status == 200
    await until(lambda: place.store.asked[1] > 30)
    assert place.store.asked[event_routes.READ_AT_ONCE] == 1
    await place.store.commit([Event(1.0, "adapter.other", "here", "text")])
    await until(lambda: b"here" in stream.said)
    await stream.close()


# the event log


async def test_a_page_of_events_is_found_in_few_looks(place: Place) -> None:
    mine = place.grant("p1").grant.id
    await place.store.commit([Event(1.0, "grant.made", mine, "the oldest")])
    for _ in range(10):
        await place.store.commit([Event(2.0, "grant.made", f"x{n}", "other") for n in range(600)])
    place.store.asked.clear()
    found = (await place.ask("one", "GET", "/events?limit=1")).json()
    assert [event["text"] for event in found["events"]] == ["the oldest"]
    assert place.store.asked.total() <= 6000 / event_routes.READ_AT_ONCE + 2


async def test_a_page_of_events_looks_at_so_many_and_goes_on_at_its_marker(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_routes, "MOST_LOOKED_AT", 1000)
    mine = place.grant("p1").grant.id
    await place.store.commit([Event(1.0, "grant.made", mine, "the oldest")])
    for _ in range(5):
        await place.store.commit([Event(2.0, "grant.made", f"x{n}", "other") for n in range(600)])
    texts, marker, pages = [], "", 0
    while marker is not None:
        place.store.asked.clear()
        more = f"&marker={marker}" if marker else ""
        page = (await place.ask("one", "GET", f"/events?limit=5{more}")).json()
        assert place.store.asked.total() <= 1000 / event_routes.READ_AT_ONCE + 1
        texts += [event["text"] for event in page["events"]]
        marker, pages = page["next_marker"], pages + 1
    assert texts == ["the oldest"]
    assert pages == 4


# vGPUs


async def test_a_tenant_hears_of_no_gpu_that_it_has_nothing_on(place: Place) -> None:
    mine, other = place.grant("p1").grant, place.grant("p2").grant
    [here], [there] = ([key.uuid for key, _ in grant.placed()] for grant in (mine, other))
    assert here != there
    for name in (there, there[:10], f"node-a:{there}", "GPU-nothing-like-it", "GPU-xxxxxxxx"):
        answer = await place.ask("one", "GET", f"/vgpus?gpu={name}")
        assert answer.status_code == 404, name
        assert there not in answer.json()["detail"].replace(name, "")
    for name in (here, here[:10], f"node-a:{here}"):
        answer = await place.ask("one", "GET", f"/vgpus?gpu={name}")
        assert [vgpu["grant_id"] for vgpu in answer.json()["vgpus"]] == [mine.id]
    answer = await place.ask("operator", "GET", f"/vgpus?gpu={there[:10]}")
    assert [vgpu["grant_id"] for vgpu in answer.json()["vgpus"]] == [other.id]


# held jobs, requests under way


async def test_held_jobs_are_bounded_by_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_sessions, "MOST_HOLDS_OF_CALLER", 3)
    monkeypatch.setattr(tcp_sessions, "HANGUP_POLL_SECONDS", 0.01)
    place = Place(tmp_path)
    await place.open()
    begun: list[str] = []
    monkeypatch.setattr(place.pool.lifecycle, "job_held", lambda _, holder: begun.append(holder))
    held = [
        Waiting(place, "one", "POST", "/holds", {"job": f"{number:032x}"}) for number in range(3)
    ]
    await until(lambda: len(begun) == 3)
    refused = await place.ask("also one", "POST", "/holds", json={"job": "f" * 32})
    assert (refused.status_code, refused.json()["type"]) == (
        429,
        "urn:sluice:problem:too-many-holds",
    )
    other = Waiting(place, "two", "POST", "/holds", {"job": "e" * 32})
    await until(lambda: len(begun) == 4)
    assert not any(each.task.done() for each in (*held, other))
    for each in (*held, other):
        await each.close()
    await place.store.close()


async def test_requests_under_way_are_bounded_by_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_middleware, "MOST_OF_CALLER", 3)
    place = Place(tmp_path)
    await place.open()
    streams = [Waiting(place, "one", "GET", "/events/stream") for _ in range(3)]
    assert [await stream.status for stream in streams] == [200] * 3
    refused = await place.ask("also one", "GET", "/events")
    assert refused.status_code == 429
    assert refused.json()["type"] == "urn:sluice:problem:too-many-requests-under-way"
    assert (await place.ask("two", "GET", "/events")).status_code == 200
    await streams.pop().close()
    assert (await place.ask("one", "GET", "/events")).status_code == 200
    for stream in streams:
        await stream.close()
    await place.store.close()


# the audit trail


async def test_who_is_refused_again_and_again_pushes_nothing_out_of_the_trail() -> None:
    seconds = 0.0
    stored: list[Event] = []

    class Trail(FakeStore):
        def commit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
            stored.extend(change for change in changes if isinstance(change, Event))
            return super().commit([])

    audit = AuditTrail(Trail(), lambda: 1.0, lambda: seconds)  # type: ignore[arg-type]
    for _ in range(1000):
        await audit.refused("audit.denied", "t1", "GET /v1/tokens: 403")
        await audit.changed("audit.post", "t1", "POST /v1/x: 201")
    await audit.refused("audit.denied", "t2", "GET /v1/tokens: 403")
    denied = [event for event in stored if event.kind == "audit.denied"]
    assert Counter(event.subject for event in denied) == {"t1": 5 * OFTEN, "t2": 1}
    assert len(stored) - len(denied) == 1000, "every change is there"
    seconds += WINDOW_SECONDS
    await audit.sum_up()
    assert stored[-1].subject == "t1"
    assert stored[-1].text.startswith(f"… {1000 - 5 * OFTEN} more that were refused")
    assert audit._summing
    audit._summing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await audit._summing


async def test_a_noisy_callers_refusals_are_summed_up_at_the_door(place: Place) -> None:
    before = len(await place.store.find_events(EventQuery(10_000)))
    for _ in range(100):
        assert (await place.ask("one", "GET", "/nodes")).status_code == 403
    written = len(await place.store.find_events(EventQuery(10_000))) - before
    assert written == 5 * OFTEN


# servers


async def test_a_server_that_reports_and_does_not_read_loses_its_stream(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_service, "MOST_UNREAD_ORDERS", 50)
    service, link, sent = PoolService(place.grant_service, 5), ServerLink(), 0

    async def reports() -> AsyncIterator[rpc.NodeReport]:
        nonlocal sent
        yield rpc.NodeReport(inventory=rpc.Inventory(node="node-b", vgpu_count=4))
        while True:
            sent += 1
            yield rpc.NodeReport(heartbeat=rpc.Heartbeat(beat=sent))

    await asyncio.wait_for(service._read(reports(), link, "peer"), 30)
    assert sent == 50
    assert "node-b" not in service.links


async def test_a_server_that_says_nothing_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_guard, "FIRST_REPORT_SECONDS", 0.01)

    class Aborted(Exception):
        pass

    class Context:
        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        def auth_context(self) -> dict[str, Any]:
            return {"x509_common_name": [b"node-b"]}

        async def abort(self, code: grpc.StatusCode, text: str) -> None:
            raise Aborted(code)

    async def silent() -> AsyncIterator[rpc.NodeReport]:
        await asyncio.get_running_loop().create_future()
        yield rpc.NodeReport()

    async def guarded() -> node_guard.Guarded:
        return node_guard.Guarded(place.access, place.pool)

    guard = node_guard.NodeGuard(None, guarded)
    context: Any = Context()
    with pytest.raises(Aborted, match="DEADLINE_EXCEEDED"):
        await anext(guard.Register(silent(), context))


async def test_what_anybody_may_read_is_made_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    dumps = json.dumps

    def counted(*args: Any, **more: Any) -> str:
        nonlocal made
        made += 1
        return dumps(*args, **more)

    monkeypatch.setattr(json, "dumps", counted)
    answers = [await place.ask("one", "GET", "/openapi.json") for _ in range(20)]
    assert made <= 1
    assert {answer.status_code for answer in answers} == {200}
    assert answers[0].json()["paths"]["/v1/events"]
