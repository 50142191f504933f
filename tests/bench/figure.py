# SPDX-License-Identifier: Apache-2.0
"""A figure of the benchmark, and the table and lines that figures become.

Used by bench.py, which measures everything, and by the parts of it that can be run alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One line of build/bench.jsonl."""

    name: str
    value: float
    unit: str
    floor: float | None
    ratio: float | None
    target: str = ""


def print_table(figures: Sequence[Figure]) -> None:
    """What people read."""
    table = Table(title=f"Sluice on this machine ({os.cpu_count()} cores, software GPU)")
    for column in ("figure", "value", "unit", "floor", "ratio", "wanted"):
        table.add_column(
            column, justify="left" if column in ("figure", "unit", "wanted") else "right"
        )
    for f in figures:
        table.add_row(
            f.name,
            f"{f.value:,.3f}" if f.value < 1000 else f"{f.value:,.0f}",
            f.unit,
            "-" if f.floor is None else f"{f.floor:.3f}",
            "-" if f.ratio is None else f"{f.ratio:.2f}",
            f.target,
        )
    Console(width=110).print(table)


def as_lines(figures: Sequence[Figure]) -> str:
    """What programs read: one JSON object a line."""
    return "".join(
        json.dumps({k: v for k, v in asdict(f).items() if k != "target"}) + "\n" for f in figures
    )
