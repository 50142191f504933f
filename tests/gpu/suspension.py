# SPDX-License-Identifier: Apache-2.0
"""Sessions that are suspended and resumed on a card: seconds, what stays, and whether all is right.

    python3 tests/gpu/suspension.py [--gib 16] [--rounds 10] [--contexts auto|off]    # as root

Starts a server of its own, with host memory that is ready (suspended_node.py; SIGUSR1 and SIGUSR2
have the server suspend and resume what runs, as a controller's orders do). A session with so many
GiB of slabs, a graph, a pool and events over shared memory and TCP is suspended and resumed; its
context leaves the GPU behind that, which is waited for before what stays is read. It is suspended
in the middle of a copy of 8 GiB, too. Then a ResNet-50 training is, in ten of its steps, whose
losses are held against the same training left alone; so are the calls of a generator of cuRAND's,
a handle of cuBLAS' and a plan of cuFFT's between which it is. At last 32 GiB (--swap-gib) go out
and in again beside copies of pinned memory (suspension_rates.py). Figures go to
build/measurements/suspension.jsonl. Exit status 1 where something is wrong; the figures decide
nothing. Without a GPU it says that it was skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "dev")]

from checkpoint_bench import SUBJECT, Bench, Failed, Told  # noqa: E402
from checkpoint_calls import Card  # noqa: E402
from checkpoint_rates import available_gib  # noqa: E402
from checkpoint_sessions import TRAINING  # noqa: E402
from measurements import Measurement, Run, write_measured  # noqa: E402
from run import find_driver  # noqa: E402
from run_workloads import torch_version  # noqa: E402
from suspended_node import (  # noqa: E402
    GIB,
    LEFT_LIMIT_MIB,
    Node,
    bench_of,
    node_of,
    wait_until_ready,
    wrong,
)
from suspension_rates import rates  # noqa: E402

SUSPEND_LIMIT_S, RESUME_LIMIT_S = 1.0, 1.0
TRAINING_ROUNDS = 10
TRAINING_SECONDS = 120.0
COPIED_GIB = 8
INTO_THE_COPY_SECONDS = 0.5  # of 8 GiB, four ways, which take several seconds


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
    told.tell("copy_about", mib=min(COPIED_GIB * GIB, gib * GIB // 2), times=1)
    time.sleep(INTO_THE_COPY_SECONDS)
    node.suspend()
    if told.has_answered():
        raise Failed(f"{channel}: its copies were done before it was suspended")
    node.resume()
    wrong(told.answer(TRAINING_SECONDS)["wrong"], f"{channel}, suspended in a copy")
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


def training(bench: Bench, node: Node) -> list[Measurement]:
    """Suspended and resumed in ten steps; raises Failed where its losses are others."""
    if importlib.util.find_spec("torchvision") is None:
        print("training: not tried, there is no PyTorch")
        return []
    environment = {**bench.natively, **node.server.environments["shm"]}
    environment["LD_PRELOAD"] = node.server.preload
    told = bench.told([sys.executable, str(TRAINING)], environment)
    told.ask("resnet50", TRAINING_SECONDS)
    alone = told.ask("train", TRAINING_SECONDS, steps=TRAINING_ROUNDS)["losses"]
    told.ask("resnet50", TRAINING_SECONDS)
    losses: list[float] = []
    for _ in range(TRAINING_ROUNDS):
        told.tell("train", steps=1)
        node.suspend()
        node.resume()
        losses += told.answer(TRAINING_SECONDS)["losses"]
    if losses != alone:
        raise Failed(f"the training's losses are {losses}, and alone {alone}")
    print(f"ResNet-50: suspended {TRAINING_ROUNDS} times, the same losses")
    libraries(told, node)
    told.kill()
    run_of = Run(
        "python3 tests/gpu/suspension.py",
        gpu=True,
        rounds=TRAINING_ROUNDS,
        software=torch_version(),
    )
    same = sum(a == b for a, b in zip(losses, alone, strict=True)) / TRAINING_ROUNDS
    return [
        run_of.record(
            "suspended_same_losses", same, "ratio", channel="shm", limit=1.0, better="higher"
        )
    ]


def libraries(told: Told, node: Node) -> None:
    """Suspended between their calls; raises Failed where they go on otherwise than alone."""
    told.ask("generator", TRAINING_SECONDS)
    alone = [told.ask("numbers", TRAINING_SECONDS)["sums"] for _ in range(TRAINING_ROUNDS // 2)]
    told.ask("generator", TRAINING_SECONDS)
    for number, expected in enumerate(alone):
        gone = node.contexts_left()
        node.suspend()
        node.wait_for_context(gone)
        node.resume()
        sums = told.ask("numbers", TRAINING_SECONDS)["sums"]
        if sums != expected:
            raise Failed(f"libraries, call {number}: {sums}, and alone {expected}")
    print(f"cuRAND, cuBLAS and cuFFT: suspended {len(alone)} times, the same bytes")


def main() -> int:
    """Everything; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=int, default=16, help="of the session")
    parser.add_argument("--swap-gib", type=int, default=32, help="that go out and in for the rates")
    parser.add_argument("--rounds", type=int, default=10, help="of suspending and resuming")
    parser.add_argument(
        "--contexts", choices=("auto", "off"), default="auto", help="[suspend] checkpoint_contexts"
    )
    options = parser.parse_args()
    if not find_driver() or not Card.count():
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    gib = max(1, min(options.gib, available_gib() // 3 - 8))
    swap_gib = max(1, min(options.swap_gib, available_gib() // 3 - 8))
    kept: list[Measurement] = []
    try:
        with (
            bench_of("suspension", 2 * gib + 9) as bench,
            node_of(bench, gib, options.contexts) as node,
        ):
            for channel in ("shm", "tcp"):
                kept += session(bench, node, channel, gib, options.rounds)
            kept += training(bench, node)
        with bench_of("rates", 2 * swap_gib + 9) as bench:  # programs need no copies beside it
            kept += rates(bench, swap_gib, options.rounds)
    except Failed as error:
        print(f"failed: {error}")
        return 1
    finally:
        print(f"figures: {write_measured('suspension', kept)}")
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
