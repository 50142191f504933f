# SPDX-License-Identifier: Apache-2.0
"""How fast a session's memory goes to the node's host memory and back, beside pinned copies.

The part of suspension.py that is about bytes. `swap_out_gib_s` and `swap_in_gib_s` are by the lines
of the session's worker, unmapping and mapping included, of a session that has been suspended
before, so that it goes into host memory that it keeps and that is mapped; their floor is what the
same card copies between slabs and pinned memory in the same run, natively, and 0.9 of that is
wanted. `swap_gib_s` is the way that has the lower ratio. `swap_out_first_time_gib_s` is the first
suspension of that session, into host memory that was ready and is mapped meanwhile. Each move's
steps are printed. `swap_first_gib_s` is the whole of a suspension whose host memory nobody had
ready: taking it is what takes the time.
"""

from __future__ import annotations

import statistics
import sys

from checkpoint_bench import SUBJECT, Bench, Failed, Told
from measurements import Measurement, Run
from suspended_node import GIB, Moved, node_of, wait_until_ready, wrong

PINNED_MIB = GIB
WANTED = 0.9  # of the rate of pinned memory
PIECE_MIB = 64


def rates(
    bench: Bench, gib: int, rounds: int, *, driver: str = "", piece_mib: int = PIECE_MIB
) -> list[Measurement]:
    """Of a session with so many GiB; raises Failed where its memory is wrong."""
    run_of = Run("python3 tests/gpu/suspension.py", gpu=True, rounds=rounds)
    pinned = _pinned(bench)
    with node_of(bench, gib, driver=driver) as node:
        told = _begun(bench, node.server.environments["shm"], gib, piece_mib)
        for _ in range(1 + rounds):  # the first time nothing is kept
            wait_until_ready()
            node.suspend()
            node.resume()
            wrong(told.ask("check", 120)["wrong"], f"{gib} GiB that went out and in")
        told.kill()
        moved = node.moved()
    with node_of(bench, gib, driver=driver, ready_gib=0) as node:
        told = _begun(bench, node.server.environments["shm"], gib, piece_mib)
        first_s = node.suspend()
        node.resume()
        wrong(told.ask("check", 120)["wrong"], f"{gib} GiB in fresh host memory")
        told.kill()
        first = node.moved()[0]
    for number, each in enumerate(moved):
        print(f"{number // 2}: {each.mib} MiB to the {each.where}: {each.steps}", flush=True)
    outs, ins = ([each for each in moved if each.where == where] for where in ("host", "GPU"))
    found = {"swap_out": (outs[1:], pinned["to_host"]), "swap_in": (ins[1:], pinned["to_device"])}
    records = [_record(run_of, f"{name}_gib_s", *each, WANTED) for name, each in found.items()]
    slower = min(found.values(), key=lambda each: _median(each[0]) / each[1])
    records.append(_record(run_of, "swap_gib_s", *slower, WANTED))
    records.append(_record(run_of, "swap_out_first_time_gib_s", outs[:1], pinned["to_host"]))
    rate = first.mib / GIB / first_s
    records.append(run_of.record("swap_first_gib_s", rate, "GiB/s", channel="shm"))
    print(f"fresh host memory: {first.mib} MiB in {first_s:.3f} s: {rate:.2f} GiB/s", flush=True)
    return records


def _pinned(bench: Bench) -> dict[str, float]:
    """GiB/s of copies to and from pinned memory, natively."""
    told = bench.subject()
    found: dict[str, float] = told.ask("pinned_rates", mib=PINNED_MIB)
    told.kill()
    return found


def _begun(bench: Bench, environment: dict[str, str], gib: int, piece_mib: int) -> Told:
    told = bench.told([sys.executable, str(SUBJECT)], {**bench.natively, **environment})
    told.ask("begin")
    told.ask("slab", 120, mib=gib * GIB, piece_mib=piece_mib)
    return told


def _median(moves: list[Moved]) -> float:
    """GiB/s."""
    if not moves:
        raise Failed("the session's log has no line of a move")
    return statistics.median(each.gib_s for each in moves)


def _record(
    run_of: Run, name: str, moves: list[Moved], pinned: float, wanted: float | None = None
) -> Measurement:
    """`wanted`: of the rate of pinned memory."""
    rate = _median(moves)
    print(
        f"{name}: {rate:.2f} of {pinned:.2f} GiB/s with pinned memory ({rate / pinned:.3f}); "
        f"{moves[-1].mib} MiB",
        flush=True,
    )
    return run_of.record(
        name, rate, "GiB/s", channel="shm", values=[each.gib_s for each in moves], floor=pinned,
        floor_of="pinned memory", limit=wanted * pinned if wanted else None,
    )  # fmt: skip
