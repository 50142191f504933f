# SPDX-License-Identifier: Apache-2.0
"""The file of history: rings of steps in SQLite, which stops growing after a month.

Used by keeper in one thread, which is its only writer; another process is kept out by a lock. A row
holds one step of up to 256 series, packed: a write replaces the row that is as old as the ring is
long, and reading one series opens only the rows that it is in. A step of a longer ring is the mean
of those of the shorter one, made when its time is over. Nothing here is worth waiting for: a crash
may lose the last steps, and a file that cannot be read is moved away.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import time
import zlib
from array import array
from collections.abc import Mapping
from pathlib import Path

from sluice.controller.history.series import (
    ABSENT,
    FIELDS,
    TIERS,
    Point,
    Span,
    Values,
)

log = logging.getLogger("sluice.controller")

CHUNK = 256
MOST_SERIES = 16_384
#: Of a row that is unpacked: what is stored by us has exactly so many bytes.
CHUNK_BYTES = CHUNK * FIELDS * 4
MOST_FILE_BYTES = 512 << 20
PAGE_BYTES = 4096
FORGET_SECONDS = 31 * 86400
#: Between two chunks of means, so that a large pool's are no burst.
BREATH_SECONDS = 0.002
SPANS = tuple(TIERS)
_FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS series (
  id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, since INTEGER NOT NULL, seen INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS steps (
  tier INTEGER NOT NULL, chunk INTEGER NOT NULL, slot INTEGER NOT NULL, time INTEGER NOT NULL,
  data BLOB NOT NULL, PRIMARY KEY (tier, chunk, slot)
) STRICT, WITHOUT ROWID;
"""
_NOTHING = array("f", ABSENT * CHUNK)


class HistoryError(Exception):
    """History cannot be kept or read; the message says why and what to do."""


