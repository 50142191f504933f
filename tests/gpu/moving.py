# SPDX-License-Identifier: Apache-2.0
"""Sessions that go on on the other of two cards while they work: seconds, what stays, results.

    python3 tests/gpu/moving.py [--gib 16] [--moves 4]    # as root, two cards of one kind

Starts a server of its own whose sessions may move (suspended_node.py; SIGHUP has it resume what is
suspended on the next GPU, as a controller's order does). First a session with so many GiB of slabs,
a graph, a pool and events, whose memory is checked after each move and taken anew on the other
card; then a PyTorch training with as much memory, moved in each of its steps, whose losses are held
against the same training left alone. `move_s` is how long it stands still: from the order to
suspend it until it goes on, its memory and its context included. `moved_left_mib` is what the card
that it has left has more than before it came. Figures go to build/measurements/moving.jsonl. Exit
status 1 where something is wrong; the figures decide nothing. Without two GPUs it says that it was
skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "dev")]

from checkpoint_bench import SUBJECT, Bench, Failed, Told  # noqa: E402
from checkpoint_calls import Card  # noqa: E402
from checkpoint_rates import available_gib  # noqa: E402
from checkpoint_sessions import TRAINING  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402
from run import find_driver  # noqa: E402
from suspended_node import (  # noqa: E402
    GIB,
    LEFT_LIMIT_MIB,
    Node,
    bench_of,
    node_of,
    wait_until_ready,
    wrong,
)

MOVE_LIMIT_S = 5.0
WARM_SECONDS = 4.0  # until the next worker of a card waits ready


class Moves:
    """Of one session; figures of all of its moves."""

    def __init__(self, node: Node, cards: tuple[Card, Card]) -> None:
        """Before the session begins, while a worker waits on each card."""
        self.node, self.cards = node, cards
        self.empty = self._used()
        self.seconds: list[float] = []
        self.left_mib: list[int] = []
        self.checkpoints, self.restores = len(node.times("checkpoint")), len(node.times("restore"))

    def _used(self) -> list[int]:
        return [card.used_mib() for card in self.cards]

    def held(self) -> list[int]:
        """MiB of each card that it has."""
        return [now - then for now, then in zip(self._used(), self.empty, strict=True)]

    def once(self, goes_on: Callable[[], None]) -> None:
        """Moves it while it works; `goes_on` waits for what it was doing. Raises Failed."""
        wait_until_ready()
        here = 0 if (before := self.held())[0] > before[1] else 1
        gone, began = self.node.contexts_left(), time.perf_counter()
        self.node.suspend()
        self.node.wait_for_context(gone)
        self.node.move()
        self.seconds.append(time.perf_counter() - began)
        goes_on()
        after = self.held()
        self.left_mib.append(after[here])
        if after[1 - here] < before[here] // 2:
            raise Failed(f"it has {before} MiB of the cards before, and {after} after a move")

    def records(self, run_of: Run, name: str, before: str = "") -> list[Measurement]:
        """The figures, with `before` their names, and a line of each."""
        times = {
            "move_restore_s": self.node.times("restore")[self.restores :],
            "move_checkpoint_s": self.node.times("checkpoint")[self.checkpoints :],
        }
        print(
            f"{name}: moved {len(self.seconds)} times, stood still "
            f"{' '.join(f'{s:.3f}' for s in self.seconds)} s; MiB that stayed behind: "
            f"{' '.join(map(str, self.left_mib))}",
            flush=True,
        )
        for what, each in times.items():
            print(f"{name}: {what} {' '.join(f'{s:.3f}' for s in each)}", flush=True)
        return [
            *(
                run_of.record(f"{before}{what}", statistics.median(each), "s", values=each)
                for what, each in times.items()
                if each
            ),
            run_of.record(
                f"{before}move_s", statistics.median(self.seconds), "s", values=self.seconds,
                limit=MOVE_LIMIT_S,
            ),
            run_of.record(
                f"{before}moved_left_mib", max(self.left_mib), "MiB", limit=LEFT_LIMIT_MIB
            ),
        ]  # fmt: skip


def session(bench: Bench, node: Node, moves: Moves, gib: int, times: int) -> None:
    """A session with memory of every kind; raises Failed where something is wrong."""
    told = bench.told(
        [sys.executable, str(SUBJECT)], {**bench.natively, **node.server.environments["shm"]}
    )
    told.ask("begin")
    told.ask("slab", mib=gib * GIB, piece_mib=64)
    told.ask("plain", mib=64)
    told.ask("pool", mib=64)
    told.ask("graph", mib=16)
    events = told.ask("events")
    time.sleep(WARM_SECONDS)
    for _ in range(times):
        told.tell("check")

        def goes_on() -> None:
            wrong(told.answer(60)["wrong"], "its memory behind a move")

        moves.once(goes_on)
    wrong(told.ask("again")["wrong"], "its graph")
    told.ask("slab", mib=64)
    wrong(told.ask("check")["wrong"], "with memory that it took behind the moves")
    if told.ask("between") != events:
        raise Failed("its events are others")
    told.kill()


def training(bench: Bench, node: Node, gib: int, times: int) -> Moves | None:
    """A training moved in each step; raises Failed where its losses are others."""
    if importlib.util.find_spec("torch") is None:
        print("training: not tried, there is no PyTorch")
        return None
    time.sleep(WARM_SECONDS)
    moves = Moves(node, (Card(0), Card(1)))
    told = _begun(bench, node, gib)
    alone = told.ask("train", 60, steps=times)["losses"]
    told.ask("begin", 60)
    time.sleep(WARM_SECONDS)
    losses: list[float] = []
    for _ in range(times):
        told.tell("train", steps=1)

        def goes_on() -> None:
            losses.extend(told.answer(60)["losses"])

        moves.once(goes_on)
    if losses != alone:
        raise Failed(f"the training's losses are {losses}, and alone {alone}")
    wrong(told.ask("weigh", 60, gib=gib)["wrong"], "the memory beside the model")
    told.kill()
    print("training: the losses of one that was left alone")
    return moves


def _begun(bench: Bench, node: Node, gib: int) -> Told:
    environment = {**bench.natively, **node.server.environments["shm"]}
    environment["LD_PRELOAD"] = node.server.preload
    told = bench.told([sys.executable, str(TRAINING)], environment)
    told.ask("begin", 60)
    told.ask("ballast", 60, gib=gib)
    return told


def main() -> int:
    """Everything; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=int, default=16, help="of the session")
    parser.add_argument("--moves", type=int, default=4, help="of each")
    options = parser.parse_args()
    if not find_driver() or Card.count() < 2:
        print(f"skipped: this machine shows {Card.count()} NVIDIA GPUs, and two are needed")
        return 0
    gib = max(1, min(options.gib, available_gib() // 3 - 8))
    kept: list[Measurement] = []
    run_of = Run("python3 tests/gpu/moving.py", gpu=True, rounds=options.moves)
    try:
        with (
            bench_of("moving", 2 * gib + 9) as bench,
            node_of(bench, gib, movable="on") as node,
        ):
            time.sleep(WARM_SECONDS)
            moves = Moves(node, (Card(0), Card(1)))
            session(bench, node, moves, gib, options.moves)
            kept += moves.records(run_of, "session", "session_")
            if trained := training(bench, node, gib, options.moves):
                kept += trained.records(run_of, "training")
    except Failed as error:
        print(f"failed: {error}")
        return 1
    finally:
        print(f"figures: {write_measured('moving', kept)}")
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
