# SPDX-License-Identifier: Apache-2.0
"""Figures in the pages are what docs/measurements/ says, and each record says where it is from."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "dev"))

import measurement_tables as tables  # noqa: E402
import measurements  # noqa: E402
from measurements import MeasurementError, Run, from_line, keep, read, read_kept, write  # noqa: E402

#: A cell with a figure: what stands in a table outside of the places that are written.
FIGURE = re.compile(r"\| [\d.,]+ (?:µs|ms|s|MiB|GiB/s|img/s|tokens/s|steps/s) (?=\|)")
GOOD: dict[str, Any] = {
    "name": "launch_us",
    "channel": "shm",
    "value": 2.72,
    "unit": "us",
    "better": "lower",
    "floor": 2.65,
    "floor_of": "native",
    "ratio": 1.026,
    "spread": None,
    "ratio_spread": None,
    "limit": None,
    "rounds": 10,
    "machine": "1 NVIDIA H200, 16 cores",
    "setting": None,
    "software": {"driver": "580"},
    "load": [0.5, 1.2],
    "date": "2026-11-23",
    "commit": "85737fd7b6d1",
    "recorded": None,
    "command": "make test-gpu",
}
RECORDED = {"commit": None, "recorded": "a9dbc07", "date": "2026-11"}


def line(**changed: object) -> str:
    return json.dumps(GOOD | changed)


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/performance.md",
        "docs/control-plane.md",
        "docs/console.md",
        "docs/sharing.md",
        "docs/channels.md",
        "docs/suspension.md",
        "docs/oversubscription.md",
    ],
    ids=str,
)
def test_a_page_has_the_figures_that_the_records_have(page: str) -> None:
    text = (CHECKOUT / page).read_text()
    assert tables.PLACE.search(text), "its places are gone"
    assert text == tables.written(text, tables.tables(), read_kept()), (
        "run dev/measurement_tables.py (make docs)"
    )


def test_every_table_stands_on_one_page() -> None:
    placed = [
        place[1] for page in tables.pages() for place in tables.PLACE.finditer(page.read_text())
    ]
    assert sorted(placed) == sorted(tables.tables())
    assert {page.name for page in tables.pages()} == {
        "README.md", "performance.md", "control-plane.md", "console.md", "sharing.md",
        "channels.md", "suspension.md", "oversubscription.md",
    }  # fmt: skip


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_no_table_of_figures_is_written_by_hand(page: str) -> None:
    by_hand = tables.PLACE.sub("", (CHECKOUT / page).read_text())
    assert not FIGURE.findall(by_hand), "docs/measurements/tables.yaml has the tables of figures"


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"ratio": 1.01, "ratio_spread": [0.99, 1.23]},
        {"value": [2.5, 2.9], "ratio": None},
        {"value": [2.5, 2.9], "floor": None, "ratio": [0.9, 1.1]},
        {"floor": None, "floor_of": None, "ratio": None},
        RECORDED,
        RECORDED | {"date": None},
        {"unit": "ratio", "better": "higher"},
    ],
    ids=str,
)
def test_a_good_record_is_read(changed: dict[str, Any]) -> None:
    record = from_line(line(**changed), "here:1")
    assert from_line(json.dumps(asdict(record)), "here:2") == record


@pytest.mark.parametrize("name", list(GOOD))
def test_a_record_misses_no_field(name: str) -> None:
    said = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(MeasurementError, match=f"here:7: fields missing: {name}"):
        from_line(json.dumps(said), "here:7")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ratio": 1.1}, "ratio is 1.1, value / floor is 1.026"),
        ({"ratio": None}, "ratio is missing"),
        ({"ratio": 1.5, "ratio_spread": [0.9, 1.1]}, "ratio 1.5 is not within the ratios"),
        ({"ratio": 0.8, "ratio_spread": [0.7, 0.9]}, "value / floor 1.026 is not within"),
        ({"ratio": [1.0, 1.1]}, "ratio and value: of several runs, or not"),
        ({"floor": None, "ratio": 1.0}, "ratio needs a single floor"),
        ({"floor_of": None}, "floor_of says what"),
        ({"unit": "µs"}, "unit is one of us, ms"),
        ({"better": "higher"}, "us: the other is better"),
        ({"better": "best"}, "better is lower or higher"),
        ({"value": "2.72"}, "value: '2.72' is no number"),
        ({"value": True}, "value: True is no number"),
        ({"value": None}, "value: None is no number"),
        ({"load": [3, 1]}, "the least is more than the most"),
        ({"spread": [1]}, "is not \\[least, most\\]"),
        ({"machine": ""}, "machine and command are not empty"),
        ({"recorded": "a9dbc07"}, "either commit or recorded"),
        ({"commit": None}, "either commit or recorded"),
        ({"date": None}, "date is a day"),
        ({"date": "2026-11"}, "date is a day"),
        ({"name": "Launch us"}, "name has small letters"),
        ({"software": "580"}, "software is no object"),
        ({"channel": 3}, "channel is neither text nor null"),
        ({"colour": "red"}, "unknown: colour"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_record_is_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(MeasurementError, match=said):
        from_line(line(**changed), "here:1")


def test_a_file_has_one_record_of_a_key(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text(line() + "\n" + line(setting="busy") + "\n" + line(date="2026-11-24") + "\n")
    with pytest.raises(MeasurementError, match=r"calls.jsonl:3: .* is there already"):
        read(path)


def test_a_newer_record_takes_the_place_of_the_older(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text(line() + "\n" + line(name="other_us") + "\n")
    newer = from_line(line(value=2.65, ratio=1.0), "here:1")
    write(path, [newer, replace(newer, channel="tcp")])
    assert [(r.name, r.channel, r.value) for r in read(path)] == [
        ("launch_us", "shm", 2.65), ("other_us", "shm", 2.72), ("launch_us", "tcp", 2.65),
    ]  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("SLUICE_COMMIT", "85737fd7b6d1")
    return Run("make bench", rounds=4)


def test_a_run_makes_records_that_can_be_read(run: Run) -> None:
    plain = run.record("sync_call_us", 2.171717, "us", floor=0.481, floor_of="ping", limit=1.7215)
    assert (plain.value, plain.ratio, plain.limit) == (2.172, 4.516, 1.722)
    paired = run.record(
        "resnet", 10.5, "img/s", floor=10.0, floor_of="native", pairs=[1.2, 0.9, 1.0, 1.06]
    )
    assert (paired.ratio, paired.ratio_spread, paired.rounds) == (1.03, (0.9, 1.2), 4)
    for record in (plain, paired):
        assert from_line(json.dumps(asdict(record)), "here:1") == record


def test_what_was_measured_is_kept_on_purpose_only(run: Run, tmp_path: Path) -> None:
    measured, kept = tmp_path / "build", tmp_path / "docs"
    write(kept / "bench.jsonl", [run.record("old_us", 9, "us"), run.record("async_us", 9, "us")])
    write(
        measured / "bench.jsonl", [run.record("async_us", 0.04, "us"), run.record("b_us", 1, "us")]
    )
    keep("bench", ["async_us"], measured=measured, kept=kept)
    assert {r.name: r.value for r in read(kept / "bench.jsonl")} == {"old_us": 9, "async_us": 0.04}
    keep("bench", ["async_us"], setting="busy", measured=measured, kept=kept)
    assert [r.setting for r in read(kept / "bench.jsonl") if r.name == "async_us"] == [None, "busy"]
    with pytest.raises(MeasurementError, match="has no c_us"):
        keep("bench", ["c_us"], measured=measured, kept=kept)
    with pytest.raises(MeasurementError, match="measured is: bench"):
        keep("calls", measured=measured, kept=kept)


@pytest.mark.parametrize(
    ("measured_on", "said", "error"),
    [
        ("85737fd7b6d1-dirty", None, "commit, and measure again"),
        ("85737fd7b6d1-dirty", "85737fd", "commit, and measure again"),
        ("unknown", None, "say --commit"),
        ("unknown", "main", "nobody could repeat that"),
        ("unknown", "85737fd", ""),
    ],
)
def test_what_nobody_can_repeat_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    measured_on: str,
    said: str | None,
    error: str,
) -> None:
    monkeypatch.setenv("SLUICE_COMMIT", measured_on)
    write(tmp_path / "build" / "bench.jsonl", [Run("make bench").record("async_us", 0.04, "us")])
    kept = tmp_path / "docs"
    if error:
        with pytest.raises(MeasurementError, match=error):
            keep("bench", commit=said, measured=tmp_path / "build", kept=kept)
        assert not kept.exists()
        return
    keep("bench", commit=said, measured=tmp_path / "build", kept=kept)
    assert read_kept(kept)["bench"][0].commit == said


def test_a_record_of_the_documents_has_a_commit(tmp_path: Path) -> None:
    (tmp_path / "bench.jsonl").write_text(line(commit="85737fd7b6d1-dirty") + "\n")
    with pytest.raises(MeasurementError, match="is no commit"):
        read_kept(tmp_path)


def one_table(**row: object) -> dict[str, tables.Table]:
    said = {
        "file": "calls",
        "with": {"machine": "1 NVIDIA H200, 16 cores", "channel": "shm"},
        "labels": ["figure"],
        "columns": [{"head": "native", "show": "floor"}, {"head": "Sluice"}],
        "rows": [{"label": "a launch", "name": "launch_us"} | row],
    }
    return {"launches": tables.Table("launches", said)}


PAGE = "before\n<!-- figures: launches -->\nold\n<!-- end -->\nbehind\n"


def test_a_page_changes_between_its_marks_only() -> None:
    records = {"calls": [from_line(line(), "here:1")]}
    page = tables.written(PAGE, one_table(), records)
    assert page.startswith("before\n<!-- figures: launches -->\n| figure | native | Sluice |\n")
    assert "| a launch | 2.65 µs | 2.72 µs |\n\nMeasured on 1 NVIDIA H200, 16 cores; " in page
    assert "; commit 85737fd7b6d1; `make test-gpu`." in page.replace("\n", " ")
    assert page.endswith(".\n<!-- end -->\nbehind\n")
    assert tables.written(page, one_table(), records) == page


def test_a_cell_is_the_record_of_its_machine_channel_and_setting() -> None:
    record = from_line(line(), "here:1")
    records = {"calls": [record]}
    page = tables.written(PAGE, one_table(), records)
    records["calls"] += [
        replace(record, value=2.65, ratio=1.0, **other)  # type: ignore[arg-type]
        for other in ({"channel": "tcp"}, {"setting": "busy"}, {"machine": "1 NVIDIA B200"})
    ]
    assert tables.written(PAGE, one_table(), records) == page
    busy = one_table(**{"with": {"setting": "busy"}})
    assert "| a launch | 2.65 µs | 2.65 µs |" in tables.written(PAGE, busy, records)
    for row, error in (
        ({"name": "other_us"}, "calls.jsonl has no 'other_us' with channel 'shm'"),
        ({"with": {"machine": "8 cores"}}, "machine '8 cores' and setting None: keep one"),
        ({"with": {"host": "a"}}, "with: unknown: host"),
    ):
        with pytest.raises(MeasurementError, match=error):
            tables.written(PAGE, one_table(**row), records)
    with pytest.raises(MeasurementError, match="launches is not in"):
        tables.written(PAGE, {}, records)


def test_a_row_may_wait_for_its_first_record() -> None:
    waiting = one_table(name="later_us", awaited=True)
    assert "a launch" not in tables.written(PAGE, waiting, {"calls": [from_line(line(), "here:1")]})
    kept = {"calls": [from_line(line(name="later_us"), "here:1")]}
    assert "| a launch | 2.65 µs | 2.72 µs |" in tables.written(PAGE, waiting, kept)


@pytest.mark.parametrize(
    ("found", "unit", "shown"),
    [
        (0.095, "us", "0.095 µs"),
        (1669.0, "us", "1,669 µs"),
        (999.7, "ms", "1,000 ms"),
        (0.00004, "s", "0.00004 s"),
        (0.0, "%", "0 %"),
        (-0.09, "s", "-0.09 s"),
        ((9.7e6, 10e6), "1/s", "9.7 to 10 million/s"),
        ((17.4, 17.4), "us", "17.4 µs"),
        (331.0, "1", "331"),
        ((0.86, 1.1), "ratio", "0.86 to 1.10"),
        (0.997, "ratio", "0.997"),
        (None, "us", "–"),
    ],
)
def test_figures_are_shown_with_three_digits(
    found: measurements.Amount | None, unit: str, shown: str
) -> None:
    assert tables.amount(found, unit) == shown
