# SPDX-License-Identifier: Apache-2.0
"""Shares of one GPU's time: what tenants get beside each other, and what it costs in all.

    python3 tests/gpu/shares.py [--seconds 4] [--parts shares torch alone interactive …]

Tenants are processes that begin to work together (tenants.py): kernels counted by loop iterations,
calibrated once for all (neighbours.py), or PyTorch programs (torch_shares.py). `all` is the work of
all beside that of one alone, in the same run; the driver's slicing stands beside it. Each part
takes eight minutes at most and says before how long it should be. Figures are printed and recorded
(dev/measurements.py), and decide nothing: exit status 1 is of a part that could not be measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch_shares
from run import Server, find_driver, find_runtime
from run_workloads import torch_version
from share_rig import Rig, line
from tenants import TenantFailed

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev"))
from measurements import write_measured

SPLITS = ((50, 50), (25, 75), (10, 90), (10, 20, 30, 40))
LENGTHS = (5, 100, 1000, 5000)  # microseconds
ONE_PERCENT_RUNS = 5


def shares(rig: Rig) -> None:
    """Kernels that fill the card, beside each other."""
    errors, totals, drivers, alones = [], [], [], []
    for length in LENGTHS:
        work = {"kind": "kernels", "us": length}
        alone = rig.kernels([100], work)[0]["ms"]
        native_alone = rig.native_kernels(work)[0]["ms"]
        native = sum(t["ms"] for t in rig.native_kernels(work, work)) / native_alone
        line(f"{length} us alone", alone / native_alone, "driver, two:", native)
        alones.append(alone / native_alone)
        drivers.append(native)
        for split in SPLITS if length == 100 else SPLITS[1:3]:
            had = [t["ms"] for t in rig.kernels(split, *[work] * len(split))]
            got = [100 * ms / sum(had) for ms in had]
            totals.append(sum(had) / alone)
            errors += [abs(g - s) for g, s in zip(got, split, strict=True)]
            line(
                f"{length} us {':'.join(map(str, split))}",
                " ".join(f"{g:.2f}" for g in got),
                "all",
                sum(had) / alone,
            )
    rig.record("share_error_mean", statistics.mean(errors), "%")
    rig.record("share_error_max", max(errors), "%")
    rig.record("share_alone", statistics.mean(alones), "ratio", values=alones, better="higher")
    rig.record(
        "share_total",
        statistics.mean(totals),
        "ratio",
        floor=statistics.mean(drivers),
        floor_of="the driver's slicing, two tenants",
        values=totals,
        better="higher",
    )


def one_percent(rig: Rig) -> None:
    """1:99, again and again, and what else the machine did: one run of eight came out 2.5 once."""
    work = {"kind": "kernels", "us": 100}
    found = []
    for run in range(1, ONE_PERCENT_RUNS + 1):
        one, rest = (t["ms"] for t in rig.kernels([1, 99], work, work, show=True))
        found.append(one / (one + rest))
        line(f"1:99, run {run}: percent, ms of each", 100 * found[-1], one, rest)
        rig.record(f"share_one_percent_run_{run}", found[-1], "ratio", better="higher")
    middle = statistics.median(found)
    rig.record(
        "share_one_percent", middle, "ratio", values=found, rounds=len(found), better="higher"
    )


def small(rig: Rig) -> None:
    """Small kernels that are waited for, one after the other."""
    work = {"kind": "small", "us": 20}
    for tenants in (1, 2, 8):
        native = sum(t["count"] for t in rig.native_kernels(*[work] * tenants))
        percents = [100 // tenants] * tenants
        ours = sum(t["count"] for t in rig.kernels(percents, *[work] * tenants))
        line(f"{tenants} small", native, ours, ours / native)
    rig.record("share_small_total", ours / native, "ratio", better="higher")


def asks(rig: Rig) -> None:
    """A tenant that asks now and then, beside one that computes."""
    asking = {"kind": "asks", "us": 50}
    for length in (100, 5000):
        beside = {"kind": "kernels", "us": length}
        alone = rig.kernels([30], asking)[0]
        ours = rig.kernels([30, 70], asking, beside)[0]
        native = rig.native_kernels(asking, beside)[0]
        for name, said in (("alone", alone), ("ours", ours), ("driver", native)):
            most = " ".join(f"{ms:.1f}" for ms in said["most"])
            line(f"asks beside {length} us, {name}", said["p50"], said["p99"], most)
        rig.record(
            f"share_interactive_{length}_us_p99_ms",
            ours["p99"],
            "ms",
            floor=native["p99"],
            floor_of="the driver's slicing",
        )


def capped(rig: Rig) -> None:
    """One alone that may have a quarter and no more."""
    for length in (100, 1000):
        work = {"kind": "kernels", "us": length}
        native = rig.native_kernels(work)[0]["ms"]
        had = rig.kernels([25], work, sharing="capped")[0]["ms"] / native
        rig.record(f"share_capped_{length}_us", had, "ratio", better="lower")


@dataclass(frozen=True)
class Part:
    """Something to measure; `seconds` is what it should take, `memory_mib` what a vGPU has."""

    measure: Callable[[Rig], None]
    seconds: int
    memory_mib: int = 1024
    needs: tuple[str, ...] = ()  #: packages

    @property
    def software(self) -> dict[str, str]:
        """Versions that matter."""
        return torch_version() if self.needs else {}


VISION = ("torch", "torchvision")
PARTS = {
    "shares": Part(shares, 190),
    "one_percent": Part(one_percent, 50),
    "small": Part(small, 50),
    "asks": Part(asks, 50),
    "capped": Part(capped, 30),
    "torch": Part(torch_shares.torch_pairs, 270, 14000, VISION),
    "alone": Part(torch_shares.alone, 130, 14000, VISION),
    "small_inference": Part(torch_shares.small_inference, 120, 4096, VISION),
    "concurrent": Part(torch_shares.concurrent, 220, 4096, VISION),
    "interactive": Part(torch_shares.interactive, 140, 14000, VISION),
}


def measure(rig: Rig, names: Sequence[str]) -> list[str]:
    """Runs parts, and writes what each found; the names of those that could not be measured."""
    failed = []
    for name in names:
        part = PARTS[name]
        if lacks := torch_shares.lacking(*part.needs):
            print(f"\n== {name}\nskipped: {lacks} is not installed", flush=True)
            continue
        print(f"\n== {name}: about {part.seconds} s", flush=True)
        begun = time.monotonic()
        rig.begin(name, part.software)
        try:
            part.measure(rig)
        except TenantFailed as error:
            print(f"FAILED: {error}", flush=True)
            failed.append(name)
        path = write_measured("shares", rig.records)
        print(f"{name} took {time.monotonic() - begun:.0f} s; figures: {path}", flush=True)
    return failed


def main() -> int:
    """Runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=4, help="that kernels run")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--headroom", type=float, default=2, help="[throttle] concurrent_headroom")
    options = parser.parse_args()
    driver, runtime = find_driver(), find_runtime()
    if not driver or runtime is None:
        print("skipped: this machine shows no NVIDIA GPU with its runtime")
        return 0
    memory_mib = max(PARTS[name].memory_mib for name in options.parts)
    failed = list(options.parts)
    with tempfile.TemporaryDirectory(prefix="sluice-shares-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        headroom = ("--concurrent-headroom", str(options.headroom))
        server = Server(driver, folder, memory_mib=memory_mib, uid=None, options=headroom)
        try:
            rig = Rig(server, options.seconds, memory_mib)
            failed = measure(rig, options.parts)
        finally:
            server.close()
            for text in server.log.read_text().splitlines():
                if " ERROR " in text:
                    print(text)
    if failed:
        print(f"not measured: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
