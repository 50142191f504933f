# SPDX-License-Identifier: Apache-2.0
"""What is on screens follows the pool: rendered once for all who look, only what changed."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any

import pytest

from sluice.console.board import Board
from sluice.console.live import GONE, MOST_LARGE, Live
from sluice.console.parts import Hidden, Name
from sluice.console.rendering import Rendering
from sluice.console.rights import Rights
from sluice.console.streams import MOST_PARTS
from tests.console.place import Browser, Place

OPERATOR = Rights(sees_pool=True, operates=True)
VIEWER = Rights(sees_pool=True)
NODE = Name.of("node", name="node-a")


class FakeTime:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def live(place: Place) -> tuple[Live, Board, FakeTime]:
    place.node()
    place.pool.take_changes()
    board, clock = Board(place.grants, Rendering()), FakeTime()
    made = Live(board, clock)
    made._render_for_ever = asyncio.Event().wait  # type: ignore[assignment,method-assign]
    place.grants.watchers.append(made.changed)
    return made, board, clock


async def drain(place: Place, *, drained: bool) -> None:
    await place.grants.step(lambda: place.pool.switching.drain_node("node-a", drained=drained))


async def test_a_part_is_rendered_once_for_all_with_equal_rights(
    place: Place, live: tuple[Live, Board, FakeTime]
) -> None:
    watching, board, _ = live
    seen = [watching.subscribe(OPERATOR, {NODE: ""}) for _ in range(50)]
    viewer = watching.subscribe(VIEWER, {NODE: ""})
    await watching.render_due()
    assert board.rendered == 2
    shown = {subscription.take()[0].html for subscription in seen}
    assert len(shown) == 1
    assert "node.drain" in shown.pop()
    assert "node.drain" not in viewer.take()[0].html


async def test_what_did_not_change_is_neither_rendered_nor_sent(
    place: Place, live: tuple[Live, Board, FakeTime]
) -> None:
    watching, board, clock = live
    subscription = watching.subscribe(OPERATOR, {NODE: ""})
    await watching.render_due()
    subscription.take()
    clock.seconds += 60
    place.node("node-b")
    await watching.render_due()
    assert board.rendered == 1
    await drain(place, drained=True)
    await watching.render_due()
    assert board.rendered == 2
    assert "drained" in subscription.take()[0].html
    assert subscription.take() == []


async def test_a_part_is_rendered_so_often_at_most(
    place: Place, live: tuple[Live, Board, FakeTime]
) -> None:
    watching, board, clock = live
    subscription = watching.subscribe(OPERATOR, {NODE: ""})
    await watching.render_due()
    for change in range(20):
        await drain(place, drained=change % 2 == 0)
        clock.seconds += 0.015
        await watching.render_due()
    assert board.rendered == 1
    clock.seconds += 0.2
    await watching.render_due()
    assert board.rendered == 2
    assert len(subscription.take()) == 1, "what was not read is replaced, not piled up"


async def test_who_has_it_already_is_not_sent_it(live: tuple[Live, Board, FakeTime]) -> None:
    watching, board, _ = live
    rendered = await board.render(NODE, OPERATOR)
    subscription = watching.subscribe(OPERATOR, {NODE: rendered.digest})
    await watching.render_due()
    assert subscription.take() == []


async def test_nothing_is_kept_of_who_left(live: tuple[Live, Board, FakeTime]) -> None:
    watching, _, _ = live
    subscriptions = [watching.subscribe(OPERATOR, {NODE: ""}) for _ in range(3)]
    for subscription in subscriptions:
        watching.unsubscribe(subscription)
    assert len(watching) == 0
    assert not watching._of_topic
    assert watching._task is None


async def test_a_part_is_judged_each_time(place: Place, live: tuple[Live, Board, FakeTime]) -> None:
    watching, _, _ = live
    granted = await place.granted("speech")
    tenant = Rights(project="vision")
    names = [
        NODE, Name.of("grant", id=granted.grant.id), Name.of("session", id=granted.session.id),
        Name.of("gpu-card", id="node-a:node-a-gpu0"), Name.of("summary"), Name.of("queue"),
        Name.of("events", subject=granted.grant.id), Name.of("project", name="speech"),
        Name.of("grants", node="node-a"), Name.of("reservations"), Name.of("nodes"),
    ]  # fmt: skip
    subscription = watching.subscribe(tenant, dict.fromkeys(names, ""))
    await watching.render_due()
    assert {each.html for each in subscription.take()} == {GONE}
    mine = watching.subscribe(tenant, {Name.of("grants"): ""})
    await watching.render_due()
    assert granted.grant.id not in mine.take()[0].html


def test_names_come_back_as_they_were() -> None:
    name = Name.of("gpu", id='a:b&c="<>', marker=None)
    assert Name.read(str(name)) == name
    for text in ("x" * 2000, "gpu?" + "&".join(f"a{n}=1" for n in range(20)), "gpu?=;%zz&a"):
        with pytest.raises(Hidden):
            Name.read(text)


# the stream itself


class Stream:
    """A browser's event stream, as the application sends it."""

    def __init__(self, place: Place, browser: Browser, page: str) -> None:
        found = re.search(r'sse-connect="([^"]+)"', page)
        assert found
        self.status = asyncio.get_running_loop().create_future()
        self.text = ""
        self._gone = asyncio.Event()
        path, _, query = html.unescape(found[1]).partition("?")
        cookies = "; ".join(f"{name}={value}" for name, value in browser.client.cookies.items())
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "method": "GET",
            "scheme": "http", "path": path, "query_string": query.encode(),
            "headers": [(b"cookie", cookies.encode()), (b"host", b"pool.example")],
            "client": ("10.0.0.9", 1),
        }  # fmt: skip
        self.task = asyncio.create_task(place.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status.set_result(message["status"])
        self.text += message.get("body", b"").decode()

    async def until(self, text: str) -> float:
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(20):
            while text not in self.text:
                await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time() - began

    async def close(self) -> None:
        self._gone.set()
        await self.task


async def test_a_change_is_on_every_screen_and_only_where_it_is_shown(place: Place) -> None:
    place.node()
    place.node("node-b")
    operator, viewer = await place.signed_in("operator"), await place.signed_in("viewer")
    page = (await operator.get("/node", name="node-a")).text
    streams = [
        Stream(place, operator, page),
        Stream(place, viewer, (await viewer.get("/node", name="node-a")).text),
        Stream(place, viewer, (await viewer.get("/node", name="node-b")).text),
    ]
    for stream in streams:
        assert await stream.status == 200
    await operator.act("node.drain", "node-a")
    event = NODE.event
    for stream in streams[:2]:
        await stream.until("drained")
        await stream.until(f"event: {event}\ndata: ")
    assert f'sse-swap="{event}"' in page
    assert "action=node.return" in streams[0].text
    assert "action=node.return" not in streams[1].text
    assert "drained" not in streams[2].text
    for stream in streams:
        await stream.close()
    assert len(place.live) == 0


async def test_a_stream_ends_with_its_session(place: Place) -> None:
    place.node()
    browser = await place.signed_in("viewer")
    stream = Stream(place, browser, (await browser.get("/nodes")).text)
    await stream.status
    await place.browsers.end_all(place.ids["viewer"])
    await stream.until("event: end")
    await asyncio.wait_for(stream.task, 10)
    again = Stream(place, browser, (await (await place.signed_in("viewer")).get("/nodes")).text)
    assert await again.status == 401
    await again.task


async def test_a_stream_has_so_many_parts(place: Place) -> None:
    browser = await place.signed_in("viewer")
    query = "&".join("part=summary&is=x" for _ in range(MOST_PARTS + 1))
    assert (await browser.client.get(f"/console/live?{query}")).status_code == 422
    assert (await browser.client.get("/console/live?part=nothing&is=x")).status_code == 404
    assert (await browser.client.get("/console/live?part=gpu&is=x")).status_code == 404
    query = "&".join(f"part=grants%3Fmarker%3D{n}&is=x" for n in range(MOST_LARGE + 1))
    assert (await browser.client.get(f"/console/live?{query}")).status_code == 404
    assert len(place.live) == 0


async def test_hostile_text_cannot_end_an_event(place: Place) -> None:
    place.node()
    name = "a\n\nevent: end\ndata: x\r\rb\u2028c"
    granted = await place.granted("vision", program=name)
    browser = await place.signed_in("viewer")
    stream = Stream(place, browser, (await browser.get("/session", id=granted.session.id)).text)
    await stream.status
    await (await place.signed_in("operator")).act("grant.end", granted.grant.id)
    await stream.until("ended by the operator")
    lines = stream.text.splitlines()
    assert "event: end" not in lines
    assert all(re.match(r"(event: p[0-9a-f]{16}|data: |retry: |:|$)", line) for line in lines)
    await stream.close()


async def test_what_changed_comes_before_what_grew_old(
    place: Place, live: tuple[Live, Board, FakeTime]
) -> None:
    watching, board, clock = live
    old = [Name.of("queue"), Name.of("summary"), Name.of("gpu-card", id="node-a:node-a-gpu0")]
    subscription = watching.subscribe(OPERATOR, dict.fromkeys([*old, NODE], ""))
    await watching.render_due()
    subscription.take()
    clock.seconds += 60
    await drain(place, drained=True)
    order: list[str] = []
    render = board.render

    async def slowly(name: Name, rights: Rights) -> Any:
        order.append(name.kind)
        clock.seconds += 0.5
        return await render(name, rights)

    board.render = slowly  # type: ignore[method-assign]
    assert await watching.render_due() == 0.5, "one at a time, where one takes so long"
    for _ in range(3):
        await watching.render_due()
    assert order.index("node") < order.index("gpu-card")
    assert len(set(order)) == 4


async def test_a_stream_is_woken_once_for_all_that_a_beat_rendered(
    place: Place, live: tuple[Live, Board, FakeTime]
) -> None:
    watching, board, clock = live
    names = [NODE, Name.of("gpu-card", id="node-a:node-a-gpu0"), Name.of("nodes")]
    subscription = watching.subscribe(OPERATOR, dict.fromkeys(names, ""))
    woken: list[int] = []
    render = board.render

    async def noticing(name: Name, rights: Rights) -> Any:
        woken.append(subscription.news.is_set())
        return await render(name, rights)

    board.render = noticing  # type: ignore[method-assign]
    await watching.render_due()
    assert woken == [False] * 3
    assert subscription.news.is_set()
    assert len(subscription.take()) == 3
    assert not subscription.news.is_set()
    clock.seconds += 60
    await watching.render_due()
    assert not subscription.news.is_set(), "nothing is another than it was"
