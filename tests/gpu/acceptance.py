# SPDX-License-Identifier: Apache-2.0
"""Runs GPU acceptance natively, as sluice-server does when a GPU joins, and prints a table.

    python tests/gpu/acceptance.py [--gpu 0] [--driver PATH]

Needs a checkout, an NVIDIA GPU, its driver, and CuPy for this Python, 3.11 or newer (`pip install
'cupy-cuda13x[ctk]'`); where CuPy is missing it says so and ends with status 3. One line for each
check and figure, with what the data sheet says and what is the least for a healthy card. Status 1:
the card did not pass. The figures of cards that passed go into build/measurements/acceptance.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

# the checkout as it lies: nothing is built or installed for this
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "dev")]

from measurements import Measurement, Run, write_measured  # noqa: E402

from sluice.server.gpus.acceptance import Acceptance, Outcome, Report  # noqa: E402
from sluice.server.gpus.expectations import (  # noqa: E402
    FIGURES,
    LEAST_SHARE,
    expectation_of,
    unit_of,
)

#: The records, and the figures of which each is the least: the worse direction tells of a link.
RECORDS = {
    "acceptance_bus_gb_s": ("GB/s", ("from_host_gbs", "to_host_gbs")),
    "acceptance_memory_gb_s": ("GB/s", ("on_device_gbs",)),
    "acceptance_fp32_tflop_s": ("TFLOP/s", ("fp32_tflops",)),
    "acceptance_bf16_tflop_s": ("TFLOP/s", ("bf16_tflops",)),
}


@dataclass(frozen=True)
class Checked:
    """A GPU and what its checks said."""

    model: str
    report: Report
    seconds: float


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


def show(uuid: str, card: Checked) -> None:
    """The table of one GPU."""
    expected = expectation_of(card.model)
    print(f"\n{uuid}  {card.model}")
    for check in card.report.checks:
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
    report = card.report
    print(f"  {report.outcome.value}: {report.text}  ({card.seconds:.1f} s in all)")


def records(cards: Sequence[Checked], run: Run) -> list[Measurement]:
    """What is kept of cards of one model that passed: of several the median and the spread."""
    seconds = [card.seconds for card in cards]
    several = len(cards) > 1
    found = [run.record("acceptance_s", median(seconds), "s", values=seconds if several else ())]
    expected = expectation_of(cards[0].model)
    for name, (unit, figures) in RECORDS.items():
        if any(figure not in card.report.figures for card in cards for figure in figures):
            continue  # a model that cannot do it
        values = [min(card.report.figures[figure] for figure in figures) for card in cards]
        found.append(
            run.record(
                name,
                median(values),
                unit,
                limit=(expected.least(figures[0]) or None) if expected else None,
                values=values if several else (),
            )
        )
    return found


def main() -> int:
    """Checks one GPU or all, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", type=int, help="only the GPU with this index")
    parser.add_argument("--driver", default="libcuda.so.1", help="NVIDIA's CUDA driver")
    parser.add_argument("--seconds", type=float, default=120.0, help="limit for each GPU")
    parser.add_argument("--memory-mib", type=int, default=4096, help="MiB to try with patterns")
    options = parser.parse_args()
    acceptance = Acceptance(options.driver, options.seconds, options.memory_mib)
    run = Run("python tests/gpu/acceptance.py", gpu=True)
    passed: list[Checked] = []
    status = 0
    for index, (uuid, model) in enumerate(gpus()):
        if options.gpu not in (None, index):
            continue
        began = time.monotonic()
        report = asyncio.run(acceptance.check(uuid, model))
        checked = Checked(model, report, time.monotonic() - began)
        show(uuid, checked)
        if report.outcome is Outcome.UNCHECKED:
            status = status or 3
        elif report.outcome is Outcome.FAILED:
            status = 1
        else:
            passed.append(checked)
    if len({card.model for card in passed}) > 1:
        print("\nno figures are written of cards of several models: choose one with --gpu")
    elif passed:
        print(f"\nfigures: {write_measured('acceptance', records(passed, run))}")
    return status


if __name__ == "__main__":
    sys.exit(main())
