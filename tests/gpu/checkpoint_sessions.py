# SPDX-License-Identifier: Apache-2.0
"""Cases of checkpoint_probe.py through Sluice: the worker of a session is checkpointed.

The same subject runs on a server of its own (run.Server): over shared memory, TCP and a relay, and
a PyTorch training over TCP, whose losses are held against the same training left alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from checkpoint_bench import SUBJECT, Bench, Told
from footprint import workers
from run import Server, find_driver

TRAINING = Path(__file__).with_name("checkpoint_training.py")
WORKER_SECONDS = 20.0
STEPS = 12


@contextlib.contextmanager
def _server(bench: Bench) -> Iterator[Server]:
    server = Server(find_driver(), bench.folder)
    try:
        yield server
    finally:
        server.close()


def _waiting_worker() -> int:
    """The one worker that waits ready, which the next session gets; its context is there."""
    end = time.monotonic() + WORKER_SECONDS
    while len(found := workers()) != 1:
        if time.monotonic() > end:
            raise SystemExit(f"there are {len(found)} workers where one should wait")
        time.sleep(0.05)
    time.sleep(1.5)
    return found.pop()


def _begun(bench: Bench, server: Server, channel: str) -> tuple[Told, int]:
    worker = _waiting_worker()
    told = bench.told(
        [sys.executable, str(SUBJECT)], {**bench.natively, **server.environments[channel]}
    )
    told.ask("begin")
    return told, worker


def sessions(bench: Bench) -> None:
    """Slabs, a graph, events, and pinned memory where the channel has it; three channels."""
    with _server(bench) as server:
        for channel in ("shm", "tcp", "relay"):
            told, worker = _begun(bench, server, channel)
            told.ask("slab", mib=512)
            told.ask("pool", mib=64)
            told.ask("graph", mib=16)
            before = told.ask("events")
            bench.cycle(f"a session's worker, {channel}", told, pid=worker)
            wrong = told.ask("again")["wrong"]
            same = told.ask("between") == before
            result = "right" if same and not wrong else f"{wrong} words wrong, events {same}"
            bench.row(f"   its graph and events, {channel}", result)
            told.kill()


def opened(bench: Bench) -> None:
    """Memory that one session exports and another opens."""
    with _server(bench) as server:
        one, worker = _begun(bench, server, "shm")
        one.ask("slab", mib=64)
        other, its_worker = _begun_beside(bench, server, {worker})
        path = str(bench.folder / "handles")
        one.tell("export", path=path)
        other.ask("open", path=path)
        one.answer()
        bench.cycle("a session whose memory another session has open", one, pid=worker)
        bench.cycle("the session that has it open", other, pid=its_worker)


def _begun_beside(bench: Bench, server: Server, others: set[int]) -> tuple[Told, int]:
    end = time.monotonic() + WORKER_SECONDS
    while not (found := workers() - others) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1.5)
    told = bench.told(
        [sys.executable, str(SUBJECT)], {**bench.natively, **server.environments["shm"]}
    )
    told.ask("begin")
    return told, found.pop()


def training(bench: Bench) -> None:
    """Convolutions and matrices of PyTorch over TCP, checkpointed in the middle."""
    if importlib.util.find_spec("torch") is None:
        bench.row("a PyTorch training over TCP", "not tried: no PyTorch")
        return
    with _server(bench) as server:
        environment = {**bench.natively, **server.environments["tcp"]}
        environment["LD_PRELOAD"] = server.preload
        worker = _waiting_worker()
        told = bench.told([sys.executable, str(TRAINING)], environment)
        told.ask("begin", 60)
        alone = told.ask("train", 60, steps=STEPS)["losses"]
        told.ask("begin", 60)
        first = told.ask("train", 60, steps=STEPS // 2)["losses"]
        bench.cycle("a PyTorch training over TCP", None, pid=worker)
        second = told.ask("train", 60, steps=STEPS - STEPS // 2)["losses"]
        same = first + second == alone
        bench.row("   its losses", "the same" if same else f"{first + second}, alone {alone}")
