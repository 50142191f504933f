# SPDX-License-Identifier: Apache-2.0
"""What one caller can take of the REST API: its own part, never everybody's."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from sluice.config.controller import AuthSection
from sluice.config.peer_lines import WINDOW_SECONDS
from sluice.controller.api import access_middleware, event_routes, idempotency, tcp_sessions
from sluice.controller.api.app import build_app
from sluice.controller.api.idempotency import LEAST_SECONDS, Answer, Idempotency
from sluice.controller.auth import node_guard
from sluice.controller.auth.access import Access, Caller
from sluice.controller.auth.audit import OFTEN, AuditTrail
from sluice.controller.auth.enrolments import EnrolmentBook
from sluice.controller.auth.tokens import Role, TokenBook
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Granted, GrantRequest
from sluice.controller.pool.model import Change, Document, Event, Gpu, Node
from sluice.controller.pool.pool import Pool
from sluice.controller.rpc import node_service
from sluice.controller.rpc.node_service import PoolService, ServerLink
from sluice.controller.service import SystemClock
from sluice.controller.store.sqlite import SqliteStore
from sluice.controller.store.store import EventQuery, NumberedEvent
from sluice.rpc import pool_pb2 as rpc

Scope = dict[str, Any]


class CountingStore(SqliteStore):
    """Counts what is asked of it, by how many events are asked for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked: Counter[int] = Counter()

    async def find_events(self, query: EventQuery) -> list[NumberedEvent]:
        self.asked[query.limit] += 1
        return await super().find_events(query)


class Place:
    """The application over a real store, and its callers' tokens."""

    def __init__(self, folder: Path) -> None:
        self.store = CountingStore(folder / "store.db")
        self.tokens = TokenBook(self.store)
        numbers = itertools.count()
        self.pool = Pool(SystemClock(), lambda: f"{next(numbers):016x}")
        gpus = [Gpu("node-a", f"GPU-{name * 8}", "Model", 8000) for name in "ab"]
        self.pool.membership.register(Node("node-a", "10.0.0.1", 9960, "1", 4), gpus, [])
        self.secrets: dict[str, str] = {}

    async def open(self) -> None:
        await self.store.load()
        for name, role, project in (
            ("one", Role.TENANT, "p1"),
            ("also one", Role.TENANT, "p1"),
            ("two", Role.TENANT, "p2"),
            ("three", Role.TENANT, "p3"),
            ("operator", Role.OPERATOR, ""),
        ):
            _, secret = await self.tokens.create(role, by="test", name=name, project=project)
            self.secrets[name] = secret
        book = EnrolmentBook(self.store, self.tokens)
        self.access = Access(AuthSection(), self.tokens, book, loopback_only=False)
        self.grant_service = GrantService(self.pool, self.store)
        self.app: Any = build_app(
            self.grant_service, PoolService(self.grant_service, 5), 60, self.access
        )

    def grant(self, project: str) -> Granted:
        wish = GrantRequest(f"r {project}", project=project, compute_percent=100)
        answer = self.pool.requests.submit(wish).answers[f"r {project}"]
        assert isinstance(answer, Granted)
        return answer

    async def ask(self, who: str, method: str, path: str, **more: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, client=("10.0.0.9", 1))
        head = {"Authorization": f"Bearer {self.secrets[who]}", **more.pop("headers", {})}
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.request(method, f"/v1{path}", headers=head, **more)


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    await place.open()
    yield place
    await place.store.close()


