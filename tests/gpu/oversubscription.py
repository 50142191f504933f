# SPDX-License-Identifier: Apache-2.0
"""Sessions whose memory does not fit on a card together: their speed, their waits, their results.

    python3 tests/gpu/oversubscription.py [--seconds 120] [--parts pair]    # as root

Starts a server of its own, with host memory that is ready, whose grants promise the card more than
once. First two PyTorch trainings, each with 0.64 of the card's memory, alone, both at once, and one
alone again: `oversubscribed_pair` is the slower one's speed, over whole turns, as a part of the
mean speed alone, and their losses have to be the same. Then notebooks: sessions of 8 GiB, as many
as take 1.36 times the card, each at work for 5 % of the time at random, on a node that has host
memory for each of them to keep its own, as far as the host has it; `notebooks_p50_s` and
`notebooks_p99_s` are seconds from an idle session's question to its answer, and all words of its
memory have to be right; the server's log is in build/measurements/notebooks.log. Figures go to
build/measurements/oversubscription.jsonl. Exit status 1 where something is wrong; the figures
decide nothing. Without a GPU it says that it was skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import math
import os
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "dev")]

from checkpoint_bench import SUBJECT, Bench, Failed, Told  # noqa: E402
from checkpoint_calls import Card  # noqa: E402
from checkpoint_rates import available_gib, huge_pages  # noqa: E402
from checkpoint_sessions import TRAINING  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402
from run import Server, find_driver  # noqa: E402

GIB = 1024
PAIR_PART, NOTEBOOKS_PART, NOTEBOOK_GIB = 0.64, 1.36, 8
BUSY_PART = 0.05
WARM_SECONDS = 30  # of notebooks at work before they count: host memory is made in that time
PROGRAMS_GIB = 28  # of the host, for programs, servers and workers
BATCH, WIDE = 2048, 4096  # steps of some 20 ms: the card's, and not the host's processors'
WARM_STEPS = 50
STANDSTILL_S = 1.0  # is no step: another had the turn
PATIENCE_SECONDS = 600
PARTS = ("pair", "notebooks")
PAIR_LIMIT, P50_LIMIT_S, P99_LIMIT_S = 0.40, 0.6, 2.0


def command() -> str:
    """That was typed."""
    return " ".join(["python3 tests/gpu/oversubscription.py", *sys.argv[1:]])


def card_gib(bench: Bench) -> float:
    """What nobody has of the card."""
    return bench.card.free_mib() / GIB


class HostMemory(NamedTuple):
    """GiB of the host for one part."""

    swap: int
    ready: int  # of these, taken ahead of time
    least: int  # of these, without which the part does not run


def host_memory(card: float, sessions: int, gib_each: int, all_keep: bool) -> HostMemory:
    """What is promised beyond the card, and the largest again for an exchange, at least.

    As placement asks of a node (docs/oversubscription.md, "What is promised"), with 4 GiB for
    what is moved in whole pieces. `all_keep`: as far as the host has it, enough for every session
    to keep its own, and nothing is ready, as that would be kept from them; else a quarter is.
    """
    least = math.ceil(sessions * gib_each - card) + gib_each + 4
    if not all_keep:
        return HostMemory(least, least // 4, least)
    wanted = sessions * gib_each + gib_each
    return HostMemory(max(least, min(wanted, available_gib() - PROGRAMS_GIB)), 0, least)


def server(bench: Bench, gib_each: int, host: HostMemory, idle_seconds: float) -> Server:
    """Whose every grant promises so much of the card."""
    options = ["--swap-mib", str(host.swap * GIB), "--ready-mib", str(host.ready * GIB)]
    options += ["--idle-seconds", str(idle_seconds)]
    folder = Path(tempfile.mkdtemp(prefix="server-", dir=bench.folder))
    folder.chmod(0o755)
    return Server(find_driver(), folder, memory_mib=gib_each * GIB, options=options)


def whole_turns(ends: list[float]) -> tuple[float, list[float]]:
    """Steps a second over whole turns, and how long the standstills between them were, in seconds.

    From the first step behind a standstill to the first behind the last: with turns of ten seconds,
    a time that ends anywhere counts one session's turn too many. Over all where nothing stood.
    """
    took = [after - before for before, after in itertools.pairwise(ends)]
    begins = [n + 1 for n, seconds in enumerate(took) if seconds > STANDSTILL_S]
    still = [took[n - 1] for n in begins]
    if len(begins) < 2:
        return len(took) / (ends[-1] - ends[0]), still
    first, last = begins[0], begins[-1]
    return (last - first) / (ends[last] - ends[first]), still


class Trainer:
    """A training that is told when to go on; the losses of all its steps."""

    def __init__(self, told: Told) -> None:
        """Begun, and past what a process has once: kernels chosen, code loaded."""
        self.told = told
        self.losses: list[float] = []
        self.still: list[float] = []  # seconds each, of the last time
        self.failure = ""
        self.steps(WARM_STEPS)

    def steps(self, count: int) -> None:
        """So many of them."""
        self.losses += self.told.ask("train", PATIENCE_SECONDS, steps=count)["losses"]

    def train(self, seconds: float, speeds: list[float]) -> None:
        """For so long; how many steps a second that was goes to `speeds`."""
        ends = [time.monotonic()]
        try:
            while ends[-1] - ends[0] < seconds:
                self.steps(1)
                ends.append(time.monotonic())
            speed, self.still = whole_turns(ends)
            speeds.append(speed)
        except Failed as failed:
            self.failure = str(failed)


def trained(trainers: list[Trainer], seconds: float) -> list[float]:
    """All at once: steps a second of each; raises Failed."""
    speeds: list[list[float]] = [[] for _ in trainers]
    threads = [
        threading.Thread(target=trainer.train, args=(seconds, found))
        for trainer, found in zip(trainers, speeds, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failure := next((t.failure for t in trainers if t.failure), ""):
        raise Failed(failure)
    return [speed for [speed] in speeds]


def pair(bench: Bench, host: HostMemory, seconds: float) -> list[Measurement]:
    """Two trainings that do not fit together; raises Failed where losses are others."""
    if importlib.util.find_spec("torch") is None:
        print("pair: not tried, there is no PyTorch")
        return []
    card = card_gib(bench)
    gib = int(card * PAIR_PART)
    node = server(bench, gib, host, idle_seconds=10)
    try:
        environment = {**bench.natively, **node.environments["shm"], "LD_PRELOAD": node.preload}
        ballast = gib - 4  # its context, model and caches take the rest

        def begun() -> Trainer:
            told = bench.told([sys.executable, str(TRAINING)], environment)
            told.ask("begin", PATIENCE_SECONDS, batch=BATCH, wide=WIDE)
            told.ask("ballast", PATIENCE_SECONDS, gib=ballast)
            return Trainer(told)

        first = begun()
        alone = trained([first], seconds / 4)
        first.told.kill()
        both = [begun(), begun()]
        speeds = trained(both, seconds)
        for trainer in both:
            if trainer.told.ask("weigh", PATIENCE_SECONDS, gib=ballast) != {"wrong": 0}:
                raise Failed("memory of a training is not what it was")
            count = min(len(first.losses), len(trainer.losses))
            if trainer.losses[:count] != first.losses[:count]:
                raise Failed("a training's losses are others than alone")
        still = [list(trainer.still) for trainer in both]
        both[1].told.kill()
        both[0].steps(1)  # its memory comes
        alone += trained(both[:1], seconds / 4)
        both[0].told.kill()
    finally:
        node.close()
    parts = [speed / statistics.mean(alone) for speed in speeds]
    print(f"pair: {gib} GiB each; alone {alone} steps/s before and behind it; of that: {parts}")
    for turns in still:
        print(f"pair: stood still for {' '.join(f'{s:.1f}' for s in turns)} s", flush=True)
    run_of = Run(command(), gpu=True, rounds=1)
    return [
        run_of.record(
            "oversubscribed_pair",
            min(parts),
            "ratio",
            values=parts,
            limit=PAIR_LIMIT,
            better="higher",
        )
    ]


class Notebook(threading.Thread):
    """A session that is asked now and then."""

    def __init__(self, told: Told, number: int, seconds: float) -> None:
        super().__init__()
        self.told, self.seconds = told, seconds
        self.random = random.Random(number)
        self.waits: list[float] = []
        self.failure = ""

    def run(self) -> None:
        """In its thread."""
        counts_from = time.monotonic() + WARM_SECONDS
        end = counts_from + self.seconds
        busy = 0.2  # of work in one go, so that it is at work for BUSY_PART of the time
        try:
            while True:
                pause = self.random.expovariate(BUSY_PART / (busy * (1 - BUSY_PART)))
                if time.monotonic() + pause >= end:
                    return
                time.sleep(pause)
                asked = time.monotonic()
                self._check()
                if asked > counts_from:
                    self.waits.append(time.monotonic() - asked)
                while time.monotonic() < asked + busy:
                    self._check()
        except Failed as failed:
            self.failure = str(failed)

    def _check(self) -> None:
        if wrong := self.told.ask("check", PATIENCE_SECONDS)["wrong"]:
            raise Failed(f"{wrong} words of a notebook's memory are wrong")


def notebooks_of(card: float) -> int:
    """As many as take NOTEBOOKS_PART of it."""
    return int(card * NOTEBOOKS_PART / NOTEBOOK_GIB)


def moves_of(log: str) -> str:
    """What moves took by the server's log, and the slowest of them in full."""
    said = []
    for way in ("to the host", "to the GPU"):
        found = re.findall(rf"MiB moved {way} in ([0-9.]+) s", log)
        took = sorted(map(float, found)) or [0.0]
        said.append(
            f"{len(found)} moves {way}, median {statistics.median(took):.3f} s, "
            f"the slowest tenth {took[-len(took) // 10]:.3f} s and more"
        )
    slow = max(re.findall(r"memory of grant .*: \d+ MiB moved .*", log), key=_seconds, default="")
    return "; ".join([*said, slow])


