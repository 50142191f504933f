# SPDX-License-Identifier: Apache-2.0
"""A server whose sessions are suspended, resumed and moved by signals, and what their logs say.

Used by suspension.py, suspension_rates.py, moving.py and preemption.py. A bench has a folder and
huge pages of its own, and as many servers as it is asked for, one after the other.
"""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "dev")]

from checkpoint_bench import Bench, Failed  # noqa: E402
from checkpoint_rates import available_mib, huge_pages  # noqa: E402
from run import Server, find_driver  # noqa: E402

GIB = 1024
PATIENCE_SECONDS = 90.0
READY_SECONDS = 60
STEADY_MIB = 128  # by which what the machine has changes in a second while nothing happens
STEADY_SECONDS = 5  # it waits for some before it begins, and the driver takes its time to start
HUGE_PAGE_MIB = 2
LEFT_LIMIT_MIB = 64
FREE_HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
SUSPENDED, ON_THE_GPU, RESUMED = " suspended: ", " MiB are on the GPU: ", " resumed"
CONTEXT_LEFT, CONTEXT_STAYS = " its context has left the GPU: ", " its context stays on the GPU"
TIMES = re.compile(r"(checkpoint|restore) ([0-9.]+) s")
MOVES = re.compile(r"(\d+) MiB are on the (host|GPU): (.*)")
SECONDS = re.compile(r"([0-9.]+) s")


class Moved(NamedTuple):
    """One way of a session's memory, by its worker."""

    mib: int
    where: str  # host, GPU: that it is now
    seconds: float
    steps: str

    @property
    def gib_s(self) -> float:
        """GiB a second, mapping and unmapping included."""
        return self.mib / GIB / self.seconds


class Node:
    """The server, and what its sessions' logs say."""

    def __init__(
        self, driver: str, folder: Path, gib: int, contexts: str, movable: str, ready_gib: int
    ) -> None:
        """For one session of so many GiB, in a folder that is empty.

        Host memory is for what the session keeps and for as much that is ready beside that.
        """
        self.contexts_leave = contexts == "auto"
        memory = (gib + 4) * GIB
        options = ["--swap-mib", str(2 * memory), "--ready-mib", str(ready_gib * GIB)]
        options += ["--checkpoint-contexts", contexts, "--movable", movable]
        self.server = Server(driver, folder, memory_mib=memory, options=options)

    def _said(self, word: str) -> int:
        return self.server.log.read_text().count(word)

    def order(self, number: signal.Signals, *words: str) -> float:
        """Seconds until the sessions' logs say the first word; returns with the last.

        Raises Failed.
        """
        before, began = [self._said(word) for word in words], time.perf_counter()
        self.server.process.send_signal(number)
        took = 0.0
        for word, count in zip(words, before, strict=True):
            while self._said(word) == count:
                if time.perf_counter() - began > PATIENCE_SECONDS:
                    said = self.server.log.read_text()[-600:]
                    raise Failed(f"not {word.strip()} in time: {said}")
                time.sleep(0.002)
            took = took or time.perf_counter() - began
        return took

    def move(self) -> float:
        """Seconds until it goes on, restored on another GPU; it is suspended, and its context off.

        Raises Failed.
        """
        return self.order(signal.SIGHUP, ON_THE_GPU, RESUMED)

    def suspend(self) -> float:
        """Seconds."""
        return self.order(signal.SIGUSR1, SUSPENDED)

    def times(self, what: str) -> list[float]:
        """Seconds of all checkpoints, or restores, so far."""
        return [
            float(took) for name, took in TIMES.findall(self.server.log.read_text()) if name == what
        ]

    def moved(self) -> list[Moved]:
        """What went to the host and came back so far, in the order in which it did."""
        return [
            Moved(int(mib), where, sum(map(float, SECONDS.findall(steps))), steps)
            for mib, where, steps in MOVES.findall(self.server.log.read_text())
        ]

    def wait_for_context(self, before: int) -> None:
        """Until one more than so many have left; raises Failed."""
        end = time.perf_counter() + PATIENCE_SECONDS
        while self.contexts_leave and self._said(CONTEXT_LEFT) <= before:
            said = self.server.log.read_text()
            if CONTEXT_STAYS in said or time.perf_counter() > end:
                raise Failed(f"its context does not leave: {said[-600:]}")
            time.sleep(0.01)

    def contexts_left(self) -> int:
        """How many have, so far."""
        return self._said(CONTEXT_LEFT)

    def resume(self) -> float:
        """Seconds until the session goes on, with its host memory for the next time."""
        return self.order(signal.SIGUSR2, ON_THE_GPU, RESUMED)


@contextlib.contextmanager
def bench_of(name: str, gib: int) -> Iterator[Bench]:
    """With huge pages for suspended sessions of so many GiB; its processes end with it."""
    with tempfile.TemporaryDirectory(prefix="sluice-suspend-") as folder, huge_pages(gib) as said:
        Path(folder).chmod(0o755)
        print(f"host memory: {said}")
        with Bench(name, Path(folder)) as bench:
            yield bench


@contextlib.contextmanager
def node_of(
    bench: Bench,
    gib: int,
    contexts: str = "auto",
    movable: str = "off",
    ready_gib: int | None = None,
    driver: str = "",
) -> Iterator[Node]:
    """A server for one session of so many GiB; where something failed, the end of its log is shown.

    `ready_gib`: of host memory that is taken ahead of time; None: as much as it may need.
    """
    folder = Path(tempfile.mkdtemp(prefix="server-", dir=bench.folder))
    folder.chmod(0o755)
    ready = gib + 4 if ready_gib is None else ready_gib
    node = Node(driver or find_driver(), folder, gib, contexts, movable, ready)
    try:
        yield node
    except Failed:
        print(node.server.server_log()[-2000:])
        raise
    finally:
        node.server.close()


def wait_until_ready() -> None:
    """Until the server takes no more memory ahead of time, after what a round has used."""
    before, steady = -STEADY_MIB, 0
    for _ in range(READY_SECONDS):
        huge = int(FREE_HUGE_PAGES.read_text()) if FREE_HUGE_PAGES.exists() else 0
        now = huge * HUGE_PAGE_MIB + available_mib()
        steady = steady + 1 if abs(now - before) < STEADY_MIB else 0
        if steady == STEADY_SECONDS:
            return
        before = now
        time.sleep(1)


def wrong(words: int, what: str) -> None:
    """Raises Failed where there are any."""
    if words:
        raise Failed(f"{what}: {words} words are wrong")
