# SPDX-License-Identifier: Apache-2.0
"""Shares of a GPU between PyTorch programs: parts of shares.py.

Programs are torch_tenant.py's, natively and through Sluice; they are warm before a window begins,
and those that wait for another window do nothing meanwhile. A program's share is the steps that it
does beside others, of those that it does alone, in the same run and by the same way.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mps_daemon import NoMps, mps_daemon
from share_figures import Split, percentile
from share_rig import Environment, Rig, line
from tenants import Said, Tenant, TenantFailed, Tenants, settled, window

CHILD = Path(__file__).with_name("torch_tenant.py")
TRAINS, ANSWERS, GPT2 = "resnet50_train", "resnet50_infer", "gpt2_train"
SPLITS = ((10, 90), (25, 75), (50, 50))
#: Seconds behind a window in which all work on: a step of the smallest share ends in the first,
#: an answer of one of eight in the second.
LINGER, SHORT_LINGER = 1.0, 0.2
PAIR_SECONDS, ALONE_SECONDS = 8.0, 5.0
ALONE_STARTS, ALONE_ROUNDS, ALONE_PERCENT = 2, 3, 25
EIGHT, EIGHT_ROUNDS, EIGHT_SECONDS = 8, 4, 6.0
ASKS_A_SECOND, ASKS_ROUNDS, ASKS_SECONDS, ASKS_PERCENT = 20, 3, 8.0, 30
#: What a request may take longer than alone, at the 99th percentile.
ASKS_MORE_MS = 8.0
#: Of both ways alike: eight programs have sixteen cores, and nothing is downloaded.
EVERYBODY = {"OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}


def lacking(*modules: str) -> str:
    """Which of these packages this Python does not have, or nothing."""
    return ", ".join(name for name in modules if importlib.util.find_spec(name) is None)


class Programs:
    """PyTorch programs that live as long as a block."""

    def __init__(self, rig: Rig, running: Tenants) -> None:
        self._rig, self._running = rig, running

    def native(self, workload: str, *options: str, **more: str) -> Tenant:
        """One by the driver itself; `more` is what its environment has besides."""
        return self._start(f"native {workload}", workload, options, {**self._rig.natively, **more})

    def ours(self, workload: str, percent: int, *options: str, sharing: str = "auto") -> Tenant:
        """One with that share of a GPU."""
        environment = self._rig.ours(percent, sharing) | {"LD_PRELOAD": self._rig.preload}
        return self._start(f"{workload} with {percent} %", workload, options, environment)

    def ready(self) -> list[Said]:
        """Waits for those that were started since the last time, and for workers that start."""
        said = self._running.wait_ready()
        slowest = max((s["import_s"] + s["ready_s"] for s in said), default=0.0)
        quiet = "" if settled() else "; a worker still starts or computes"
        line(f"{len(said)} programs are ready", f"slowest in {slowest:.1f} s{quiet}")
        return said

    def _start(
        self, name: str, workload: str, options: Sequence[str], environment: Environment
    ) -> Tenant:
        command = [sys.executable, str(CHILD), workload, *options]
        return self._running.start(name, command, {**environment, **EVERYBODY})


@contextlib.contextmanager
def programs(rig: Rig) -> Iterator[Programs]:
    """Programs that end with the block."""
    with Tenants() as running:
        yield Programs(rig, running)


def rates(tenants: Sequence[Tenant], seconds: float, linger: float = LINGER) -> list[float]:
    """What each does in a second, all at once."""
    return [said["rate"] for said in window(tenants, seconds, linger=linger)]


def pairs_of(tenants: Sequence[Tenant]) -> list[Split]:
    """The first beside each of the others, after each was alone."""
    alone = [rates([tenant], ALONE_SECONDS, 0.0)[0] for tenant in tenants]
    return [
        Split.of(rates([tenants[0], other], PAIR_SECONDS), [alone[0], one])
        for other, one in zip(tenants[1:], alone[1:], strict=True)
    ]


def torch_pairs(rig: Rig) -> None:
    """Two ResNet-50 trainings; one beside a GPT-2 training: by shares, and as the driver slices."""
    partners = [TRAINS, GPT2]
    if lacks := lacking("transformers"):
        print(f"skipped: pairs with {GPT2}: {lacks} is not installed")
        partners.remove(GPT2)
    with programs(rig) as running:
        started = [running.native(work) for work in (TRAINS, *partners)]
        running.ready()
        drivers = pairs_of(started)
    for partner, found in zip(partners, drivers, strict=True):
        line(f"{TRAINS}, {partner}: driver", str(found), f"all {found.total:.3f}")
    errors: list[float] = []
    totals: list[float] = []
    for split in SPLITS:
        with programs(rig) as running:
            small, large = split
            started = [running.ours(TRAINS, small), *(running.ours(p, large) for p in partners)]
            running.ready()
            for partner, found in zip(partners, pairs_of(started), strict=True):
                shown = f"{TRAINS}, {partner}: {small}:{large}"
                line(shown, str(found), f"all {found.total:.3f}")
                errors += found.errors(split)
                totals.append(found.total)
    rig.record("share_torch_error_mean", statistics.mean(errors), "%", limit=1)
    rig.record("share_torch_error_max", max(errors), "%", limit=2)
    rig.record(
        "share_torch_total",
        statistics.mean(totals),
        "ratio",
        floor=statistics.mean(found.total for found in drivers),
        floor_of="the driver's slicing, two programs",
        values=totals,
        better="higher",
    )


def in_turn(one: Sequence[Tenant], other: Sequence[Tenant], seconds: float) -> tuple[float, float]:
    """What all of each do in a second, first those, then these."""
    return sum(rates(one, seconds, SHORT_LINGER)), sum(rates(other, seconds, SHORT_LINGER))


def alone(rig: Rig) -> None:
    """A ResNet-50 training that may have a quarter and is alone, beside a native one in turn."""
    ratios = []
    for _ in range(ALONE_STARTS):
        with programs(rig) as running:
            native, ours = [running.native(TRAINS)], [running.ours(TRAINS, ALONE_PERCENT)]
            running.ready()
            for _ in range(ALONE_ROUNDS):
                floor, rate = in_turn(native, ours, ALONE_SECONDS)
                ratios.append(rate / floor)
                line(f"{TRAINS} alone: native, ours, img/s", floor, rate, rate / floor)
    rig.record(
        "share_alone_resnet50",
        statistics.median(ratios),
        "ratio",
        values=ratios,
        rounds=len(ratios),
        limit=0.995,
        better="higher",
    )


def totals_in_turn(
    shown: str, native: Sequence[Tenant], ours: Sequence[Tenant]
) -> tuple[list[float], list[float]]:
    """Images a second of all, of each way, in rounds."""
    floors, found = [], []
    for _ in range(EIGHT_ROUNDS):
        floor, total = in_turn(native, ours, EIGHT_SECONDS)
        floors.append(floor)
        found.append(total)
        line(f"{shown}, img/s", floor, total, total / floor)
    return floors, found


def record_totals(
    rig: Rig, name: str, floors: Sequence[float], found: Sequence[float], limit: float
) -> None:
    """The ratio, and the images a second."""
    ratios = [total / floor for total, floor in zip(found, floors, strict=True)]
    middle, rounds = statistics.median(ratios), len(ratios)
    rig.record(name, middle, "ratio", values=ratios, limit=limit, better="higher", rounds=rounds)
    rig.record(
        f"{name}_img_s",
        statistics.median(found),
        "img/s",
        floor=statistics.median(floors),
        floor_of="the driver's slicing",
        values=found,
        pairs=ratios,
        rounds=rounds,
    )


def small_inference(rig: Rig) -> None:
    """Eight that answer batch-1 ResNet-50, in turns and as the driver slices."""
    with programs(rig) as running:
        native = [running.native(ANSWERS) for _ in range(EIGHT)]
        running.ready()
        ours = [running.ours(ANSWERS, 100 // EIGHT) for _ in range(EIGHT)]
        running.ready()
        floors, found = totals_in_turn("eight: driver, turns", native, ours)
    record_totals(rig, "share_small_inference_total", floors, found, 0.97)


def concurrent(rig: Rig) -> None:
    """The same eight at once, by MPS; natively under MPS beside it."""
    with programs(rig) as running:
        ours = [running.ours(ANSWERS, 100 // EIGHT, sharing="concurrent") for _ in range(EIGHT)]
        try:
            said = running.ready()
        except TenantFailed as error:
            print(f"skipped: no session with sharing=concurrent: {error}")
            return
        line("each has multiprocessors", *(s["multiprocessors"] for s in said))
        line("each runs under MPS, as the driver says", *(s["mps"] for s in said))
        if any(s["mps"] == 0 for s in said):
            print("they do not run at once: the server has granted something else")
        native = [running.native(ANSWERS) for _ in range(EIGHT)]
        running.ready()
        floors, found = totals_in_turn("eight: driver, concurrent", native, ours)
        record_totals(rig, "concurrent_total", floors, found, 2.2)
        under_mps(rig, native)


def under_mps(rig: Rig, native: Sequence[Tenant]) -> None:
    """Eight native programs under MPS without limits, beside the driver's slicing."""
    try:
        with mps_daemon(rig.folder / "mps", rig.natively) as told, programs(rig) as running:
            mps = [running.native(ANSWERS, **told) for _ in range(EIGHT)]
            if any(said["mps"] != 1 for said in running.ready()):
                raise NoMps("the programs run without it")
            floors, found = totals_in_turn("eight: driver, MPS natively", native, mps)
    except (NoMps, TenantFailed) as error:
        print(f"skipped: natively under MPS: {error}")
        return
    ratios = [total / floor for total, floor in zip(found, floors, strict=True)]
    middle = statistics.median(ratios)
    rig.record("concurrent_native_mps", middle, "ratio", values=ratios, better="higher")