def _seconds(line: str) -> float:
    return float(line.split(" in ", 1)[1].split(" s", 1)[0])


def notebooks(bench: Bench, host: HostMemory, count: int, seconds: float) -> list[Measurement]:
    """Raises Failed where memory is wrong."""
    node = server(bench, NOTEBOOK_GIB, host, idle_seconds=1)
    try:
        environment = {**bench.natively, **node.environments["shm"]}
        threads = []
        for number in range(count):
            told = bench.told([sys.executable, str(SUBJECT)], environment)
            told.ask("begin", PATIENCE_SECONDS)
            told.ask("slab", PATIENCE_SECONDS, mib=(NOTEBOOK_GIB - 1) * GIB, piece_mib=64)
            threads.append(Notebook(told, number, seconds))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for thread in threads:
            thread.told.kill()
        log = node.server_log()
        moves = moves_of(log)
        if slower := re.findall(r"registers (\d+) MiB of host memory not", node.log.read_text()):
            moves += f"; not registered by the driver: {sum(map(int, slower))} MiB"
        kept = ROOT / "build" / "measurements" / "notebooks.log"
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(log)
    finally:
        node.close()
    if failure := next((t.failure for t in threads if t.failure), ""):
        raise Failed(failure)
    print(f"notebooks: {moves}")
    waits = sorted(wait for thread in threads for wait in thread.waits)
    if len(waits) < 100:
        raise Failed(f"{len(waits)} answers are too few for a 99th percentile: more --seconds")
    p50, p99 = statistics.median(waits), statistics.quantiles(waits, n=100)[98]
    print(
        f"notebooks: {count}, {host.swap} GiB of host memory; {len(waits)} answers, p50 {p50:.3f} "
        f"s, p99 {p99:.3f} s",
        flush=True,
    )
    run_of = Run(
        command(),
        gpu=True,
        rounds=len(waits),
        setting=f"{count} of them, {host.swap} GiB of host memory",
    )
    return [
        run_of.record("notebooks_p50_s", p50, "s", limit=P50_LIMIT_S),
        run_of.record("notebooks_p99_s", p99, "s", limit=P99_LIMIT_S),
    ]


