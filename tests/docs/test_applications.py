# SPDX-License-Identifier: Apache-2.0
"""The matrix in docs/applications.md is what docs/applications.jsonl says."""

from __future__ import annotations

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "dev"))

import application_table as table  # noqa: E402
from applications.results import FileCounts  # noqa: E402


def test_the_page_has_what_is_kept() -> None:
    text = table.PAGE.read_text()
    assert table.page(text, table.read(table.KEPT), table.read_kept()) == text, "run `make docs`"


def test_every_entry_has_a_row_and_says_where_it_was_not_run() -> None:
    cells = list(table.rows([], {}))
    assert [row[0] for row in cells] == [entry.title for entry in table.ENTRIES.values()]
    assert all(row[3].startswith("not run") for row in cells)


def test_a_result_shows_its_counts_and_what_differs() -> None:
    result = table.Result(
        entry="cupy",
        part="tests",
        channel="tcp",
        native_of="NVIDIA's driver",
        same=1000,
        different={f"test_{i}": "failed: | `x`\nline" for i in range(14)},
        more_different=2,
        skipped=5,
        failed=0,
        files=10,
        of_files=12,
        native_seconds=1,
        seconds=2,
        machine="1 NVIDIA H200, 16 cores",
        software={"driver": "580"},
        date="2026-11-26",
        commit="0123456789ab",
        command="python -m applications run cupy",
        by_file={
            name: FileCounts(500, 8, 0, 0, whole=True, commit=commit)
            for name, commit in (("a", "0123456789ab"), ("b", "fedcba987654"))
        },
    )
    text = table.written([result], {})
    assert "tests, TCP: 1,000 of 1,016 as natively (5 skipped natively)" in text
    assert "; 10 of 12 files to their end in the time given; 1 of the files at fedcba987654" in text
    assert "- `test_0`: failed: / 'x' line" in text
    assert "- and 4 more" in text
    assert "driver 580; 26 November 2026; commit 0123456789ab" in text
    assert max(map(len, text.split("\n\n", 1)[1].splitlines())) <= 120
