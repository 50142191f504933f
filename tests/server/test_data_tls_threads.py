# SPDX-License-Identifier: Apache-2.0
"""Handshakes of the data port run beside the server's event loop, in turn, and are let go of.

What holds them up here is a thread that does not move on, or a certificate that cannot be read to
its end: a server that paid for handshakes on its loop would stand still.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import os
import secrets
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import ControlPlane, wait_for
from network_program import built
from pool_certificates import Pair, PoolCa

from sluice.server.listeners.data_tls import HANDSHAKE_THREADS, DataTls, TlsLine
from sluice.server.sessions.open_session import pack_open_session, unpack_open_reply

pytestmark = pytest.mark.control_plane(shared=True)

MANY = 24


class Steps(concurrent.futures.Executor):
    """Keeps steps until it is told to run them, one after another, in a thread of its own."""

    def __init__(self) -> None:
        self.waiting: list[tuple[concurrent.futures.Future[Any], Callable[[], Any]]] = []
        self.came = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        self._threads = concurrent.futures.ThreadPoolExecutor(1)

    def submit(
        self, step: Callable[..., Any], /, *words: Any, **named: Any
    ) -> concurrent.futures.Future[Any]:
        assert asyncio.get_running_loop() is self._loop
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.waiting.append((future, lambda: step(*words, **named)))
        asyncio.create_task(self._tell())  # noqa: RUF006
        return future

    async def _tell(self) -> None:
        async with self.came:
            self.came.notify_all()

    async def have(self, count: int) -> None:
        """Waits until so many steps wait."""
        async with self.came:
            await self.came.wait_for(lambda: len(self.waiting) == count)

    async def run_next(self) -> None:
        """Runs the oldest one."""
        future, step = self.waiting.pop(0)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(await self._loop.run_in_executor(self._threads, step))
        except BaseException as error:
            future.set_exception(error)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._threads.shutdown(wait, cancel_futures=cancel_futures)


def client_context(ca: PoolCa) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca.file)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def hello(ca: PoolCa) -> bytes:
    """A client's first record."""
    outgoing = ssl.MemoryBIO()
    tls = client_context(ca).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="node-a")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


def key_logs() -> int:
    """How many logs of secrets are open."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += "memfd:data-tls" in str(entry.readlink())
    return found


@pytest.fixture(scope="module")
def pair(ca: PoolCa) -> Pair:
    return ca.issue("node-a")


Meeting = tuple[socket.socket, "asyncio.Task[TlsLine]"]


@contextlib.contextmanager
def meetings(tls: DataTls, count: int) -> Iterator[list[Meeting]]:
    """Clients' ends of connections that are being welcomed."""
    ends = [socket.socketpair() for _ in range(count)]
    for pair in ends:
        for end in pair:
            end.setblocking(False)
    try:
        yield [(theirs, asyncio.create_task(tls.welcome(ours))) for ours, theirs in ends]
    finally:
        for pair in ends:
            for end in pair:
                end.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):  # it stands still rather than fails
            await test()

    asyncio.run(bounded())
    assert key_logs() == 0, "secrets stay open"


def test_the_loop_serves_others_while_handshakes_wait_and_these_keep_their_order(
    ca: PoolCa, pair: Pair
) -> None:
    async def test() -> None:
        loop, steps = asyncio.get_running_loop(), Steps()
        first = hello(ca)
        with meetings(DataTls(pair.cert, pair.key, steps), MANY) as met:
            for number, (theirs, _) in enumerate(met):
                await loop.sock_sendall(theirs, first * 3)  # and more than is its turn
                await steps.have(number + 1)
            echo, other = await asyncio.open_connection(sock=loopback())
            for _ in range(100):
                other.write(b"alive")
                assert await echo.readexactly(5) == b"alive"
            other.close()
            assert not any(task.done() for _, task in met)
            assert len(steps.waiting) == MANY, "a connection has one step in line"
            answered = []
            for theirs, _ in met:
                await steps.run_next()
                answered.append(await loop.sock_recv(theirs, 5))
            assert all(answer[0] == 22 for answer in answered), "each got its answer in its turn"
            for _, task in met:
                task.cancel()
            await asyncio.gather(*(task for _, task in met), return_exceptions=True)

    run(test)


