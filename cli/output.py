# SPDX-License-Identifier: Apache-2.0
"""How commands show what they found: tables for people, JSON for scripts.

Used by every command. Tables go to standard output through rich, which drops colour and fits the
width by itself where that is no terminal; JSON is what the REST API answered, unchanged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table

STATE_STYLES = {"up": "green", "running": "green", "live": "green", "lost": "red", "ended": "dim"}


class Format(StrEnum):
    """What -o takes."""

    TABLE = "table"
    JSON = "json"


def console() -> Console:
    """Standard output; a pipe gets whole lines instead of a terminal's width."""
    return Console(width=None if sys.stdout.isatty() else 240, highlight=False)


def show_json(value: Any) -> None:
    """Prints JSON."""
    print(json.dumps(value, indent=2))


def show_table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], empty: str) -> None:
    """Prints rows; columns maps a heading to the row's key."""
    if not rows:
        print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, key in columns.items():
        numbers = all(isinstance(row.get(key), int | float) for row in rows)
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        cells = [_cell(row.get(key)) for key in columns.values()]
        table.add_row(*cells, style=STATE_STYLES.get(str(row.get("state")), ""))
    console().print(table)


def show_record(record: Mapping[str, Any]) -> None:
    """Prints one record, a field a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in record.items():
        table.add_row(key, _cell(value))
    console().print(table)


def age(timestamp: str) -> str:
    """How long ago an ISO 8601 time was, such as 4m or 2h05m."""
    then = datetime.fromisoformat(timestamp)
    seconds = max(0, int((datetime.now(then.tzinfo) - then).total_seconds()))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m"
    if seconds < 86400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86400}d{seconds % 86400 // 3600}h"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value)
    if isinstance(value, dict):
        return " ".join(f"{key}={_cell(item)}" for key, item in value.items())
    return str(value)
