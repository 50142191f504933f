# SPDX-License-Identifier: Apache-2.0
"""The store in one SQLite file: WAL, `synchronous = FULL`, one fsync for a group of commits.

Used by the controller's service. It owns the file, its lock, and two threads: one writes, because
a commit waits for the disk and the event loop must not; the other carries the log over into the
file (checkpoints), so that no commit waits for that. A group is one statement per table, as each
statement costs the writer a fight for the interpreter's lock with a busy event loop. The standard
library's sqlite3 is used on purpose: the records are flat and few, and a mapping layer would cost
more than the write itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

from sluice.controller.pool.model import Change, Event, UsageRecord
from sluice.controller.pool.pool import Snapshot
from sluice.controller.store import records, sqlite_file
from sluice.controller.store.group_commit import GroupCommit
from sluice.controller.store.records import Kind
from sluice.controller.store.store import EventQuery, NumberedEvent, StoreError

log = logging.getLogger("sluice.controller")

GROUP_MOST_CHANGES = 5000
TRIM_EVERY_CHANGES = 5000
CHECKPOINT_EVERY_CHANGES = 1000
USAGE_HOURS = 400 * 24  # that are kept
LOG_MOST_PAGES = 16384  # 64 MiB: then a commit waits once until the log starts over

Statements = list[tuple[str, str]]  # with the JSON that each one is given
T = TypeVar("T")


def _upsert(kind: Kind) -> str:
    columns = ", ".join(kind.fields)
    values = ", ".join(f"json_extract(value, '$[{n}]')" for n in range(len(kind.fields)))
    # json_each yields an array in its order, so events keep theirs
    insert = f"INSERT INTO {kind.name} ({columns}) SELECT {values} FROM json_each(?)"
    if not kind.key_fields:
        return insert
    # in place, unlike REPLACE: indices of columns that stay the same are not written
    sets = ", ".join(f"{name} = excluded.{name}" for name in kind.fields)
    return f"{insert} WHERE true ON CONFLICT ({', '.join(kind.key_fields)}) DO UPDATE SET {sets}"


def _delete(kind: Kind) -> str:
    key = " AND ".join(
        f"{kind.name}.{name} = json_extract(json_each.value, '$[{n}]')"
        for n, name in enumerate(kind.key_fields)
    )
    return f"DELETE FROM {kind.name} WHERE EXISTS (SELECT 1 FROM json_each(?) WHERE {key})"


UPSERTS = {kind: _upsert(kind) for kind in records.KINDS.values()}
DELETES = {kind: _delete(kind) for kind in records.REMOVALS.values()}


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
        self._connection: sqlite3.Connection | None = None
        self._lock = contextlib.ExitStack()
        self._since_trim = 0
        self._since_checkpoint = 0
        self._log_is_long = False
        self.group_commit = GroupCommit(self._write, GROUP_MOST_CHANGES)

    async def load(self) -> Snapshot:
        """Opens the file (creating or migrating it) and returns its state."""
        return await self._in_thread(self._open_and_load)

    async def commit(self, changes: Sequence[Change]) -> None:
        """Stores the changes, together with others that arrive meanwhile."""
        await self.group_commit.commit(changes)

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
            rows = self._db.execute(statement, (*values, *texts, query.limit))
            return [NumberedEvent(row[0], Event(*row[1:])) for row in rows]

        return await self._in_thread(read)

    async def usage(self, first: int, last: int, project: str | None = None) -> list[UsageRecord]:
        """Returns what was used in these hours, by hour, then by project."""

        def read() -> list[UsageRecord]:
            whose, values = ("AND project = ?", (project,)) if project else ("", ())
            rows = self._db.execute(
                f"SELECT {', '.join(records.USAGE.fields)} FROM usage "
                f"WHERE hour BETWEEN ? AND ? {whose} ORDER BY hour, project",
                (first, last, *values),
            )
            return [UsageRecord(*row) for row in rows]

        return await self._in_thread(read)

    async def close(self) -> None:
        """Waits for commits under way and closes the file."""
        await self.group_commit.drain()
        if self._checkpoint:
            await asyncio.wait([self._checkpoint])

        def close() -> None:
            if self._connection:
                self._connection.close()
                self._connection = None
            self._lock.close()

        await self._in_thread(close)
        self._thread.shutdown()
        self._checkpoints.shutdown()

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self._path}: the store is not open")
        return self._connection

    async def _in_thread(self, step: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, step)
        except (sqlite3.Error, UnicodeError, OverflowError) as error:
            raise sqlite_file.explain(self._path, error) from error

    async def _write(self, changes: list[Change]) -> None:
        batch = records.last_states(changes)
        statements: Statements = []
        for kind, keys in batch.removals.items():
            statements.append((DELETES[kind], json.dumps(keys)))
        for kind, puts in [*batch.puts.items(), (records.EVENTS, batch.events)]:
            if puts:
                rows = json.dumps([_row(kind, put) for put in puts], ensure_ascii=False)
                statements.append((UPSERTS[kind], rows))
        self._since_trim += len(changes)
        trim = self._since_trim >= TRIM_EVERY_CHANGES
        await self._in_thread(lambda: self._run(statements, trim=trim))
        if trim:
            self._since_trim = 0
        self._since_checkpoint += len(changes)
        if self._since_checkpoint >= CHECKPOINT_EVERY_CHANGES and self._checkpoint is None:
            self._since_checkpoint = 0
            loop = asyncio.get_running_loop()
            self._checkpoint = loop.run_in_executor(self._checkpoints, self._carry_over)
            self._checkpoint.add_done_callback(self._carried_over)

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
            return self._load(connection)
        except BaseException:
            self._lock.close()
            raise

    def _load(self, db: sqlite3.Connection) -> Snapshot:
        def every(kind: Kind, order: str, where: str = "") -> list[Any]:
            cursor = db.execute(f"SELECT * FROM {kind.name} {where} ORDER BY {order}")
            names = [column[0] for column in cursor.description]
            return [kind.build(dict(zip(names, row, strict=True))) for row in cursor]

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
            )
        except (TypeError, ValueError) as error:
            raise sqlite_file.damaged(self._path, f"a record cannot be read: {error}") from None

    def _run(self, statements: Statements, *, trim: bool) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            for statement, value in statements:
                db.execute(statement, (value,))
            if trim:
                self._trim(db)
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise
        if self._log_is_long:
            self._log_is_long = False
            with contextlib.suppress(sqlite3.Error):  # stored it is; the next one tries again
                db.execute("PRAGMA wal_checkpoint(RESTART)")

    def _trim(self, db: sqlite3.Connection) -> None:
        rows = db.execute(
            "SELECT id FROM grants WHERE state = 'ended' ORDER BY ended DESC LIMIT -1 OFFSET ?",
            (self._ended_kept,),
        )
        old = json.dumps([row[0] for row in rows])
        db.execute(
            "DELETE FROM sessions WHERE grant_id IN (SELECT value FROM json_each(?))", (old,)
        )
        db.execute("DELETE FROM grants WHERE id IN (SELECT value FROM json_each(?))", (old,))
        db.execute(
            "DELETE FROM usage WHERE hour < (SELECT max(hour) FROM usage) - ?", (USAGE_HOURS,)
        )
        db.execute(
            "DELETE FROM reservations WHERE state = 'ended' AND id NOT IN (SELECT id FROM "
            "reservations WHERE state = 'ended' ORDER BY ended DESC LIMIT ?)",
            (self._ended_kept,),
        )
        db.execute(
            "DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?",
            (self._events_kept,),
        )

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
        values[place] = json.dumps(values[place], ensure_ascii=False)
    return values
