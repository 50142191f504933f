# SPDX-License-Identifier: Apache-2.0
"""sluice-arbiter as the server and workers meet it: this test is both."""

from __future__ import annotations

import array
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from control_plane import wait_for

from sluice.config.native_files import NativeFileMissing, find_native
from sluice.config.server_gpus import ThrottleSection
from sluice.protocol.frames import TURN_PAGE_BYTES, TURN_PAGE_MAGIC
from sluice.server.sessions.turn_pages import make_page
from sluice.server.workers.packets import Message, decode

#: Where the words lie on a page (native/arbiter/turn_page.h).
TURN, UNTIL, WANTS, SEEN, RETURNED, LAUNCHES = 68, 72, 128, 132, 136, 160
ALONE = (1 << 63) - 1
TOGETHER = ALONE - 2


class Arbiter:
    """The process, and the server's connection to it."""

    def __init__(self, folder: Path) -> None:
        path = folder / "a.sock"
        self.process = subprocess.Popen([find_native("sluice-arbiter"), "--control", path])
        wait_for(path.exists, message="the arbiter's socket")
        self._path = path
        self.connect()

    def connect(self) -> None:
        """As a server does that is started again."""
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(60)
        wait_for(lambda: self._line.connect_ex(str(self._path)) == 0, message="a connection")

    def tell(self, verb: str, descriptors: tuple[int, ...] = (), **fields: object) -> None:
        """Says something."""
        message = Message(verb, {key: str(value) for key, value in fields.items()})
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self._line.sendmsg([message.encode()], beside if descriptors else [])

    def ask(self, verb: str, descriptors: tuple[int, ...] = (), **fields: object) -> Message:
        """Says something and returns what is answered."""
        self.tell(verb, descriptors, **fields)
        return decode(self._line.recv(1 << 17))

    def tenants(self) -> set[str]:
        """Those that it knows."""
        answer = self.ask("figures")
        return {answer.get(f"tenant.{i}.id") for i in range(answer.number("tenants"))}

    def watched(self) -> int:
        """How many descriptors it waits for: its socket and the server's line are two."""
        folder = Path(f"/proc/{self.process.pid}/fdinfo")
        return sum(path.read_text().count("tfd:") for path in folder.iterdir())

    def close(self) -> None:
        self._line.close()
        self.process.kill()
        self.process.wait()


class Worker:
    """A process, with the page and the bell that a session's worker has."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.pidfd = os.pidfd_open(self.process.pid)
        self.turns = make_page("test")
        self.looked_at, self.returned, self.sums = time.monotonic_ns(), 0, [0, 0, 0, 0]

    @property
    def descriptors(self) -> tuple[int, int, int]:
        return self.turns.page, self.turns.bell, self.pidfd

    def until(self) -> int:
        """What its page says."""
        return int(struct.unpack("<q", os.pread(self.turns.page, 8, UNTIL))[0])

    def want(self) -> None:
        """It has work."""
        os.pwrite(self.turns.page, struct.pack("<I", 1), WANTS)
        os.eventfd_write(self.turns.bell, 1)

    def work(self) -> None:
        """Goes on with work that leaves the GPU idle for half of its turns, as far as it may."""
        now = time.monotonic_ns()
        passed, self.looked_at = now - self.looked_at, now
        turn, until = struct.unpack("<Iq", os.pread(self.turns.page, 12, TURN))
        self._write("<I", SEEN, turn)
        if until == 0 or turn == self.returned:
            return
        self.sums = [
            had + more for had, more in zip(self.sums, (passed, passed, 0, 0), strict=True)
        ]
        if until < TOGETHER:
            self.sums[2:] = self.sums[2] + passed, self.sums[3] + passed // 2
        self._write("<4Q", LAUNCHES, *self.sums)
        if until <= now:
            self.returned = turn
            self._write("<I", RETURNED, turn)
            os.eventfd_write(self.turns.bell, 1)

    def _write(self, form: str, where: int, *what: int) -> None:
        os.pwrite(self.turns.page, struct.pack(form, *what), where)

    def end(self) -> None:
        """Its process ends; what is open here stays so."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def arbiter(short_path: Path) -> Iterator[Arbiter]:
    """The real one."""
    try:
        find_native("sluice-arbiter")
    except NativeFileMissing as missing:
        pytest.skip(str(missing))
    started = Arbiter(short_path)
    yield started
    started.close()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    """Three of them."""
    made = [Worker() for _ in range(3)]
    yield made
    for worker in made:
        worker.end()
        for descriptor in worker.descriptors:
            os.close(descriptor)


@contextmanager
def at_work(workers: list[Worker]) -> Iterator[None]:
    """They go on with their work meanwhile."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.001):
            for worker in workers:
                worker.work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def join(arbiter: Arbiter, worker: Worker, name: str, **other: object) -> Message:
    """A worker's session, of a tenant of the same name."""
    fields = {"id": name, "tenant": name, "gpus": "GPU-a", "percent": 50, **other}
    return arbiter.ask("join", worker.descriptors, **fields)