def interactive(rig: Rig) -> None:
    """30 % that answers 20 requests a second at random times, beside a training with 70 %."""
    asks = ("--asks", str(ASKS_A_SECOND))
    took: dict[str, list[list[float]]] = {}

    def ask(name: str, seed: int, *tenants: Tenant) -> None:
        said, *beside = window(tenants, ASKS_SECONDS, linger=LINGER, seed=seed)
        took.setdefault(name, []).append(said["ms"])
        own = percentile(said["own_ms"], 0.99)
        trained = "".join(f"; beside it {s['rate']:.0f} {s['unit']}" for s in beside)
        middle, high = statistics.median(said["ms"]), percentile(said["ms"], 0.99)
        shown = f"p50 {middle:.2f}, p99 {high:.2f}, of answering itself {own:.2f} ms{trained}"
        line(f"{len(said['ms'])} requests, {name}", shown)

    with programs(rig) as running:
        native, native_beside = running.native(ANSWERS, *asks), running.native(TRAINS)
        ours = running.ours(ANSWERS, ASKS_PERCENT, *asks)
        ours_beside = running.ours(TRAINS, 100 - ASKS_PERCENT)
        running.ready()
        for seed in range(ASKS_ROUNDS):
            ask("alone", seed, ours)
            ask("alone natively", seed, native)
            ask("ours", seed, ours, ours_beside)
            ask("driver", seed, native, native_beside)
    every = {name: [ms for one in rounds for ms in one] for name, rounds in took.items()}
    for name, values in every.items():
        line(f"all, {name}: p50, p99 ms", statistics.median(values), percentile(values, 0.99))
    for figure, part in (("p50", 0.5), ("p99", 0.99)):
        high = {name: percentile(values, part) for name, values in every.items()}
        rig.record(
            f"share_interactive_{figure}_ms",
            high["ours"],
            "ms",
            floor=high["driver"],
            floor_of="the driver's slicing",
            values=[percentile(one, part) for one in took["ours"]],
            limit=high["alone"] + ASKS_MORE_MS if figure == "p99" else None,
            rounds=ASKS_ROUNDS,
        )
    alone_ms = percentile(every["alone"], 0.99)
    native_ms = percentile(every["alone natively"], 0.99)
    rig.record("share_interactive_alone_p99_ms", alone_ms, "ms", floor=native_ms, floor_of="native")
