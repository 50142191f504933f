# SPDX-License-Identifier: Apache-2.0
"""How commands show what they found: tables for people, JSON and YAML for scripts.

Used by every command. Tables go to standard output through rich, which drops colour and fits the
width by itself where that is no terminal; JSON and YAML are what the REST API answered.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 10_000
GAP = 2  # between columns
SHORT_ID = 12  # as many characters of a GPU's UUID as people read

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
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def show_data(value: Any, form: Format) -> bool:
    """Prints the value as JSON or YAML, if that is wanted, and says whether it was."""
    if form is Format.JSON:
        print(json.dumps(value, indent=2))
    elif form is Format.YAML:
        import yaml  # which takes as long to load as a table to print

        print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")
    else:
        return False
    return True


def show_line(text: str) -> None:
    """Prints a sentence, which a narrow terminal gets in several lines."""
    console().print(Text(text))


def show_table(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], empty: str) -> None:
    """Prints rows; columns maps a heading to the row's key."""
    if rows:
        to = console()
        to.print(table_of(columns, rows, to.width))
    else:
        print(empty)


def table_of(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], width: int
) -> RenderableType:
    """The rows as a table no wider than this: what stands last is left out first.

    Ids stay whole, so that they can be copied.
    """
    cells = {heading: [_cell(row.get(key)) for row in rows] for heading, key in columns.items()}
    shown = list(columns)
    widths = {name: max(map(cell_len, [name, *found])) for name, found in cells.items()}
    while len(shown) > 2 and sum(widths[n] + GAP for n in shown) - GAP > width:
        shown.pop()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in shown:
        numbers = all(isinstance(row.get(columns[heading]), int | float) for row in rows)
        table.add_column(heading, justify="right" if numbers else "left", overflow="fold")
    for place, row in enumerate(rows):
        line = [Text(cells[heading][place]) for heading in shown]
        table.add_row(*line, style=STATE_STYLES.get(str(row.get("state")), ""))
    if left_out := [heading for heading in columns if heading not in shown]:
        note = f"not shown for want of width: {', '.join(left_out)} (-o json has everything)"
        return Group(table, Text(note, style="dim"))
    return table


@contextlib.contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Shows that something takes long, and what it waits for: the yielded function changes that.

    On a terminal as one moving line, elsewhere as a line on standard error for each change.
    """
    err = Console(stderr=True, highlight=False)
    if err.is_terminal:
        with err.status(escape(text)) as status:
            yield lambda now: status.update(escape(now))
        return
    said = ""

    def say(now: str) -> None:
        nonlocal said
        if now != said:
            print(f"sluice: {now}", file=sys.stderr, flush=True)
        said = now

    say(text)
    yield say


def short_ids(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, str]:
    """The beginnings of long ids by which a table's rows can be told apart, and named."""
    ids = sorted({str(row[key]) for row in rows})
    length = SHORT_ID
    while len({each[:length] for each in ids}) < len(ids):
        length += 1
    return {each: each[:length] for each in ids}


def show_record(record: Mapping[str, Any]) -> None:
    """Prints one record, a field a line."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for key, value in record.items():
        table.add_row(key, Text(_cell(value)))
    console().print(table)


def age(timestamp: str) -> str:
    """How long ago an ISO 8601 time was, such as 4m or 2h05m."""
    then = datetime.fromisoformat(timestamp)
    return span(max(0, int((datetime.now(then.tzinfo) - then).total_seconds())))


def span(seconds: int) -> str:
    """So many seconds, such as 4m or 2h05m."""
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