def test_a_worker_that_ends_is_nobodys_neighbour(arbiter: Arbiter, workers: list[Worker]) -> None:
    one, other, _ = workers
    idle = arbiter.watched()
    assert join(arbiter, one, "a").verb == "joined"
    wait_for(lambda: one.until() == ALONE, message="to be alone")
    assert join(arbiter, other, "b").verb == "joined"
    wait_for(lambda: one.until() != ALONE, message="not to be")
    other.end()
    wait_for(lambda: arbiter.tenants() == {"a"}, message="the end to be noticed")
    wait_for(lambda: one.until() == ALONE, message="to be alone again")
    wait_for(lambda: arbiter.watched() == idle + 2, message="the other's to be watched no more")
    arbiter.tell("leave", id="a")
    assert arbiter.tenants() == set()
    assert arbiter.watched() == idle


def test_what_a_server_says_twice_is_the_same(arbiter: Arbiter, workers: list[Worker]) -> None:
    one, other, _ = workers
    join(arbiter, one, "a")
    join(arbiter, other, "b")
    watched = arbiter.watched()
    arbiter.connect()  # a new server
    assert join(arbiter, one, "a").verb == "joined"
    assert join(arbiter, other, "b", percent=30).verb == "joined"
    assert arbiter.tenants() == {"a", "b"}
    assert arbiter.watched() == watched


def test_what_is_no_page_is_refused(arbiter: Arbiter, workers: list[Worker]) -> None:
    worker = workers[0]
    assert arbiter.tenants() == set()  # so it has taken the connection
    watched = arbiter.watched()
    loose = os.memfd_create("loose")  # whoever has it can cut it short
    os.ftruncate(loose, TURN_PAGE_BYTES)
    os.pwrite(loose, struct.pack("<Q", TURN_PAGE_MAGIC), 0)
    fields = {"id": "a", "tenant": "a", "gpus": "GPU-a", "percent": 50}
    for descriptors, said in (
        ((loose, worker.turns.bell, worker.pidfd), "sealed"),
        ((worker.turns.page,), "descriptors"),
        ((), "descriptors"),
        ((worker.turns.page, loose, worker.pidfd), "descriptors"),
    ):
        answer = arbiter.ask("join", descriptors, **fields)
        assert answer.verb == "error", answer
        assert said in answer.get("message"), answer
    os.close(loose)
    for wrong in ({"percent": 0}, {"percent": 101}, {"gpus": ""}, {"capped": 2}):
        assert arbiter.ask("join", worker.descriptors, **{**fields, **wrong}).verb == "error", wrong
    assert arbiter.ask("settings", period_ms=9).verb == "error"
    assert arbiter.tenants() == set()
    assert arbiter.watched() == watched


def test_one_that_rings_without_end_keeps_nobody_from_a_turn(
    arbiter: Arbiter, workers: list[Worker]
) -> None:
    noisy, holder, quiet = workers
    join(arbiter, noisy, "n")
    join(arbiter, holder, "h")
    join(arbiter, quiet, "q")
    # it can also have the bell wait for whoever reads it
    os.set_blocking(noisy.turns.bell, True)
    code = "import os,sys\nwhile True: os.eventfd_write(int(sys.argv[1]), 1)"
    ringing = subprocess.Popen(
        [sys.executable, "-c", code, str(noisy.turns.bell)], pass_fds=(noisy.turns.bell,)
    )
    try:
        quiet.want()
        wait_for(lambda: quiet.until() != 0, message="a turn")
    finally:
        ringing.kill()
        ringing.wait()


def test_small_ones_run_at_once_where_that_is_allowed(
    arbiter: Arbiter, workers: list[Worker]
) -> None:
    for worker, name in zip(workers, "abc", strict=True):
        join(arbiter, worker, name, percent=30)
        worker.want()

    def all_are(together: bool) -> bool:
        return all((worker.until() == TOGETHER) == together for worker in workers)

    def had() -> list[int]:
        answer = arbiter.ask("figures")
        return [answer.number(f"tenant.{n}.together_us") for n in range(len(workers))]

    with at_work(workers):
        wait_for(lambda: all_are(True), message="all at once")
        before = max(had())
        wait_for(lambda: min(had()) > before, message="their time")
        arbiter.tell("settings", period_ms=50, together=0)
        wait_for(lambda: all_are(False), message="turns")
        arbiter.tell("settings", period_ms=50, together=1)
        wait_for(lambda: all_are(True), message="all at once again")


@pytest.mark.parametrize(("level", "period"), [(0, 10), (25, 30), (50, 50), (75, 125), (100, 200)])
def test_the_level_is_a_period(level: int, period: int) -> None:
    assert ThrottleSection(throttle_level=level).period_ms == period
