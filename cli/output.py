# SPDX-License-Identifier: Apache-2.0
"""How commands show what they found: tables for people, JSON and YAML for scripts.

Used by every command. Tables go to standard output through rich, which drops colour and fits the
width by itself where that is no terminal; JSON and YAML are what the REST API answered.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

STATE_STYLES = {
    "up": "green",
    "running": "green",
    "live": "green",
    "lost": "red",
    "ended": "dim",
    "expired": "dim",
    "revoked": "dim",
}


class Format(StrEnum):
    """What -o takes."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def console() -> Console:
    """Standard output; a pipe gets whole lines instead of a terminal's width."""
    return Console(width=None if sys.stdout.isatty() else 240, highlight=False)


def show_data(value: Any, form: Format) -> bool:
    """Prints the value as JSON or YAML, if that is wanted, and says whether it was."""
    if form is Format.JSON:
        print(json.dumps(value, indent=2))
    elif form is Format.YAML:
        print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")
    else:
        return False
    return True


def show_table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], empty: str) -> None:
    """Prints rows; columns maps a heading to the row's key."""
    if rows:
        console().print(table_of(columns, rows))
    else:
        print(empty)


def table_of(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, key in columns.items():
        numbers = all(isinstance(row.get(key), int | float) for row in rows)
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        cells = [_cell(row.get(key)) for key in columns.values()]
        table.add_row(*cells, style=STATE_STYLES.get(str(row.get("state")), ""))
    return table


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Shows on a terminal that something takes long."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield
        return
    with err.status(text):
        yield


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
