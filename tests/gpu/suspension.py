# SPDX-License-Identifier: Apache-2.0
"""Sessions that are suspended and resumed on a card: seconds, what stays, and whether all is right.

    python3 tests/gpu/suspension.py [--gib 16] [--rounds 10] [--contexts auto|off]    # as root

Starts a server of its own, with host memory that is ready (run.Server; SIGUSR1 and SIGUSR2 have the
server suspend and resume what runs, as a controller's orders do). A session with so many GiB of
slabs, a graph, a pool and events over shared memory and TCP is suspended and resumed; its context
leaves the GPU behind that, which is waited for before what stays is read. Then a PyTorch training
is, in each of its steps, and its losses are held against the same training left alone. Figures go
to build/measurements/suspension.jsonl. Exit status 1 where something is wrong; the figures decide
nothing. Without a GPU it says that it was skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "dev")]

from checkpoint_bench import SUBJECT, Bench, Failed  # noqa: E402
from checkpoint_calls import Card  # noqa: E402
from checkpoint_rates import available_gib, huge_pages  # noqa: E402
from checkpoint_sessions import TRAINING  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402
from run import Server, find_driver  # noqa: E402

GIB = 1024
PATIENCE_SECONDS = 90.0
READY_SECONDS = 30
SUSPEND_LIMIT_S, RESUME_LIMIT_S, LEFT_LIMIT_MIB = 1.0, 1.0, 64
FREE_HUGE_PAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
SUSPENDED, ON_THE_GPU, RESUMED = " suspended: ", " MiB are on the GPU: ", " resumed"
CONTEXT_LEFT, CONTEXT_STAYS = " its context has left the GPU: ", " its context stays on the GPU"
TIMES = re.compile(r"(checkpoint|restore) ([0-9.]+) s")


class Node:
    """The server, and what its sessions' logs say."""

    def __init__(self, bench: Bench, gib: int, contexts: str, movable: str = "off") -> None:
        self.contexts_leave = contexts == "auto"
        ready = (gib + 4) * GIB
        options = ["--swap-mib", str(2 * ready), "--ready-mib", str(ready)]
        options += ["--checkpoint-contexts", contexts, "--movable", movable]
        self.server = Server(
            find_driver(), bench.folder, memory_mib=(gib + 4) * GIB, options=options
        )

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
        """Seconds until the session goes on: its host memory is given up behind that."""
        return self.order(signal.SIGUSR2, ON_THE_GPU, RESUMED)


def session(bench: Bench, node: Node, channel: str, gib: int, rounds: int) -> list[Measurement]:
    """Of so many GiB; raises Failed where something is wrong."""
    run_of = Run("python3 tests/gpu/suspension.py", gpu=True, rounds=rounds)
    environment = {**bench.natively, **node.server.environments[channel]}
    warm = bench.held_mib()  # of the worker that waits for the next session, now and later
    told = bench.told([sys.executable, str(SUBJECT)], environment)
    told.ask("begin")
    told.ask("slab", mib=gib * GIB, piece_mib=64)
    told.ask("plain", mib=64)
    told.ask("pool", mib=64)
    told.ask("graph", mib=16)
    events = told.ask("events")
    time.sleep(3)  # the next worker waits
    held = bench.held_mib() - warm
    suspends, resumes, left = [], [], 0
    checkpoints, restores = len(node.times("checkpoint")), len(node.times("restore"))
    for _ in range(rounds):
        wait_until_ready()
        gone = node.contexts_left()
        suspends.append(node.suspend())
        node.wait_for_context(gone)
        left = bench.held_mib() - warm
        resumes.append(node.resume())
        wrong(told.ask("check")["wrong"], f"{channel}, {gib} GiB")
    wrong(told.ask("again")["wrong"], f"{channel}: its graph")
    if told.ask("between") != events:
        raise Failed(f"{channel}: its events are others")
    told.kill()
    print(
        f"{channel:5} {gib} GiB: suspended in {statistics.median(suspends):.3f} s, resumed in "
        f"{statistics.median(resumes):.3f} s; MiB of the card: {held} with its memory, {left} "
        "while suspended",
        flush=True,
    )
    took = {
        "checkpoint_s": node.times("checkpoint")[checkpoints:],
        "restore_s": node.times("restore")[restores:],
    }
    for name, each in took.items():
        print(f"{channel:5} {name}: {' '.join(f'{seconds:.3f}' for seconds in each)}", flush=True)
    return [
        *(
            run_of.record(name, statistics.median(each), "s", channel=channel, values=each)
            for name, each in took.items()
            if each
        ),
        run_of.record(
            "suspend_s", statistics.median(suspends), "s", channel=channel, values=suspends,
            limit=SUSPEND_LIMIT_S,
        ),
        run_of.record(
            "resume_s", statistics.median(resumes), "s", channel=channel, values=resumes,
            limit=RESUME_LIMIT_S,
        ),
        run_of.record("suspended_mib", left, "MiB", channel=channel, limit=LEFT_LIMIT_MIB),
    ]  # fmt: skip


def wait_until_ready() -> None:
    """Until the server takes no more memory ahead of time, after what a round has used."""
    before = -1
    for _ in range(READY_SECONDS):
        now = int(FREE_HUGE_PAGES.read_text()) if FREE_HUGE_PAGES.exists() else 0
        if now == before:
            return
        before = now
        time.sleep(1)


def wrong(words: int, what: str) -> None:
    """Raises Failed where there are any."""
    if words:
        raise Failed(f"{what}: {words} words are wrong")


def training(bench: Bench, node: Node, rounds: int) -> None:
    """Suspended and resumed in each step; raises Failed where its losses are others."""
    if importlib.util.find_spec("torch") is None:
        print("training: not tried, there is no PyTorch")
        return
    environment = {**bench.natively, **node.server.environments["shm"]}
    environment["LD_PRELOAD"] = node.server.preload
    told = bench.told([sys.executable, str(TRAINING)], environment)
    told.ask("begin", 60)
    alone = told.ask("train", 60, steps=rounds)["losses"]
    told.ask("begin", 60)
    losses: list[float] = []
    for _ in range(rounds):
        told.tell("train", steps=1)
        node.suspend()
        node.resume()
        losses += told.answer(60)["losses"]
    if losses != alone:
        raise Failed(f"the training's losses are {losses}, and alone {alone}")
    print(f"training: suspended {rounds} times, the same losses")


def main() -> int:
    """Everything; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=int, default=16, help="of the session")
    parser.add_argument("--rounds", type=int, default=10, help="of suspending and resuming")
    parser.add_argument(
        "--contexts", choices=("auto", "off"), default="auto", help="[suspend] checkpoint_contexts"
    )
    options = parser.parse_args()
    if not find_driver() or not Card.count():
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    gib = max(1, min(options.gib, available_gib() // 3 - 8))
    kept: list[Measurement] = []
    with (
        tempfile.TemporaryDirectory(prefix="sluice-suspend-") as name,
        huge_pages(2 * gib + 9) as said,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        print(f"host memory: {said}")
        with Bench("suspension", folder) as bench:
            node = Node(bench, gib, options.contexts)
            try:
                parts: list[Callable[[], object]] = [
                    lambda: kept.extend(session(bench, node, "shm", gib, options.rounds)),
                    lambda: kept.extend(session(bench, node, "tcp", gib, options.rounds)),
                    lambda: training(bench, node, options.rounds),
                ]
                for part in parts:
                    part()
            except Failed as error:
                print(f"failed: {error}")
                return 1
            finally:
                node.server.close()
                print(f"figures: {write_measured('suspension', kept)}")
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
