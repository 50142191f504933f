# SPDX-License-Identifier: Apache-2.0
"""Runs GPU acceptance natively, as sluice-server does when a GPU joins, and prints a table.

    python tests/gpu/acceptance.py [--gpu 0] [--driver PATH]

Needs a checkout, an NVIDIA GPU, its driver, and CuPy for this Python, 3.11 or newer (`pip install
'cupy-cuda13x[ctk]'`); where CuPy is missing it says so and ends with status 3. One line for each
check and figure, with what the data sheet says and what is the least for a healthy card. Status 1:
the card did not pass.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import time
import types
from pathlib import Path

# the checkout as it lies: nothing is built or installed for this
_package = types.ModuleType("sluice")
_package.__path__ = [str(Path(__file__).resolve().parents[2])]
sys.modules["sluice"] = _package

from sluice.server.gpus.acceptance import Acceptance, Outcome, Report  # noqa: E402
from sluice.server.gpus.expectations import (  # noqa: E402
    FIGURES,
    LEAST_SHARE,
    expectation_of,
    unit_of,
)


def gpus() -> list[tuple[str, str]]:
    """UUID and name of each GPU, as nvidia-smi says."""
    if not shutil.which("nvidia-smi"):
        sys.exit("there is no nvidia-smi here: this needs an NVIDIA GPU and its driver")
    shown = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid,name", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = (line.partition(",") for line in shown.stdout.splitlines() if line.strip())
    return [(uuid.strip(), name.strip()) for uuid, _, name in rows]


def show(uuid: str, model: str, report: Report, seconds: float) -> None:
    """The table of one GPU."""
    expected = expectation_of(model)
    print(f"\n{uuid}  {model}")
    for check in report.checks:
        sign = "ok" if check.ok else "FAILED"
        print(f"  {sign:6}  {check.name:8}  {check.text}  ({check.seconds:.1f} s)")
        for name, value in check.figures.items():
            if name not in LEAST_SHARE:
                continue
            line = f"          {FIGURES[name]:26} {value:9.1f} {unit_of(name):6}"
            if expected:
                peak, least = expected.peak(name), expected.least(name)
                line += f"  data sheet {peak:7.1f}  least {least:7.1f}"
            print(line)
    print(f"  {report.outcome.value}: {report.text}  ({seconds:.1f} s in all)")


def main() -> int:
    """Checks one GPU or all, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=int, help="only the GPU with this index")
    parser.add_argument("--driver", default="libcuda.so.1", help="NVIDIA's CUDA driver")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit for each GPU")
    parser.add_argument("--memory-mib", type=int, default=4096, help="MiB to try with patterns")
    options = parser.parse_args()
    acceptance = Acceptance(options.driver, options.seconds, options.memory_mib)
    status = 0
    for index, (uuid, model) in enumerate(gpus()):
        if options.gpu not in (None, index):
            continue
        began = time.monotonic()
        report = asyncio.run(acceptance.check(uuid, model))
        show(uuid, model, report, time.monotonic() - began)
        if report.outcome is Outcome.UNCHECKED:
            status = status or 3
        elif report.outcome is Outcome.FAILED:
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
