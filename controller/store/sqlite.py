# SPDX-License-Identifier: Apache-2.0
"""The store in one SQLite file: WAL, `synchronous = FULL`, one fsync for a group of commits.

Used by the controller's service. It owns the file, its lock, and three threads: one writes, because
a commit waits for the disk and the event loop must not; one carries the log over into the file
(checkpoints), and one reads events and usage, so that no commit waits for these. A group is one
statement, an INSERT into a view whose triggers write the tables: the writer leaves and takes the
interpreter's lock once, for which it fights with a busy event loop. The standard library's sqlite3
is used on purpose: the records are flat and few, and a mapping layer would cost more than the write
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

from sluice.controller.pool.model import Change, Event, GrantState
from sluice.controller.pool.pool import Snapshot
from sluice.controller.pool.usage_records import UsageRecord, UsageShare
from sluice.controller.store import records, sqlite_file
from sluice.controller.store.group_commit import GroupCommit
from sluice.controller.store.records import Kind
from sluice.controller.store.store import (
    USAGE_DAYS,
    USAGE_HOURS,
    EventQuery,
    NumberedEvent,
    StoreError,
)

log = logging.getLogger("sluice.controller")

GROUP_MOST_CHANGES = 5000
TRIM_EVERY_CHANGES = 500  # a little at a time: commits wait for it
FORGET_AT_ONCE = 100
CHECKPOINT_EVERY_CHANGES = 4000
LOG_MOST_PAGES = 16384  # 64 MiB: then a commit waits once until the log starts over

T = TypeVar("T")

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

# the view that groups are written to: a column for what is put into each table and for what is
# removed from it, as JSON, and two for what is forgotten; a group leaves most of them empty
_PUT = {kind: kind.name for kind in records.KINDS.values()}
_REMOVED = {kind: f"removed_{kind.name}" for kind in records.REMOVALS.values()}
_FORGOTTEN = "forgotten_grants"  # ids
_TRIMMED = "trim"  # not null: old events, usage and reservations go
_COLUMNS = (*_PUT.values(), *_REMOVED.values(), _FORGOTTEN, _TRIMMED)
_WRITE = f"INSERT INTO temp.groups VALUES ({', '.join('?' * len(_COLUMNS))})"

Group = dict[str, str | int]  # the columns that are not empty


def _put(kind: Kind) -> str:
    columns = ", ".join(kind.fields)
    values = ", ".join(f"json_extract(value, '$[{n}]')" for n in range(len(kind.fields)))
    # json_each yields an array in its order, so events keep theirs
    insert = f"INSERT INTO {kind.name} ({columns}) SELECT {values} FROM json_each(NEW.{kind.name})"
    if not kind.key_fields:
        return insert
    # in place, unlike REPLACE: indices of columns that stay the same are not written
    sets = ", ".join(f"{name} = excluded.{name}" for name in kind.fields)
    return f"{insert} WHERE true ON CONFLICT ({', '.join(kind.key_fields)}) DO UPDATE SET {sets}"


def _remove(kind: Kind) -> str:
    key = " AND ".join(
        f"{kind.name}.{name} = json_extract(json_each.value, '$[{n}]')"
        for n, name in enumerate(kind.key_fields)
    )
    rows = f"SELECT 1 FROM json_each(NEW.{_REMOVED[kind]}) WHERE {key}"
    return f"DELETE FROM {kind.name} WHERE EXISTS ({rows})"


def _schema(ended_kept: int, events_kept: int) -> str:
    """The view and its triggers, which live as long as the connection."""
    forgotten = f"(SELECT value FROM json_each(NEW.{_FORGOTTEN}))"
    old_reservations = (
        "state = 'ended' AND id NOT IN (SELECT id FROM reservations WHERE state = 'ended' "
        f"ORDER BY ended DESC LIMIT {ended_kept:d})"
    )
    newest = "(SELECT max(number) FROM events)"
    newest_day = "(SELECT max(day) FROM usage_shares)"
    actions = {
        **{column: [_put(kind)] for kind, column in _PUT.items()},
        **{column: [_remove(kind)] for kind, column in _REMOVED.items()},
        _FORGOTTEN: [
            f"DELETE FROM sessions WHERE grant_id IN {forgotten}",
            f"DELETE FROM grants WHERE id IN {forgotten}",
        ],
        _TRIMMED: [
            f"DELETE FROM events WHERE number <= {newest} - {events_kept:d}",
            f"DELETE FROM usage WHERE hour < (SELECT max(hour) FROM usage) - {USAGE_HOURS:d}",
            f"DELETE FROM usage_shares WHERE day < {newest_day} - {USAGE_DAYS:d}",
            f"DELETE FROM reservations WHERE {old_reservations}",
        ],
    }
    nothing = ", ".join(f"NULL AS {column}" for column in _COLUMNS)
    triggers = [
        f"CREATE TEMP TRIGGER write_{column} INSTEAD OF INSERT ON temp.groups "
        f"WHEN NEW.{column} IS NOT NULL BEGIN {'; '.join(statements)}; END"
        for column, statements in actions.items()
    ]
    return "; ".join((f"CREATE TEMP VIEW groups AS SELECT {nothing}", *triggers))


class SqliteStore:
    """A Store in one file."""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Literal["NORMAL", "FULL"] = "FULL",
        ended_kept: int = 1000,
        events_kept: int = 100_000,
    ) -> None:
        self._path = path
        self._synchronous = synchronous
        self._ended_kept = ended_kept
        self._events_kept = events_kept
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sluice-store")
        self._checkpoints = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sluice-wal")
        self._checkpoint: asyncio.Future[None] | None = None
        self._readers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sluice-read")
        self._connection: sqlite3.Connection | None = None
        self._reading: sqlite3.Connection | None = None
        self._lock = contextlib.ExitStack()
        self._ended: dict[str, None] = {}  # ids of ended grants, oldest first
        self._since_trim = 0
        self._since_checkpoint = 0
        self._log_is_long = False
        self.group_commit = GroupCommit(self._write, GROUP_MOST_CHANGES)

    async def load(self) -> Snapshot:
        """Opens the file (creating or migrating it) and returns its state."""
        return await self._in_thread(self._open_and_load)

    def commit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Stores the changes, together with others that arrive meanwhile."""
        return self.group_commit.commit(changes)

    async def events(self, limit: int, subject: str | None = None) -> list[Event]:
        """Returns the newest events, newest first."""
        query = EventQuery(limit, subjects=(subject,) if subject else ())
        return [found.event for found in await self.find_events(query)]

    async def find_events(self, query: EventQuery) -> list[NumberedEvent]:
        """Returns the events that are asked for."""
        conditions, values = ["number > ?"], [query.after]
        if query.before is not None:
            conditions.append("number < ?")
            values.append(query.before)
        texts: list[str] = []
        if query.subjects:
            conditions.append(f"subject IN ({', '.join('?' * len(query.subjects))})")
            texts += query.subjects
        if query.kind:
            conditions.append("substr(kind, 1, length(?)) = ?")
            texts += [query.kind, query.kind]
        if query.without_kind:
            conditions.append("substr(kind, 1, length(?)) != ?")
            texts += [query.without_kind, query.without_kind]
        statement = (
            f"SELECT number, {', '.join(records.EVENTS.fields)} FROM events "
            f"WHERE {' AND '.join(conditions)} "
            f"ORDER BY number {'ASC' if query.oldest_first else 'DESC'} LIMIT ?"
        )

        def read() -> list[NumberedEvent]:
            rows = self._reader.execute(statement, (*values, *texts, query.limit))
            return [NumberedEvent(row[0], Event(*row[1:])) for row in rows]

        return await self._in_thread(read, self._readers)

    async def usage(self, first: int, last: int, project: str | None = None) -> list[UsageRecord]:
        """Returns what was used in these hours, by hour, then by project."""

        def read() -> list[UsageRecord]:
            whose, values = ("AND project = ?", (project,)) if project else ("", ())
            rows = self._reader.execute(
                f"SELECT {', '.join(records.USAGE.fields)} FROM usage "
                f"WHERE hour BETWEEN ? AND ? {whose} ORDER BY hour, project",
                (first, last, *values),
            )
            return [UsageRecord(*row) for row in rows]

        return await self._in_thread(read, self._readers)

    async def shares(self, first: int, last: int, project: str | None = None) -> list[UsageShare]:
        """Returns the same by person and label, of these days, by day, project, person, label."""

        def read() -> list[UsageShare]:
            whose, values = ("AND project = ?", (project,)) if project else ("", ())
            rows = self._reader.execute(
                f"SELECT {', '.join(records.SHARES.fields)} FROM usage_shares "
                f"WHERE day BETWEEN ? AND ? {whose} ORDER BY day, project, person, label",
                (first, last, *values),
            )
            return [UsageShare(*row) for row in rows]

        return await self._in_thread(read, self._readers)

    async def close(self) -> None:
        """Waits for commits under way and closes the file."""
        await self.group_commit.drain()
        if self._checkpoint:
            await asyncio.wait([self._checkpoint])

        def close_reader() -> None:
            if self._reading:
                self._reading.close()
                self._reading = None

        def close() -> None:
            if self._connection:
                self._connection.close()
                self._connection = None
            self._lock.close()

        await self._in_thread(close_reader, self._readers)
        await self._in_thread(close)
        self._readers.shutdown()
        self._thread.shutdown()
        self._checkpoints.shutdown()

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self._path}: the store is not open")
        return self._connection

    @property
    def _reader(self) -> sqlite3.Connection:
        """The reading thread's own: what it sees is what is committed."""
        if self._connection is None:
            raise StoreError(f"{self._path}: the store is not open")
        if self._reading is None:
            self._reading = sqlite_file.connect(self._path)
            self._reading.execute("PRAGMA query_only = ON")
        return self._reading

    async def _in_thread(
        self, step: Callable[[], T], thread: ThreadPoolExecutor | None = None
    ) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(thread or self._thread, step)
        except (sqlite3.Error, UnicodeError, OverflowError) as error:
            raise sqlite_file.explain(self._path, error) from error

    async def _write(self, changes: list[Change]) -> None:
        batch = records.last_states(changes)
        group: Group = {_REMOVED[kind]: _to_json(keys) for kind, keys in batch.removals.items()}
        for kind, puts in [*batch.puts.items(), (records.EVENTS, batch.events)]:
            if puts:
                group[_PUT[kind]] = _to_json([_row(kind, put) for put in puts])
        grants = batch.puts.get(records.GRANTS, ())
        if forgotten := self._too_old({grant.id for grant in grants}):
            group[_FORGOTTEN] = _to_json(forgotten)
        if trim := self._since_trim + len(changes) >= TRIM_EVERY_CHANGES:
            group[_TRIMMED] = 1
        values = [group.get(column) for column in _COLUMNS]
        await self._in_thread(lambda: self._run(values))
        for grant_id in forgotten:
            del self._ended[grant_id]
        for grant in grants:
            self._ended.pop(grant.id, None)
            if grant.state is GrantState.ENDED:
                self._ended[grant.id] = None
        self._since_trim = 0 if trim else self._since_trim + len(changes)
        self._since_checkpoint += len(changes)
        if self._since_checkpoint >= CHECKPOINT_EVERY_CHANGES and self._checkpoint is None:
            self._since_checkpoint = 0
            loop = asyncio.get_running_loop()
            self._checkpoint = loop.run_in_executor(self._checkpoints, self._carry_over)
            self._checkpoint.add_done_callback(self._carried_over)

    def _too_old(self, written: set[str]) -> list[str]:
        """Ended grants that are too many, a few at a time."""
        count = min(len(self._ended) - self._ended_kept, FORGET_AT_ONCE)
        oldest = itertools.islice(self._ended, max(0, count))
        return [grant_id for grant_id in oldest if grant_id not in written]

    def _carried_over(self, _: asyncio.Future[None]) -> None:
        self._checkpoint = None

    # in the writer thread

    def _open_and_load(self) -> Snapshot:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{self._path.parent}: cannot be created ({error.strerror}); "
                "set [controller] store to a place that the controller may write"
            ) from None
        self._lock.enter_context(sqlite_file.only_process(self._path))
        try:
            sqlite_file.make_private(self._path)
            connection = self._connection = sqlite_file.connect(self._path)
            sqlite_file.refuse_newer(self._path, sqlite_file.version_of(connection))
            sqlite_file.check_integrity(self._path, connection)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            sqlite_file.migrate(self._path, connection)
            connection.executescript(_schema(self._ended_kept, self._events_kept))
            loaded = self._load(connection)
            ended = [grant for grant in loaded.grants if grant.state is GrantState.ENDED]
            ended.sort(key=lambda grant: grant.ended or 0.0)
            self._ended = dict.fromkeys(grant.id for grant in ended)
            return loaded
        except BaseException:
            self._lock.close()
            raise

    def _load(self, db: sqlite3.Connection) -> Snapshot:
        def every(kind: Kind, order: str, where: str = "") -> list[Any]:
            columns = ", ".join(kind.fields)
            rows = db.execute(f"SELECT {columns} FROM {kind.name} {where} ORDER BY {order}")
            return [kind.build_row(row) for row in rows]

        try:
            return Snapshot(
                every(records.NODES, "name"),
                every(records.GPUS, "node, uuid"),
                every(records.GRANTS, "created"),
                every(records.SESSIONS, "started"),
                every(records.DOCUMENTS, "collection, key"),
                every(records.RESERVATIONS, "created"),
                every(records.SWITCHES, "node, uuid"),
                every(records.QUOTAS, "project"),
                every(
                    records.USAGE,
                    "project",
                    "WHERE hour = (SELECT max(hour) FROM usage u WHERE u.project = usage.project)",
                ),
                every(records.ATTACHMENTS, "node, uuid"),
                every(
                    records.SHARES,
                    "project, person, label",
                    "WHERE day = (SELECT max(day) FROM usage_shares)",
                ),
            )
        except (TypeError, ValueError) as error:
            raise sqlite_file.damaged(self._path, f"a record cannot be read: {error}") from None

    def _run(self, group: list[str | int | None]) -> None:
        self._db.execute(_WRITE, group)  # a transaction of its own
        if self._log_is_long:
            self._log_is_long = False
            with contextlib.suppress(sqlite3.Error):  # stored it is; the next one tries again
                self._db.execute("PRAGMA wal_checkpoint(RESTART)")

    # in the other thread

    def _carry_over(self) -> None:
        try:
            connection = sqlite_file.connect(self._path)
            try:
                _, pages, _ = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            finally:
                connection.close()
        except sqlite3.Error as error:
            log.warning("%s", sqlite_file.explain(self._path, error))
        else:
            self._log_is_long = pages > LOG_MOST_PAGES


def _row(kind: Kind, record: Any) -> list[Any]:
    values = kind.values(record)
    for place in kind.nested:
        values[place] = _to_json(values[place])
    return values