def loopback() -> socket.socket:
    """A connection to a thread that answers what it hears."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        with theirs:
            while data := theirs.recv(64):
                theirs.sendall(data)

    threading.Thread(target=answer, daemon=True).start()
    return ours


@pytest.mark.parametrize("when", ["in line", "at its step", "between steps"])
def test_a_client_that_goes_leaves_nothing(ca: PoolCa, pair: Pair, when: str) -> None:
    async def test() -> None:
        loop, steps = asyncio.get_running_loop(), Steps()
        with meetings(DataTls(pair.cert, pair.key, steps), 1) as [(theirs, task)]:
            await loop.sock_sendall(theirs, hello(ca))
            await steps.have(1)
            if when == "in line":
                task.cancel()
                await asyncio.wait([task])
                await steps.run_next()
                assert not steps.waiting
            elif when == "at its step":
                _, step = steps.waiting[0]
                entered, go_on = threading.Event(), threading.Event()

                def held() -> None:
                    entered.set()
                    go_on.wait()
                    step()
                    assert key_logs() > 0

                steps.waiting[0] = steps.waiting[0][0], held
                running_step = asyncio.create_task(steps.run_next())
                await asyncio.to_thread(entered.wait)
                task.cancel()
                await asyncio.wait([task])
                go_on.set()
                await running_step
            else:
                await steps.run_next()
                assert await loop.sock_recv(theirs, 1)
                assert key_logs() > 0
                task.cancel()
                await asyncio.wait([task])
            assert task.cancelled()

    run(test)


def test_real_handshakes_end_with_their_own_secrets(ca: PoolCa, pair: Pair) -> None:
    async def test() -> None:
        tls = DataTls(pair.cert, pair.key)
        found = []
        with meetings(tls, MANY) as met:
            opened = [
                asyncio.open_connection(
                    sock=theirs, ssl=client_context(ca), server_hostname="node-a"
                )
                for theirs, _ in met
            ]
            ends = await asyncio.gather(*opened)
            for (_, task), (_, writer) in zip(met, ends, strict=True):
                line = await task
                secret = secrets.token_bytes(32)
                writer.write(secret)
                await writer.drain()
                assert await line.read_exactly(32) == secret
                found.append(line.rest())
                writer.transport.abort()
        tls.close()
        assert len({rest["tls_in"] for rest in found}) == MANY
        assert len({rest["tls_out"] for rest in found}) == MANY

    run(test)


# a real server


@pytest.fixture(scope="module")
def plane_options(ca: PoolCa, pair: Pair) -> dict[str, Any]:
    """A node whose data port has TLS; its controller, on this host, has none."""
    if not built():
        pytest.skip("the native part is not built")
    tls = {"data_plane": "true", "data_cert_file": pair.cert, "data_key_file": pair.key}
    return {"folder": ca.folder.parent, "server_tls": tls}


def opens_a_session(plane: ControlPlane, ca: PoolCa) -> bool:
    """Whether a client with a key gets in by TCP."""
    got = plane.rest.post("/sessions", json={"gmem_mib": 1, "ratio_percent": 1}).json()
    with client_context(ca).wrap_socket(plane.connect_data(), server_hostname="node-a") as secure:
        secure.settimeout(60)
        secure.sendall(pack_open_session(key=got["key"], gmem_mib=1))
        data = b""
        while len(data) < 512 and (part := secure.recv(512 - len(data))):
            data += part
    return len(data) == 512 and unpack_open_reply(data)[0] == 0


def local_session(plane: ControlPlane) -> None:
    """By way of the server's loop, its line to the controller and a worker."""
    client = plane.client(gmem_mib=1, ratio_percent=1)
    assert client.first["status"] == 0, client.first
    client.kill()


def test_a_server_whose_handshakes_stand_still_serves_everybody_else(
    plane: ControlPlane, ca: PoolCa, pair: Pair
) -> None:
    kept = pair.cert.with_suffix(".kept")
    pair.cert.rename(kept)
    os.mkfifo(pair.cert)
    held = [plane.connect_data() for _ in range(MANY)]
    for connected in held:
        connected.sendall(hello(ca))
    stuck = wait_for(lambda: writer_of(pair.cert), message="a handshake to read its certificate")

    def set_free() -> None:
        kept.rename(pair.cert)  # for whoever opens it from now on
        os.close(stuck)

    # a server that stands still is set free in the end, so that the test fails and does not hang
    freed = threading.Timer(60, set_free)
    freed.start()
    try:
        for _ in range(3):
            local_session(plane)
        assert plane.node_state() == "up"
        assert freed.is_alive(), "the loop stood still with the handshakes"
    finally:
        freed.cancel()
        freed.join()
        if kept.exists():
            set_free()
    assert opens_a_session(plane, ca), "the others' turn has come, and its own"
    for connected in held:
        connected.close()
    wait_for(lambda: not plane.grants())
    assert plane.log("server").count("no client is let in") <= HANDSHAKE_THREADS
    assert "serving a connection failed" not in plane.log("server")


def writer_of(fifo: Path) -> int:
    """A descriptor, once somebody reads."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return 0


FLOOD = """
import socket, ssl, sys
port, ca = int(sys.argv[1]), sys.argv[2]
context = ssl.create_default_context(cafile=ca)
done = 0
while True:
    open_ends = []
    for number in range(8):
        try:
            connected = socket.create_connection(("127.0.0.1", port), timeout=30)
            outgoing = ssl.MemoryBIO()
            tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="node-a")
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            connected.sendall(outgoing.read())
            if number % 4 == 0:  # most go as soon as the server has begun to work for them
                open_ends.append(connected)
            else:
                connected.close()
        except OSError:
            pass
    for connected in open_ends:
        try:
            done += bool(connected.recv(1))
        except OSError:
            pass
        connected.close()
    print(done, flush=True)
"""


def test_a_flood_of_handshakes_keeps_nobody_from_being_served(
    plane: ControlPlane, ca: PoolCa
) -> None:
    command = [sys.executable, "-c", FLOOD, str(plane.data_port), str(ca.file)]
    with contextlib.ExitStack() as started:
        floods = []
        for _ in range(2):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            started.callback(process.wait)
            started.callback(process.kill)
            floods.append(process)
        for process in floods:
            assert process.stdout
            assert process.stdout.readline(), "the flood runs"
        for _ in range(5):
            local_session(plane)
            assert opens_a_session(plane, ca)
        for process in floods:
            assert process.poll() is None
            assert process.stdout
            assert int(process.stdout.readline()) > 0, "the server answers them, too"
    wait_for(lambda: not plane.grants())
    kinds = [e["kind"] for e in plane.rest.get("/events", params={"limit": 1000}).json()["events"]]
    assert "node.lost" not in kinds
    assert "serving a connection failed" not in plane.log("server")
