# SPDX-License-Identifier: Apache-2.0
"""Slow and greedy peers of an HTTP server: given up in time, by a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import running
from pool_certificates import PoolCa

from sluice.config import http_server
from sluice.config.descriptors import allow_many
from sluice.config.http_server import (
    BODY_SECONDS,
    HANDSHAKE_SECONDS,
    HEADER_SECONDS,
    READ_SECONDS,
    ConnectionLimits,
    GuardedProtocol,
    GuardedServer,
    GuardedSocket,
)
from sluice.config.peer_lines import PeerLines
from sluice.controller.service import KEPT_DESCRIPTORS, connections_within

WHOLE = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: "
EIGHT = ConnectionLimits(8, 4)
BODY = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class FakeTransport:
    """What a protocol writes, and what becomes of the connection."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = self.aborted = self.paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("10.0.0.9", 4000), "sockname": ("10.0.0.1", 80)}.get(name, default)

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body, then answers."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.request":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})


class Line:
    """One connection of a server whose clock stands still."""

    def __init__(self, app: Any = hello, limits: ConnectionLimits = EIGHT) -> None:
        self.clock = Clock()
        peers = PeerLines(logging.getLogger("test.server"), self.clock)
        self.server = GuardedServer("the server", app, limits, peers, self.clock)
        self.server.listening = GuardedSocket()
        guard = self.server.listening.guard
        guard("the server", limits, peers, self.clock, self.server._make_room, tls=False)
        make: Any = self.server.config.http_protocol_class
        self.protocol: GuardedProtocol = make(
            config=self.server.config, server_state=self.server.server_state, app_state={}
        )
        self.transport = FakeTransport()
        self.protocol.connection_made(self.transport)  # type: ignore[arg-type]

    async def after(self, seconds: float) -> FakeTransport:
        """The transport when so much time has gone by, second by second."""
        for _ in range(5):
            await asyncio.sleep(0)
        for _ in range(int(seconds)):
            self.clock.seconds += 1
            self.server.sweep()
            await asyncio.sleep(0)
        return self.transport

    def says(self, data: bytes) -> None:
        self.protocol.data_received(data)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_headers_that_do_not_end_are_answered_408() -> None:
    async def test() -> None:
        line = Line()
        line.says(HALF)
        assert not (await line.after(HEADER_SECONDS - 1)).closing
        assert (await line.after(1)).closing
        assert line.transport.written.startswith(b"HTTP/1.1 408 ")
        assert b"urn:sluice:problem:request-too-slow" in line.transport.written
        assert line.server.peers.counts == {"the server: too slow": 1}

    run(test)


def test_headers_that_trickle_gain_no_time() -> None:
    async def test() -> None:
        line = Line()
        line.says(HALF)
        for _ in range(int(HEADER_SECONDS)):
            assert not line.transport.closing
            line.says(b"x")
            await line.after(1)
        assert line.transport.closing

    run(test)


def test_a_connection_that_says_nothing_is_closed_without_a_word() -> None:
    async def test() -> None:
        line = Line()
        assert (await line.after(HEADER_SECONDS)).closing
        assert line.transport.written == b""
        assert not line.server.peers.counts

    run(test)


def test_a_chunked_body_that_never_ends_is_answered_408() -> None:
    async def test() -> None:
        line = Line()
        line.says(BODY)
        for _ in range(int(BODY_SECONDS)):
            assert not line.transport.closing
            line.says(b"1\r\nx\r\n")
            await line.after(1)
        assert line.transport.closing
        assert line.transport.written.startswith(b"HTTP/1.1 408 ")
        assert not await tasks_of(line)

    run(test)


async def tasks_of(line: Line) -> set[Any]:
    await line.after(0)
    return line.server.server_state.tasks


def test_a_body_that_goes_on_behind_its_answer_is_cut_off() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})

    async def test() -> None:
        line = Line(refuse)
        line.says(BODY)
        for _ in range(int(BODY_SECONDS)):
            assert not line.transport.closing
            line.says(b"1\r\nx\r\n")
            await line.after(1)
        assert line.transport.closing
        assert line.transport.written.count(b"HTTP/1.1") == 1, "it was answered already"

    run(test)


def test_an_answer_takes_what_it_takes() -> None:
    release: list[asyncio.Event] = []

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await release[0].wait()
        await hello(scope, receive, send)

    async def test() -> None:
        release.append(asyncio.Event())
        line = Line(wait)
        line.says(WHOLE)
        assert not (await line.after(10_000)).closing
        release[0].set()
        assert b"hello" in (await line.after(0)).written

    run(test)


