# SPDX-License-Identifier: Apache-2.0
"""Where shares.py and torch_shares.py put their tenants: natively on the GPU, and on the server.

A rig has both environments, with what a tenant's share is, and keeps what was measured. Native
tenants have nothing of Sluice in theirs.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import neighbours
from run import Server
from tenants import undisturbed

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dev"))
from measurements import Measurement, Run

Work = dict[str, Any]
Environment = dict[str, str]

#: What would tell a native process of Sluice or of MPS.
FOREIGN = ("SLUICE_", "CUDA_MPS_", "LD_AUDIT", "LD_PRELOAD")


def line(name: str, *figures: object) -> None:
    """One line of the table."""
    shown = [f"{f:.3f}" if isinstance(f, float) else str(f) for f in figures]
    print(f"{name:44s} | " + " | ".join(shown), flush=True)


class Rig:
    """The same tenants natively and through Sluice."""

    def __init__(self, server: Server, seconds: float, memory_mib: int) -> None:
        self.folder, self.preload = server.folder, server.preload
        self.seconds = seconds
        self.records: list[Measurement] = []
        self.natively = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        self._ours = {**self.natively, **server.environments["shm"]}
        self._ours["SLUICE_GMEM"] = str(memory_mib)
        del self._ours["SLUICE_STATS"]
        self._run: Run | None = None

    def begin(self, part: str, software: dict[str, str]) -> None:
        """What is recorded from now on is of this part."""
        command = f"python3 tests/gpu/shares.py --parts {part}"
        self._run = Run(command, gpu=True, software=software)
        self.records.clear()

    def record(self, name: str, value: float, unit: str, **more: Any) -> None:
        """Keeps a figure, and prints it with what is wanted."""
        assert self._run
        kept = self._run.record(name, value, unit, channel="shm", **more)
        self.records.append(kept)
        wanted = f"wanted: at {'most' if kept.better == 'lower' else 'least'}"
        line(name, value, unit, *([] if kept.limit is None else [f"{wanted} {kept.limit}"]))

    def ours(self, percent: int, sharing: str = "auto") -> Environment:
        """Of a tenant with that share."""
        return {**self._ours, "SLUICE_RATIO": str(percent), "SLUICE_SHARING": sharing}

    @functools.cached_property
    def _rate(self) -> float:
        command = [sys.executable, neighbours.__file__, "--calibrate"]
        done = subprocess.run(command, env=self.natively, stdout=subprocess.PIPE, check=True)
        return float(done.stdout)

    def native_kernels(self, *works: Work) -> list[Work]:
        """Tenants of neighbours.py by the driver's own slicing."""
        asked = [{**work, "environment": self.natively} for work in works]
        return neighbours.together(self.seconds, self._rate, *asked)

    def kernels(
        self, percents: Sequence[int], *works: Work, sharing: str = "auto", show: bool = False
    ) -> list[Work]:
        """The same with a share for each; `show` prints what else ran on the machine."""
        asked = [
            {**work, "environment": self.ours(percent, sharing)}
            for work, percent in zip(works, percents, strict=True)
        ]
        return neighbours.together(self.seconds, self._rate, *asked, around=undisturbed(show))