class Waiting:
    """A request that stays open: an event stream, a held job."""

    def __init__(self, place: Place, who: str, method: str, path: str, body: Any = None) -> None:
        self.status = asyncio.get_running_loop().create_future()
        self.said = b""
        self._gone = asyncio.Event()
        self._body = json.dumps(body).encode() if body is not None else b""
        self._sent = False
        path, _, query = path.partition("?")
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "method": method,
            "path": f"/v1{path}",
            "query_string": query.encode(),
            "headers": [
                (b"authorization", f"Bearer {place.secrets[who]}".encode()),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(self._body)).encode()),
            ],
            "client": ("10.0.0.9", 1),
        }
        self.task = asyncio.create_task(place.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status.set_result(message["status"])
        self.said += message.get("body", b"")

    async def close(self) -> None:
        self._gone.set()
        await self.task


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


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


# idempotency keys


class FakeStore:
    """Keeps documents."""

    def __init__(self) -> None:
        self.documents: dict[str, str] = {}

    def commit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        for change in changes:
            if isinstance(change, Document):
                self.documents[change.key] = change.value
            else:
                self.documents.pop(change.key, None)  # type: ignore[union-attr]
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


class Keys:
    """The middleware over an application that creates and counts, with a clock of the test's."""

    def __init__(self, documents: Sequence[Document] = (), store: FakeStore | None = None) -> None:
        self.now = 1e9
        self.created = 0
        self.store = store or FakeStore()
        self.middleware = Idempotency(
            self._create,
            self.store,
            documents,
            lambda: self.now,  # type: ignore[arg-type]
        )

    async def _create(self, scope: Any, receive: Any, send: Any) -> None:
        self.created += 1
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": b'{"it": "is made"}'})

    async def post(self, project: str, key: str) -> int:
        status = 0

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        caller = Caller(f"t of {project}", frozenset({"tenant"}), project=project)
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/x",
            "query_string": b"",
            "headers": [(b"idempotency-key", key.encode())],
            "state": {"caller": caller},
        }
        await self.middleware(scope, receive, send)
        return status


@pytest.fixture
def few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MOST_KEYS", 100)
    monkeypatch.setattr(idempotency, "MOST_OF_CALLER", 20)


async def test_one_projects_keys_are_no_others(few_keys: None) -> None:
    keys = Keys()
    answers = [await keys.post("p1", f"k{n}") for n in range(30)]
    assert answers == [201] * 20 + [429] * 10
    assert await keys.post("p2", "k1") == 201
    assert await keys.post("p1", "k19") == 201
    assert keys.created == 21, "a key that is known is still answered from memory"


async def test_a_caller_with_many_keys_loses_its_own_oldest_after_ten_minutes(
    few_keys: None,
) -> None:
    keys = Keys()
    await keys.post("p2", "theirs")
    for number in range(60):
        keys.now += LEAST_SECONDS / 19
        assert await keys.post("p1", f"k{number}") == 201
    made = keys.created
    assert await keys.post("p1", "k59") == 201
    assert await keys.post("p2", "theirs") == 201
    assert keys.created == made, "the youngest and other callers' are kept"
    assert len(keys.store.documents) <= 21, "what is forgotten is removed from the store"


async def test_answers_that_are_kept_have_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MOST_BYTES_OF_CALLER", 100)
    keys = Keys()
    answers = [await keys.post("p1", f"k{n}") for n in range(10)]
    assert answers == [201] * 6 + [429] * 4
    assert await keys.post("p2", "k") == 201


async def test_whose_a_key_is_outlives_the_controller_and_is_no_field_of_0_1(
    few_keys: None,
) -> None:
    keys = Keys()
    for number in range(20):
        await keys.post("p1", f"k{number}")
    documents = [Document("idempotency", *each) for each in keys.store.documents.items()]
    of_0_1 = {"request", "began", "status", "headers", "body", "runs"}
    for document in documents:
        assert set(json.loads(document.value)) <= of_0_1, "it would not start with another field"
        assert "p1" not in document.value
    assert of_0_1 <= {each.name for each in dataclasses.fields(Answer)}
    after = Keys(documents, keys.store)
    assert await after.post("p1", "k3") == 201
    assert after.created == 0
    assert await after.post("p1", "another") == 429
    assert await after.post("p2", "another") == 201


async def test_keys_of_a_release_that_did_not_say_whose_they_are_make_room(
    few_keys: None,
) -> None:
    value = {"request": "r", "began": 1e9 - LEAST_SECONDS, "status": 201, "headers": {}, "body": ""}
    documents = [Document("idempotency", f"n{n}", json.dumps(value)) for n in range(100)]
    keys = Keys(documents)
    assert await keys.post("p1", "k") == 201


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