def test_the_next_request_of_a_connection_has_a_deadline_too() -> None:
    async def test() -> None:
        line = Line()
        line.says(WHOLE)
        assert b"hello" in (await line.after(0)).written
        line.says(HALF)  # which ends the keep-alive timer
        assert not (await line.after(HEADER_SECONDS)).closing
        assert (await line.after(http_server.KEEP_ALIVE_SECONDS)).closing

    run(test)


def test_pipelined_requests_are_answered_one_by_one() -> None:
    async def test() -> None:
        line = Line()
        line.says(WHOLE * 20)
        assert len(await tasks_of(line)) <= 2, "the one that ends and the next"
        while line.transport.written.count(b"hello") < 20:
            assert len(await tasks_of(line)) <= 2
        assert not line.transport.closing

    run(test)


def test_who_does_not_read_its_answer_is_given_up() -> None:
    async def test() -> None:
        line = Line()
        line.says(WHOLE)
        await line.after(0)
        line.protocol.pause_writing()
        line.protocol.resume_writing()  # it read some
        line.protocol.pause_writing()
        assert not (await line.after(READ_SECONDS - 1)).aborted
        assert (await line.after(1)).aborted
        assert line.server.peers.counts["the server: too slow"] == 1

    run(test)


def test_what_is_left_of_an_answer_is_not_waited_for_without_end() -> None:
    async def test() -> None:
        line = Line()
        line.says(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await line.after(0)).closing, "and its buffer is not empty yet"
        assert not (await line.after(READ_SECONDS)).aborted
        assert (await line.after(1)).aborted

    run(test)


# with real connections


