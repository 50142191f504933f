# SPDX-License-Identifier: Apache-2.0
"""A figure of the benchmark, the table that people read, and the records that are kept.

Used by bench.py, which measures everything, and by the parts of it that can be run alone. Records
go into build/measurements/; `dev/measurements.py keep` takes them into the documents.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))

from measurements import BETTER, Measurement, write_measured  # noqa: E402
from measurements import Run as Run  # noqa: E402


@dataclass(frozen=True)
class Figure:
    """What was measured, what the machine itself does in the same run, and what is wanted."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_of: str | None = None
    limit: float | None = None
    better: str = ""
    spread: tuple[float, float] | None = None
    rounds: int | None = None  #: where a run's figures have not all as many

    @property
    def ratio(self) -> float | None:
        """The figure beside its floor."""
        return self.value / self.floor if self.floor else None

    @property
    def wanted(self) -> str:
        """The limit in words."""
        if self.limit is None:
            return ""
        most = (self.better or BETTER[self.unit]) == "lower"
        return f"{'at most' if most else 'at least'} {self.limit:,.4g}"


def print_table(figures: Sequence[Figure], run: Run) -> None:
    """What people read."""
    table = Table(title=f"Sluice on this machine ({run.machine}, software GPU)")
    for column in ("figure", "value", "unit", "floor", "ratio", "wanted"):
        table.add_column(
            column, justify="left" if column in ("figure", "unit", "wanted") else "right"
        )
    for f in figures:
        table.add_row(
            f.name,
            f"{f.value:,.3f}" if f.value < 1000 else f"{f.value:,.0f}",
            "" if f.unit in ("1", "ratio") else f.unit,
            "-" if f.floor is None else f"{f.floor:.3f}",
            "-" if f.ratio is None else f"{f.ratio:.2f}",
            f.wanted,
        )
    Console(width=110).print(table)


def records(figures: Sequence[Figure], run: Run) -> list[Measurement]:
    """What is kept of them."""
    return [
        run.record(
            f.name,
            f.value,
            f.unit,
            floor=f.floor,
            floor_of=f.floor_of,
            limit=f.limit,
            better=f.better,
            values=f.spread or (),
            rounds=f.rounds,
        )
        for f in figures
    ]


def publish(subject: str, figures: Sequence[Figure], run: Run) -> None:
    """Prints the table, and writes the records into build/measurements/."""
    print_table(figures, run)
    path = write_measured(subject, records(figures, run))
    print(f"in {path.relative_to(ROOT)}; what of it documents are to say: dev/measurements.py keep")