class HistoryFile:
    """One file."""

    def __init__(self, path: Path) -> None:
        """Opens it, or makes it; raises HistoryError."""
        self._path = path
        self._lock = _locked(path)
        try:
            self._connection = _opened(path)
            rows = self._connection.execute("SELECT name, id, since, seen FROM series")
            self._series: dict[str, tuple[int, int, int]] = {
                name: (number, since, seen) for name, number, since, seen in rows
            }
            self._ending: list[int | None] = [self._newest(tier) for tier in range(len(SPANS))]
        except (sqlite3.Error, OSError) as error:
            os.close(self._lock)
            raise HistoryError(f"{path}: {error}; see [console] history_file") from None

    def close(self) -> None:
        """Lets another process have it."""
        self._connection.close()
        os.close(self._lock)

    def write(self, began: int, values: Mapping[str, Values]) -> None:
        """A step of the shortest ring, and what ends with it; raises HistoryError."""
        try:
            with self._connection:
                self._write_step(0, began, self._by_chunk(began, values))
            for tier in range(1, len(SPANS)):
                began = self._end_longer(tier, began)
        except sqlite3.Error as error:
            raise HistoryError(f"{self._path}: {error}") from None

    def read(self, name: str, span: Span, now: float) -> list[Point]:
        """A series' steps within a span up to now, oldest first; raises HistoryError."""
        if name not in self._series:
            return []
        number, since, _ = self._series[name]
        tier = SPANS.index(span)
        seconds, slots = TIERS[span]
        after = max(since - seconds, int(now) - seconds * (slots + 1))
        place = (number % CHUNK) * FIELDS
        try:
            rows = self._connection.execute(
                "SELECT time, data FROM steps WHERE tier = ? AND chunk = ? AND time > ? "
                "ORDER BY time",
                (tier, number // CHUNK, after),
            )
            points = [
                Point(when, Values(*_unpacked(data)[place : place + FIELDS])) for when, data in rows
            ]
        except (sqlite3.Error, zlib.error, ValueError) as error:
            raise HistoryError(f"{self._path}: {error}") from None
        return [point for point in points if point.values.compute == point.values.compute]

    def _by_chunk(self, began: int, values: Mapping[str, Values]) -> dict[int, array[float]]:
        chunks: dict[int, array[float]] = {}
        free = self._free(began, values) if any(n not in self._series for n in values) else []
        for name, each in values.items():
            number = self._number(name, began, free)
            if number is None:
                continue
            chunk = chunks.get(number // CHUNK)
            if chunk is None:
                chunk = chunks[number // CHUNK] = array("f", _NOTHING)
            place = (number % CHUNK) * FIELDS
            chunk[place : place + FIELDS] = array("f", each)
        return chunks

    def _number(self, name: str, began: int, free: list[str]) -> int | None:
        """A series' own, or that of one of `free`; None: there are too many."""
        known = self._series.get(name)
        if known is not None:
            number, since, seen = known
            if began - seen >= TIERS[Span.MONTH].seconds:
                self._series[name] = number, since, began
                self._connection.execute("UPDATE series SET seen = ? WHERE id = ?", (began, number))
            return number
        number = len(self._series)
        if free:
            number = self._series.pop(replaced := free.pop())[0]
            self._connection.execute("DELETE FROM series WHERE name = ?", (replaced,))
        elif number >= MOST_SERIES:
            return None
        self._series[name] = number, began, began
        self._connection.execute(
            "INSERT INTO series (id, name, since, seen) VALUES (?, ?, ?, ?)",
            (number, name, began, began),
        )
        return number

    def _free(self, now: int, present: Mapping[str, Values]) -> list[str]:
        """Whose numbers others may have, the best last: of those that are gone, the ones of which
        nothing is left, or, where there are too many, any.
        """
        gone = [(seen, name) for name, (_, _, seen) in self._series.items() if name not in present]
        new = sum(name not in self._series for name in present)
        if len(self._series) + new <= MOST_SERIES:
            gone = [(seen, name) for seen, name in gone if now - seen > FORGET_SECONDS]
        return [name for _, name in sorted(gone, reverse=True)]

    def _write_step(self, tier: int, began: int, chunks: Mapping[int, array[float]]) -> None:
        seconds, slots = TIERS[SPANS[tier]]
        slot = began // seconds % slots
        # what series that are gone left there a ring's length ago
        self._connection.executemany(
            "DELETE FROM steps WHERE tier = ? AND chunk = ? AND slot = ? AND time != ?",
            [(tier, chunk, slot, began) for chunk in self._chunks()],
        )
        self._connection.executemany(
            "INSERT OR REPLACE INTO steps (tier, chunk, slot, time, data) VALUES (?, ?, ?, ?, ?)",
            [
                (tier, chunk, slot, began, zlib.compress(data.tobytes(), 1))
                for chunk, data in chunks.items()
            ],
        )

    def _end_longer(self, tier: int, began: int) -> int:
        """Writes the longer ring's step that is over, if one is; the one that is under way."""
        seconds = TIERS[SPANS[tier]].seconds
        now = began - began % seconds
        over = self._ending[tier]
        self._ending[tier] = now
        if over is not None and over < now:
            chunks = self._means(tier - 1, over, over + seconds)
            if chunks:
                with self._connection:
                    self._write_step(tier, over, chunks)
        return now

    def _means(self, tier: int, first: int, end: int) -> dict[int, array[float]]:
        seconds, slots = TIERS[SPANS[tier]]
        places = [when // seconds % slots for when in range(first, end, seconds)]
        wanted = ", ".join("?" * len(places))
        found = {}
        for chunk in self._chunks():
            rows = self._connection.execute(
                f"SELECT data FROM steps WHERE tier = ? AND chunk = ? AND slot IN ({wanted}) "
                "AND time >= ? AND time < ?",
                (tier, chunk, *places, first, end),
            ).fetchall()
            if rows:
                found[chunk] = _mean([_unpacked(data) for (data,) in rows])
                time.sleep(BREATH_SECONDS)
        return found

    def _chunks(self) -> range:
        """Those that any series is in."""
        last = max((number for number, _, _ in self._series.values()), default=-1)
        return range(last // CHUNK + 1)

    def _newest(self, tier: int) -> int | None:
        """The step of a longer ring that was under way when the file was last written."""
        if tier == 0:
            return None
        row = self._connection.execute(
            "SELECT max(time) FROM steps WHERE tier = ? AND chunk = 0", (tier - 1,)
        ).fetchone()
        seconds = TIERS[SPANS[tier]].seconds
        return None if row[0] is None else row[0] - row[0] % seconds


def _mean(steps: list[array[float]]) -> array[float]:
    """Of those that have a value, field by field."""
    if len(steps) == 1:
        return steps[0]
    means = array("f", map(sum, zip(*steps, strict=True)))
    count = len(steps)
    for place, total in enumerate(means):
        if total == total:
            means[place] = total / count
        else:
            known = [step[place] for step in steps if step[place] == step[place]]
            if known:
                means[place] = sum(known) / len(known)
    return means


def _unpacked(data: bytes) -> array[float]:
    text = zlib.decompressobj().decompress(data, CHUNK_BYTES + 1)
    if len(text) != CHUNK_BYTES:
        raise ValueError("a step is not as it should be")
    values = array("f")
    values.frombytes(text)
    return values


def _locked(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror}; see [console] history_file") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise HistoryError(
            f"{path} is another controller's on this host; name another in [console] history_file"
        ) from None
    return lock


def _opened(path: Path) -> sqlite3.Connection:
    """One that cannot be read is moved away: history begins anew."""
    try:
        return _prepared(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise
        moved = path.with_name(f"{path.name}.damaged")
        log.warning("history begins anew: %s: %s; as it was: %s", path, error, moved)
        path.replace(moved)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return _prepared(path)


def _prepared(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    # keeper has one thread for it, which need not be the one that opens it
    connection = sqlite3.connect(path, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 4194304")
        connection.execute(f"PRAGMA max_page_count = {MOST_FILE_BYTES // PAGE_BYTES}")
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _FORMAT):
            raise sqlite3.DatabaseError(f"it is of another release (format {version})")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {_FORMAT}")
        connection.commit()
    except sqlite3.Error:
        with contextlib.suppress(sqlite3.Error):
            connection.close()
        raise
    return connection