def main() -> int:
    """Everything; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="that each part takes")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--sessions", type=int, default=0, help="notebooks (0: by the card)")
    options = parser.parse_args()
    if not find_driver() or not Card.count():
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    kept: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="sluice-over-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with Bench("oversubscription", folder) as bench:
            card = card_gib(bench)
            count = options.sessions or notebooks_of(card)
            hosts = {
                "pair": host_memory(card, 2, int(card * PAIR_PART), all_keep=False),
                "notebooks": host_memory(card, count, NOTEBOOK_GIB, all_keep=True),
            }
            asked = [hosts[part] for part in options.parts]
            least = PROGRAMS_GIB + max(host.least for host in asked)
            if available_gib() < least:
                print(f"failed: host memory of {least} GiB is needed, {available_gib()} are free")
                return 1
            # what is ready is the driver's, which needs no huge pages
            with huge_pages(max(host.swap - host.ready for host in asked)) as said:
                print(f"host memory: {said}")
                try:
                    if "pair" in options.parts:
                        kept += pair(bench, hosts["pair"], options.seconds)
                    if "notebooks" in options.parts:
                        kept += notebooks(bench, hosts["notebooks"], count, options.seconds)
                except Failed as error:
                    print(f"failed: {error}")
                    return 1
                finally:
                    print(f"figures: {write_measured('oversubscription', kept)}")
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