class Served:
    """A server on a free port of 127.0.0.1."""

    def __init__(self, limits: ConnectionLimits, app: Any = hello, **options: Any) -> None:
        self.clock = Clock()
        self.peers = PeerLines(logging.getLogger("test.server"), self.clock)
        self.server = GuardedServer("the server", app, limits, self.peers, self.clock, **options)
        self.port = self.server.listen("127.0.0.1", 0)
        self.task = asyncio.create_task(self.server.run_until_closed())

    @property
    def places(self) -> int:
        return len(self.server.listening.places)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not true():
                await asyncio.sleep(0.01)

    async def connected(self, source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))

    async def asked(self, source: str) -> bytes:
        """The answer to a whole request; b"" where there was none."""
        reader, writer = await self.connected(source)
        try:
            writer.write(WHOLE)
            answer = b""
            while b"hello" not in answer and (piece := await reader.read(1000)):
                answer += piece
            return answer
        except ConnectionError:
            return b""
        finally:
            writer.close()

    async def close(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        await self.task


def test_an_address_gets_some_connections_and_leaves_the_others() -> None:
    async def test() -> None:
        served = Served(ConnectionLimits(8, 4))
        half = [await served.connected("127.0.0.2") for _ in range(8)]
        for _, writer in half:
            writer.write(HALF)
        await served.until(lambda: bool(served.peers.counts))
        assert served.server.listening.places.of("127.0.0.2") <= 4
        answer = await served.asked("127.0.0.2")
        assert answer == b"" or b"urn:sluice:problem:too-many-connections" in answer
        assert b"hello" in await served.asked("127.0.0.3")
        for _, writer in half:
            writer.close()
        await served.until(lambda: served.places == 0)
        assert b"hello" in await served.asked("127.0.0.2")
        await served.close()

    run(test)


def test_places_come_back_however_a_connection_ends() -> None:
    async def test() -> None:
        served = Served(ConnectionLimits(8, 8))
        for _ in range(40):
            assert b"hello" in await served.asked("127.0.0.2")
        _, writer = await served.connected("127.0.0.2")
        writer.write(b"rubbish\r\n\r\n")
        _, reset = await served.connected("127.0.0.2")
        reset.transport.abort()
        await served.until(lambda: served.places <= 1)
        writer.close()
        _, slow = await served.connected("127.0.0.2")
        slow.write(HALF)
        await served.until(lambda: served.places > 0)
        served.clock.seconds += 100
        await served.until(lambda: served.places == 0)
        slow.close()
        await served.close()

    run(test)


def test_when_all_are_taken_the_oldest_half_sent_request_makes_room() -> None:
    async def test() -> None:
        served = Served(ConnectionLimits(8, 8))
        half = [await served.connected(f"127.0.2.{number}") for number in range(8)]
        for _, writer in half:
            writer.write(HALF)
        await served.until(lambda: len(served.server.waiting) == 8)
        for number in range(20):
            assert b"hello" in await served.asked(f"127.0.3.{number}")
            await served.until(lambda: served.places <= 7)
        left = [reader for reader, _ in half if not reader.at_eof()]
        assert len(left) == 7, "what is answered at once takes one place after another"
        assert served.peers.counts["the server: made room"] == 1
        for _, writer in half:
            writer.close()
        await served.close()

    run(test)


def test_requests_that_are_answered_make_no_room() -> None:
    release: list[asyncio.Event] = []

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        await release[0].wait()
        await hello(scope, receive, send)

    async def test() -> None:
        release.append(asyncio.Event())
        served = Served(ConnectionLimits(4, 4), app=wait)
        asked = [asyncio.create_task(served.asked(f"127.0.2.{number}")) for number in range(4)]
        await served.until(lambda: len(served.server.server_state.tasks) == 4)
        answer = await served.asked("127.0.3.1")
        assert answer == b"" or b"urn:sluice:problem:too-many-connections" in answer
        release[0].set()
        assert all(b"hello" in answer for answer in await asyncio.gather(*asked))
        await served.close()

    run(test)


def test_answers_that_nobody_reads_have_a_size_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_UNREAD_BYTES", 1000)

    async def test() -> None:
        line = Line()
        others = [Line(), Line()]
        for number, each in enumerate((line, *others)):
            each.transport.written = b"x" * (400 + number)
            line.server.protocols.add(each.protocol)
        line.server.sweep()
        ended = [each.transport.aborted for each in (line, *others)]
        assert ended == [False, False, True], "the largest goes, and no more than need be"

    run(test)


def test_an_address_has_so_many_tls_handshakes_a_second(tmp_path: Path) -> None:
    ca = PoolCa(tmp_path)
    pair = ca.issue("controller", "127.0.0.1")

    async def test() -> None:
        served = Served(
            ConnectionLimits(600, 600), ssl_certfile=str(pair.cert), ssl_keyfile=str(pair.key)
        )
        burst = int(http_server.HANDSHAKES_PER_SECOND * 2)
        lines = [await served.connected("127.0.0.2") for _ in range(burst + 20)]
        await served.until(lambda: served.peers.counts["the server: handshakes"] == 20)
        assert served.server.listening.places.of("127.0.0.2") == burst
        other = await served.connected("127.0.0.3")
        await served.until(lambda: served.server.listening.places.of("127.0.0.3") == 1)
        for _, writer in (*lines, other):
            writer.close()
        await served.close()

    run(test)


def test_a_tls_handshake_that_never_ends_loses_its_place(tmp_path: Path) -> None:
    ca = PoolCa(tmp_path)
    pair = ca.issue("controller", "127.0.0.1")

    async def test() -> None:
        served = Served(
            ConnectionLimits(8, 8), ssl_certfile=str(pair.cert), ssl_keyfile=str(pair.key)
        )
        reader, writer = await served.connected("127.0.0.2")
        writer.write(b"\x16\x03\x01")  # a record begins
        await served.until(lambda: served.places == 1)
        served.clock.seconds += HANDSHAKE_SECONDS
        assert await asyncio.wait_for(reader.read(), 30) == b""
        await served.until(lambda: served.places == 0)
        assert served.peers.counts == {"the server: handshake": 1}
        context = ssl.create_default_context(cafile=str(ca.file))
        reader, secure = await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
        await served.until(lambda: not served.server.listening._accepted)
        served.clock.seconds += HANDSHAKE_SECONDS - 1
        secure.write(WHOLE)
        assert b"200 OK" in await asyncio.wait_for(reader.readline(), 30)
        secure.close()
        writer.close()
        await served.close()

    run(test)


def test_descriptors_are_left_for_everything_else() -> None:
    for limit in (1024, 4096, 65536):
        rest, nodes = connections_within(limit, 4096)
        assert rest + nodes <= limit - KEPT_DESCRIPTORS
        assert rest >= 600
        assert nodes >= 200
    assert connections_within(65536, 4096)[0] == 4096


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    usual = min(1024, before[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (usual, before[1]))
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_half_sent_requests_leave_the_controller_to_others(
    tmp_path: Path, limits: tuple[int, int]
) -> None:
    with running(tmp_path, fake=True) as plane:
        allow_many()  # here, for the attacker; the services began with the usual limit
        half = []
        for _ in range(1100):
            half.append(socket.socket())
            half[-1].bind(("127.0.0.2", 0))
            half[-1].connect(("127.0.0.1", plane.rest_port))
            with contextlib.suppress(ConnectionError):
                half[-1].send(HALF)
        assert plane.rest.get("/pool").status_code == 200
        assert plane.client().first["status"] == 0
        assert plane.log("controller").count("REST") < 30, "and the log stays short"
        for each in half:
            each.close()
