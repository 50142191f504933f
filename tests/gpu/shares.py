# SPDX-License-Identifier: Apache-2.0
"""Shares of one GPU's time: what tenants get beside each other, and what it costs in all.

    python3 tests/gpu/shares.py [--seconds 4] [--parts shares small asks capped]

Tenants are those of neighbours.py: kernels counted by loop iterations, calibrated once for all.
`all` is the work of all beside that of one alone, in the same run; the driver's slicing stands
beside it. Figures are printed and recorded (dev/measurements.py), and decide nothing.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import neighbours
from run import Server, find_driver, find_runtime

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev"))
from measurements import Measurement, Run, write_measured

Task = dict[str, Any]
PARTS = ("shares", "small", "asks", "capped")
SPLITS = ((50, 50), (25, 75), (10, 90), (10, 20, 30, 40), (1, 99))
LENGTHS = (5, 100, 1000, 5000)  # microseconds


class Rig:
    """The same tenants natively and through Sluice."""

    def __init__(self, server: Server, seconds: float) -> None:
        self._server, self._seconds = server, seconds
        self._run = Run("python3 tests/gpu/shares.py", gpu=True)
        self.records: list[Measurement] = []
        command = [sys.executable, neighbours.__file__, "--calibrate"]
        self._rate = float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    def native(self, *tasks: Task) -> list[Task]:
        """By the driver's own slicing."""
        return neighbours.together(self._seconds, self._rate, *tasks)

    def record(self, name: str, value: float, unit: str, **more: Any) -> None:
        """Keeps a figure, and prints it."""
        self.records.append(self._run.record(name, value, unit, channel="shm", **more))
        line(name, value)

    def ours(self, percents: Sequence[int], *tasks: Task, sharing: str = "auto") -> list[Task]:
        """With a share for each."""
        asked = {"SLUICE_GMEM": "1024", "SLUICE_SHARING": sharing}
        environments = [
            {**self._server.environments["shm"], **asked, "SLUICE_RATIO": str(p)} for p in percents
        ]
        for environment in environments:
            environment.pop("SLUICE_STATS")
        asked = [{**t, "environment": e} for t, e in zip(tasks, environments, strict=True)]
        return neighbours.together(self._seconds, self._rate, *asked)


def line(name: str, *figures: object) -> None:
    """One line of the table."""
    shown = [f"{f:.3f}" if isinstance(f, float) else str(f) for f in figures]
    print(f"{name:34s} | " + " | ".join(shown), flush=True)


def shares(rig: Rig) -> None:
    """Kernels that fill the card, beside each other."""
    errors, totals, drivers, alones = [], [], [], []
    for length in LENGTHS:
        work = {"kind": "kernels", "us": length}
        alone = rig.ours([100], work)[0]["ms"]
        native_alone = rig.native(work)[0]["ms"]
        native = sum(t["ms"] for t in rig.native(work, work)) / native_alone
        line(f"{length} us alone", alone / native_alone, "driver, two:", native)
        alones.append(alone / native_alone)
        drivers.append(native)
        for split in SPLITS if length == 100 else SPLITS[1:3]:
            had = [t["ms"] for t in rig.ours(split, *[work] * len(split))]
            got = [100 * ms / sum(had) for ms in had]
            totals.append(sum(had) / alone)
            if 1 in split:
                rig.record("share_one_percent", got[0] / 100, "ratio", better="higher")
            else:
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


def small(rig: Rig) -> None:
    """Small kernels that are waited for, one after the other."""
    work = {"kind": "small", "us": 20}
    for tenants in (1, 2, 8):
        native = sum(t["count"] for t in rig.native(*[work] * tenants))
        ours = sum(t["count"] for t in rig.ours([100 // tenants] * tenants, *[work] * tenants))
        line(f"{tenants} small", native, ours, ours / native)
    rig.record("share_small_total", ours / native, "ratio", better="higher")


def asks(rig: Rig) -> None:
    """A tenant that asks now and then, beside one that computes."""
    asking = {"kind": "asks", "us": 50}
    for length in (100, 5000):
        beside = {"kind": "kernels", "us": length}
        alone = rig.ours([30], asking)[0]
        ours = rig.ours([30, 70], asking, beside)[0]
        native = rig.native(asking, beside)[0]
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
        native = rig.native(work)[0]["ms"]
        had = rig.ours([25], work, sharing="capped")[0]["ms"] / native
        rig.record(f"share_capped_{length}_us", had, "ratio", better="lower")


def main() -> int:
    """Runs the parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--parts", nargs="*", default=list(PARTS))
    options = parser.parse_args()
    driver, runtime = find_driver(), find_runtime()
    if not driver or runtime is None:
        print("skipped: this machine shows no NVIDIA GPU with its runtime")
        return 0
    parts: dict[str, Callable[[Rig], None]] = {
        "shares": shares,
        "small": small,
        "asks": asks,
        "capped": capped,
    }
    with tempfile.TemporaryDirectory(prefix="sluice-shares-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = Server(driver, folder, memory_mib=1024)
        try:
            rig = Rig(server, options.seconds)
            for part in options.parts:
                parts[part](rig)
            print(f"figures: {write_measured('shares', rig.records)}")
        finally:
            server.close()
            for text in server.log.read_text().splitlines():
                if " ERROR " in text:
                    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
