# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of figures in README.md and docs/ from docs/measurements/.

Called by `make docs`, and by tests/docs/test_measurements.py, which holds the pages against what
would be written. A table stands between the lines `<!-- figures: NAME -->` and `<!-- end -->`;
docs/measurements/tables.yaml says which records are its rows and columns, *.jsonl are the records
(dev/measurements.py). Below each table stand machine, versions, date and command of its records.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CHECKOUT / "dev"))

from measurements import KEPT, Amount, Measurement, MeasurementError, read_kept  # noqa: E402

LAYOUT = KEPT / "tables.yaml"
PLACE = re.compile(r"(?<=<!-- figures: )([\w-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
COLUMNS = 120
UNITS = {"us": " µs", "1": "", "ratio": "", "1/s": "/s"}
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
#: What a column may show of its record.
SHOWN = ("value", "floor", "ratio", "spread", "ratio_spread", "limit")
COLUMN_KEYS = {"head", "show", "name", "with"}
TABLE_KEYS = {"file", "with", "labels", "columns", "rows"}

Records = Mapping[str, Sequence[Measurement]]


def number(value: float) -> str:
    """Three digits, all before the point; no zeros at the end."""
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return f"{float(text):f}".rstrip("0").rstrip(".") if "e" in text else text


def amount(found: Amount | None, unit: str) -> str:
    """With its unit; the least and the most of several."""
    if found is None or unit == "ratio":
        return times(found)
    several: tuple[float, ...] = found if isinstance(found, tuple) else (found,)
    end = UNITS.get(unit, f" {unit}")
    if unit == "1/s" and min(several) >= 1e6:
        several, end = tuple(one / 1e6 for one in several), " million/s"
    texts = dict.fromkeys(number(one) for one in several)
    return f"{' to '.join(texts)}{end}"


def times(found: Amount | None) -> str:
    """A ratio, or the least and the most: three decimals at most, two at least."""
    if found is None:
        return "–"
    several = found if isinstance(found, tuple) else (found,)
    texts = (f"{one:.2f}" if one >= 1.1 else f"{one:.3f}" for one in several)
    return " to ".join(dict.fromkeys(re.sub(r"(\.\d\d)0$", r"\1", text) for text in texts))


def cell(record: Measurement, show: str) -> str:
    """What a column shows of a record."""
    if show in ("ratio", "ratio_spread"):
        return times(getattr(record, show))
    shown = amount(getattr(record, show), record.unit)
    if show == "limit" and record.limit is not None:
        return f"at {'most' if record.better == 'lower' else 'least'} {shown}"
    return shown


@dataclass
class Table:
    """One table of the layout."""

    name: str
    said: dict[str, Any]

    def __post_init__(self) -> None:
        if unknown := set(self.said) - TABLE_KEYS:
            raise MeasurementError(f"{self.name}: unknown: {', '.join(unknown)}")
        for column in self.said["columns"]:
            if unknown := set(column) - COLUMN_KEYS:
                raise MeasurementError(f"{self.name}: unknown: {', '.join(unknown)}")
            if column.get("show", "value") not in SHOWN:
                raise MeasurementError(f"{self.name}: show is one of {', '.join(SHOWN)}")

    def lacks(self, records: Records, row: dict[str, Any]) -> bool:
        """Whether the row waits for its first record, and may."""
        if not row.get("awaited"):
            return False
        for column in self.shown(row):
            with contextlib.suppress(MeasurementError):
                self.record(records, row, column)
                return False
        return True

    def shown(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """The columns in which the row has a figure."""
        return [each for each in self.said["columns"] if each["head"] not in row.get("skip", ())]

    def record(self, records: Records, row: dict[str, Any], column: dict[str, Any]) -> Measurement:
        """The one record of a cell; MeasurementError where there is none."""
        name = column.get("name", row.get("name", "")).format_map(row)
        place = str(row.get("file", self.said.get("file")))
        said = {
            **self.said.get("with", {}),
            **row.get("with", {}),
            **column.get("with", {}),
        }
        if unknown := set(said) - {"machine", "channel", "setting"}:
            raise MeasurementError(f"{self.name}: with: unknown: {', '.join(unknown)}")
        wanted = name, said.get("channel"), said.get("machine"), said.get("setting")
        for each in records.get(place, ()):
            if each.key == wanted:
                return each
        raise MeasurementError(
            f"{self.name}: {place}.jsonl has no {name!r} with channel {wanted[1]!r}, machine "
            f"{wanted[2]!r} and setting {wanted[3]!r}: keep one, or change {LAYOUT.name}"
        )

    def written(self, records: Records) -> str:
        """The table, and what its records have in common below it."""
        columns = self.said["columns"]
        lines = [[*self.said.get("labels", [""]), *(column["head"] for column in columns)]]
        lines.append(["---"] * len(lines[0]))
        used: list[Measurement] = []
        for row in self.said["rows"]:
            if self.lacks(records, row):
                continue
            cells = row["labels"] if "labels" in row else [row["label"]]
            for column in columns:
                if column not in self.shown(row):
                    cells = [*cells, ""]
                    continue
                record = self.record(records, row, column)
                used.append(record)
                cells = [*cells, cell(record, column.get("show", "value"))]
            lines.append(cells)
        table = "".join(
            "|" + "|".join(f" {each} " if each else " " for each in line) + "|\n" for line in lines
        )
        return f"{table}\n{caption(used)}\n"


def day(text: str) -> str:
    """A date in words."""
    year, month, *rest = text.split("-")
    words = f"{MONTHS[int(month) - 1]} {year}"
    return f"{int(rest[0])} {words}" if rest else words


def caption(used: Sequence[Measurement]) -> str:
    """Where the figures are from: everything that any of the records says, once."""
    versions = (f"{name} {version}" for record in used for name, version in record.software.items())
    loads = (amount(record.load, "1") for record in used if record.load is not None)
    commands = (f"`{record.command}`" for record in used if record.command != "unknown")
    said = (
        ("Measured on ", (record.machine for record in used)),
        ("", versions),
        ("", (day(record.date) for record in used if record.date)),
        ("at a load of ", loads),
        ("rounds: ", (str(record.rounds) for record in used if record.rounds)),
        ("setting: ", (record.setting for record in used if record.setting)),
        ("commit ", (record.commit for record in used if record.commit)),
        ("first written down in ", (record.recorded for record in used if record.recorded)),
        ("", commands),
    )
    texts = ((what, " and ".join(dict.fromkeys(each))) for what, each in said)
    line = f"{'; '.join(what + text for what, text in texts if text)}."
    return "\n".join(textwrap.wrap(line, COLUMNS, break_long_words=False, break_on_hyphens=False))


def tables() -> dict[str, Table]:
    """All tables of the layout."""
    said = yaml.safe_load(LAYOUT.read_text())
    return {name: Table(name, table) for name, table in said.items()}


def written(page: str, known: Mapping[str, Table], records: Records) -> str:
    """The page with its tables as the records have them; MeasurementError for an unknown one."""

    def replaced(place: re.Match[str]) -> str:
        if place[1] not in known:
            raise MeasurementError(f"{place[1]} is not in {LAYOUT.name}")
        return place[1] + place[2] + known[place[1]].written(records)

    return PLACE.sub(replaced, page)


def pages() -> list[Path]:
    """Pages that may have tables."""
    found = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
    return [page for page in found if PLACE.search(page.read_text())]


def main() -> int:
    """Writes the pages."""
    known, records = tables(), read_kept()
    for page in pages():
        text = written(page.read_text(), known, records)
        if text != page.read_text():
            page.write_text(text)
            print(f"{os.path.relpath(page)}: figures written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
