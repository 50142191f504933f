# SPDX-License-Identifier: Apache-2.0
"""History: rings that stay as long as they are, means, bounds, one writer, and what is sampled."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from pathlib import Path

import pytest

from sluice.controller.history import history_file
from sluice.controller.history.history_file import HistoryError, HistoryFile
from sluice.controller.history.keeper import MOST_READERS, HistoryKeeper
from sluice.controller.history.sampling import sample
from sluice.controller.history.series import TIERS, Point, Span, Values
from sluice.controller.pool.grants.used_tally import Used
from sluice.controller.pool.grants.vgpu_times import VgpuReport
from sluice.controller.pool.model import GpuKey
from tests.console.place import Place

#: The first second of a month, so that hours and days begin with it.
BEGIN = 1_761_955_200
STEP = 15


def values(number: float) -> Values:
    return Values(number / 4, number / 2, number, 1.0)


def fill(file: HistoryFile, seconds: int, name: str = "pool", begin: int = BEGIN) -> int:
    """A step every 15 s whose values count up; returns where it ended."""
    for number, began in enumerate(range(begin, begin + seconds, STEP)):
        file.write(began, {name: values(number)})
    return begin + seconds


@pytest.fixture(autouse=True)
def _no_breath(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "BREATH_SECONDS", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def test_the_hour_has_each_step_and_no_more_than_its_ring(path: Path) -> None:
    file = HistoryFile(path)
    end = fill(file, 2 * 3600)
    points = file.read("pool", Span.HOUR, end)
    assert [point.time for point in points] == list(range(end - 3600, end, STEP))
    assert points[-1].values == values(479)
    assert not file.read("node:x", Span.HOUR, end)
    file.close()


def test_minutes_and_hours_are_means_of_what_they_are_made_of(path: Path) -> None:
    file = HistoryFile(path)
    end = fill(file, 2 * 3600 + 60)
    day = file.read("pool", Span.DAY, end)
    assert len(day) == 120, "the minute that has just ended is written with the next step"
    assert day[0] == Point(BEGIN, values(1.5))
    assert [point.time for point in day] == list(range(BEGIN, BEGIN + 7200, 60))
    month = file.read("pool", Span.MONTH, end)
    assert [point.time for point in month] == [BEGIN, BEGIN + 3600]
    assert month[0].values.memory_mib == pytest.approx(119.5)
    assert month[1].values.memory_mib == pytest.approx(359.5)
    file.close()


def test_what_was_under_way_when_it_was_closed_is_finished_later(path: Path) -> None:
    file = HistoryFile(path)
    fill(file, 45)
    file.close()
    file = HistoryFile(path)
    file.write(BEGIN + 60, {"pool": values(9)})
    assert file.read("pool", Span.DAY, BEGIN + 75) == [Point(BEGIN, values(1))]
    file.close()


def test_after_a_month_the_file_grows_no_more(path: Path) -> None:
    file = HistoryFile(path)
    begin = BEGIN
    # three times around each ring, the long ones in strides
    for _ in range(3):
        begin = fill(file, 3600, begin=begin)
    sizes = []
    for round_ in range(3):
        for hour in range(TIERS[Span.MONTH].slots):
            began = begin + (round_ * TIERS[Span.MONTH].slots + hour) * 3600
            file.write(began, {"pool": values(hour)})
            file.write(began + 60, {"pool": values(hour)})
        [pages] = file._connection.execute("PRAGMA page_count").fetchone()
        sizes.append(pages)
    rows = file._connection.execute("SELECT tier, count(*) FROM steps GROUP BY tier").fetchall()
    for tier, count in rows:
        assert count <= list(TIERS.values())[tier].slots
    assert sizes[2] <= sizes[1]
    file.close()


def test_what_is_not_known_is_no_zero(path: Path) -> None:
    file = HistoryFile(path)
    unknown = values(8)._replace(used=math.nan)
    for number in range(4):
        file.write(BEGIN + number * STEP, {"pool": unknown if number else values(8)})
    file.write(BEGIN + 60, {"pool": values(8)})
    hour = file.read("pool", Span.HOUR, BEGIN + 75)
    assert math.isnan(hour[1].values.used)
    [day] = file.read("pool", Span.DAY, BEGIN + 75)
    assert day.values.used == 2.0, "the mean of what is known"
    file.close()


def test_a_gap_stays_a_gap(path: Path) -> None:
    file = HistoryFile(path)
    fill(file, 60)
    fill(file, 60, begin=BEGIN + 600)
    times = [point.time for point in file.read("pool", Span.HOUR, BEGIN + 660)]
    assert times == [*range(BEGIN, BEGIN + 60, 15), *range(BEGIN + 600, BEGIN + 660, 15)]
    # a ring later, steps of before are not shown though nothing was written over them
    assert not file.read("pool", Span.HOUR, BEGIN + 2 * 3600)
    file.close()


def test_many_series_are_told_apart_and_have_a_bound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_file, "MOST_SERIES", 600)
    file = HistoryFile(path)
    many = {f"gpu:n:{number}": values(number) for number in range(700)}
    file.write(BEGIN, many)
    assert file.read("gpu:n:599", Span.HOUR, BEGIN + 15)[0].values == values(599)
    assert not file.read("gpu:n:600", Span.HOUR, BEGIN + 15)
    # one that is gone makes room, and what it was is not another's past
    del many["gpu:n:300"]
    file.write(BEGIN + STEP, {**many, "gpu:n:600": values(1)})
    assert file.read("gpu:n:600", Span.HOUR, BEGIN + 30) == [Point(BEGIN + STEP, values(1))]
    assert not file.read("gpu:n:300", Span.HOUR, BEGIN + 30)
    file.close()
    again = HistoryFile(path)
    assert again.read("gpu:n:600", Span.HOUR, BEGIN + 30) == [Point(BEGIN + STEP, values(1))]
    again.close()


def test_two_controllers_do_not_write_one_file(path: Path) -> None:
    first = HistoryFile(path)
    with pytest.raises(HistoryError, match="another controller's"):
        HistoryFile(path)
    first.close()
    HistoryFile(path).close()
    assert path.stat().st_mode & 0o077 == 0


def test_a_file_that_is_none_is_moved_away(path: Path) -> None:
    path.write_bytes(b"this is no database, whatever else it may be" * 100)
    file = HistoryFile(path)
    fill(file, 30)
    assert file.read("pool", Span.HOUR, BEGIN + 30)
    file.close()
    assert path.with_name("history.db.damaged").read_bytes().startswith(b"this is no")


def test_rubbish_in_a_row_is_an_error_and_takes_no_memory(path: Path) -> None:
    import zlib

    file = HistoryFile(path)
    fill(file, 15)
    file.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE steps SET data = ?", (zlib.compress(bytes(1 << 28)),))
    file = HistoryFile(path)
    with pytest.raises(HistoryError, match="not as it should be"):
        file.read("pool", Span.HOUR, BEGIN + 15)
    file.close()


def test_no_folder_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match="history_file"):
        HistoryFile(tmp_path / "file" / "history.db")


# what is sampled


async def test_a_step_is_what_is_promised_and_what_was_used(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    place.node("node-a", gpus=2)
    place.node("node-b", gpus=1)
    granted = await place.granted("vision", memory_mib=1000, compute_percent=25)
    tally = place.pool.tally_used()
    grant = place.pool.grants[granted.grant.id]
    times = place.pool._ledger.vgpu_times
    times.take(grant, VgpuReport(grant.id, 0, 3.0, 0.0, 0.2, 0.2))
    times.take(grant, VgpuReport(grant.id, 0, 9.0, 0.0, 0.2, 0.2))
    found = await sample(place.pool, tally.take(), 15.0)
    [key] = [key for key, _ in grant.placed()]
    gpu = found[f"gpu:{key.node}:{key.uuid}"]
    assert gpu.used == pytest.approx(9 / 15)
    assert gpu.compute == 0.25
    assert gpu.vgpus == 1
    assert gpu.memory_mib >= 1000
    other = "node-a" if key.node == "node-b" else "node-b"
    assert found[f"node:{key.node}"].used == pytest.approx(9 / 15)
    assert found[f"node:{other}"] == Values(0.0, 0.0, 0.0, 0.0)
    assert found["pool"].compute == 0.25
    assert found["project:vision"].used == pytest.approx(9 / 15)
    assert found["project:vision"].vgpus == 1
    # what was taken is not counted again
    again = await sample(place.pool, tally.take(), 15.0)
    assert again["pool"].used == 0.0
    assert math.isnan((await sample(place.pool, None, 15.0))["pool"].used)
    await place.store.close()


async def test_a_large_pool_is_looked_at_in_slices(tmp_path: Path) -> None:
    """Others have their turn between: none waits for the whole of it."""
    place = Place(tmp_path)
    await place.open()
    for number in range(250):
        place.node(f"node-{number}", gpus=4)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    found = await sample(place.pool, Used({}, {}), 15.0)
    task.cancel()
    assert len(found) == 1000 + 250 + 1 + sum(name.startswith("project:") for name in found)
    assert turns >= 5
    await place.store.close()


async def test_a_gpu_that_goes_while_it_is_looked_at_is_left_out(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    for number in range(60):
        place.node(f"node-{number}", gpus=4)
    gone = list(place.pool.gpus)[-1]

    async def take_away() -> None:
        place.pool.gpus.pop(gone)

    task = asyncio.create_task(take_away())
    found = await sample(place.pool, Used({}, {}), 15.0)
    await task
    assert f"gpu:{gone.node}:{gone.uuid}" not in found
    assert GpuKey(gone.node, gone.uuid) not in place.pool.gpus
    await place.store.close()


# the keeper


async def test_so_many_read_at_a_time_and_the_others_hear_why(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    keeper = HistoryKeeper(place.pool, tmp_path / "history.db")
    reads = [keeper.read("pool", Span.HOUR) for _ in range(MOST_READERS + 5)]
    answers = await asyncio.gather(*reads, return_exceptions=True)
    refused = [each for each in answers if isinstance(each, HistoryError)]
    assert len(refused) == 5
    assert await keeper.read("pool", Span.HOUR) == []
    await place.store.close()


async def test_it_writes_on_the_step_and_lets_go_when_it_is_cancelled(tmp_path: Path) -> None:
    place = Place(tmp_path)
    await place.open()
    place.node("node-a", gpus=1)
    now = BEGIN + 1.0

    async def pause(seconds: float) -> None:
        nonlocal now
        await asyncio.sleep(0.005)
        now += seconds

    keeper = HistoryKeeper(place.pool, tmp_path / "history.db", lambda: now, pause)
    task = asyncio.create_task(keeper.run())
    for _ in range(500):
        await asyncio.sleep(0.01)
        if len(points := await keeper.read("pool", Span.HOUR)) >= 3:
            break
    else:
        pytest.fail("no steps were written")
    assert [point.time for point in points[:3]] == [BEGIN, BEGIN + STEP, BEGIN + 2 * STEP]
    # what nodes tell a new leader at first was used before
    assert math.isnan(points[0].values.used)
    assert points[1].values.used == 0.0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    keeper._thread.shutdown(wait=True)
    HistoryFile(tmp_path / "history.db").close()
    with pytest.raises(HistoryError, match="does not lead"):
        await keeper.read("pool", Span.HOUR)
    await place.store.close()


async def test_a_file_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(tmp_path)
    await place.open()
    (tmp_path / "file").touch()
    keeper = HistoryKeeper(place.pool, tmp_path / "file" / "history.db")
    keeper._write(BEGIN, {})
    keeper._write(BEGIN + STEP, {})
    said = [each.message for each in caplog.records if "history is not kept" in each.message]
    assert len(said) == 1
    await place.store.close()
