# SPDX-License-Identifier: Apache-2.0
"""A worker that asks and never reads: what waits for it here is bounded, and it is ended."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from open_files import count_descriptors

from sluice.protocol.control import WORKER_SENT
from sluice.resources.ends import End
from sluice.server.workers.packets import Message, PacketLink, Unsent
from sluice.server.workers.process import WorkerFiles, WorkerRecord
from sluice.server.workers.worker import MOST_BEFORE, MOST_LINKS_BEFORE, MOST_UNREAD, Worker


def test_what_waits_for_a_side_that_does_not_read_is_bounded() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gone: list[bool] = []
        link = PacketLink(
            ours,
            lambda _: None,
            lambda: gone.append(True),
            most_unsent=Unsent(100, 10),
            expected=WORKER_SENT,
            on_fault=lambda *_: None,
        )
        gc.collect()  # what tests before this one left
        before = count_descriptors()
        most = 0
        for _ in range(5000):
            link.send(Message("fetched"), [theirs.fileno()])
            most = max(most, count_descriptors() - before)
        assert most == 10
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert gone == [True]
        assert link.does_not_read
        assert not link.is_open
        assert count_descriptors() == before - 1, "all are closed, and the link's own"
        theirs.close()

    asyncio.run(run())


def test_a_side_that_reads_late_gets_everything() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setblocking(False)
        link = PacketLink(
            ours,
            lambda _: None,
            lambda: None,
            most_unsent=Unsent(5000, 10),
            expected=WORKER_SENT,
            on_fault=lambda *_: None,
        )
        for number in range(4000):
            link.send(Message("gone", {"key": str(number)}))
        for number in range(4000):
            packet = await asyncio.get_running_loop().sock_recv(theirs, 1000)
            assert packet == f"gone\nkey={number}".encode()
        assert link.is_open
        link.close()
        theirs.close()

    asyncio.run(run())


def test_one_piece_after_the_other_is_given_to_a_side_that_reads_slowly() -> None:
    """As the host memory of a session on all GPUs of a node: more pieces than may wait."""

    async def run() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link = PacketLink(
            ours,
            lambda _: None,
            lambda: None,
            most_unsent=Unsent(100, 10),
            expected=WORKER_SENT,
            on_fault=lambda *_: None,
        )
        theirs.setblocking(False)
        sent, more = 0, 1000
        while await link.wait_read(0.05):
            link.send(Message("memory"), [theirs.fileno()])
            sent += 1

        async def read() -> None:
            for _ in range(sent + more):
                packet = await asyncio.get_running_loop().sock_recv(theirs, 1000)
                assert packet == b"memory"

        reads = asyncio.create_task(read())
        for _ in range(more):
            assert await link.wait_read(60.0)
            link.send(Message("memory"), [theirs.fileno()])
        await reads
        assert link.is_open, "nobody is ended for it"
        link.send(Message("memory"), [theirs.fileno()])
        link.close()
        assert await link.wait_read(60.0), "there is nobody to wait for"
        theirs.close()

    asyncio.run(run())


class Standing:
    """A worker's process, and our end of what it says."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        files = WorkerFiles(folder)
        record = WorkerRecord("w1", self.process.pid, 0, "none", [], "w1.log")
        self.worker = Worker(record, os.pidfd_open(self.process.pid), files)
        path = files.socket_path("w1")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(str(path))
        self.listening.listen(1)
        self.worker.connect()
        self.side, _ = self.listening.accept()
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self.worker.on_exit = lambda _, why: self.ended.set_result(why)

    def close(self) -> None:
        self.side.close()
        self.listening.close()
        assert self.process.stdin
        self.process.stdin.close()
        self.process.returncode = 0  # the worker's exit was reaped by the worker


def test_a_worker_that_asks_and_never_reads_is_ended_with_a_reason(tmp_path: Path) -> None:
    async def run() -> None:
        standing = Standing(tmp_path)
        asked = 0

        def answer(message: Message) -> None:
            nonlocal asked
            asked += 1
            standing.worker.tell(Message("fetched"), [standing.side.fileno()])

        standing.worker.follow_sharing(answer)
        gc.collect()  # what tests before this one left
        before = count_descriptors()
        most = 0
        standing.side.setblocking(False)
        while not standing.ended.done():
            try:
                standing.side.send(b"fetch\nkey=x")
            except BlockingIOError:
                pass
            except OSError:
                break
            await asyncio.sleep(0)
            most = max(most, count_descriptors() - before)
            assert most <= MOST_UNREAD.descriptors
        why = await standing.ended
        assert "read none of the server's answers" in why.text
        assert most > 0
        standing.close()

    asyncio.run(run())


def test_a_worker_that_floods_before_it_has_a_session_is_ended(tmp_path: Path) -> None:
    async def run() -> None:
        standing = Standing(tmp_path)
        standing.side.setblocking(False)
        while not standing.ended.done():
            try:
                standing.side.send(b"share\nkey=x")
            except BlockingIOError:
                pass
            except OSError:
                break
            await asyncio.sleep(0)
            assert len(standing.worker._sharing_before) <= MOST_BEFORE
        assert "before it had a session" in (await standing.ended).text
        standing.close()

    asyncio.run(run())


def test_what_a_worker_wants_of_its_links_before_it_has_a_session_is_not_lost(
    tmp_path: Path,
) -> None:
    """It asks a new server at once, which has yet to find out whose session it has."""

    async def run() -> None:
        standing = Standing(tmp_path)
        for number in range(1, MOST_LINKS_BEFORE + 5):
            standing.side.send(f"link\npeer=1\nepoch={number}".encode())
        standing.side.send(b"ready\ndevices=0")
        await standing.worker.wait_ready(20)
        heard: list[Message] = []
        standing.worker.follow_links(heard.append)
        assert [m.number("epoch") for m in heard] == [*range(1, MOST_LINKS_BEFORE + 1)]
        standing.side.send(b"link_over\npeer=1")
        while len(heard) == MOST_LINKS_BEFORE:
            await asyncio.sleep(0)
        assert heard[-1].verb == "link_over"
        standing.close()

    asyncio.run(run())


def test_what_no_worker_says_reaches_nobody_and_an_asker_does_not_wait_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        standing = Standing(tmp_path)
        heard: list[Message] = []
        standing.worker.follow_sharing(heard.append)
        before = count_descriptors()
        reading, writing = os.pipe()
        for packet in (b"sing\nkey=x", b"unshare\nkey=x", b"share\nkey=x\nbytes=-1"):
            socket.send_fds(standing.side, [packet], [writing])
        os.close(writing)
        asked = asyncio.create_task(standing.worker.status())
        while not await asyncio.to_thread(standing.side.recv, 100):
            pass
        standing.side.send(b"status\nstate=running\ncommands=many")
        answer = await asked
        assert answer.verb == "error"
        assert "commands is 'many'; a number from 0 to" in answer.get("message")
        assert heard == []
        assert os.read(reading, 1) == b"", "their descriptors are closed"
        os.close(reading)
        assert count_descriptors() == before
        standing.close()

    asyncio.run(run())
    for said in ("unknown verb: 'sing'", "unshare: 1 descriptors came", "bytes is '-1'"):
        assert said in caplog.text
