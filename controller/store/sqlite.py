# SPDX-License-Identifier: Apache-2.0
"""The store in one SQLite file (WAL), with group commit.

Used by the controller's service. It owns the file and one writer thread, because a commit waits
for the disk and the event loop must not; commits that arrive while one is under way go to disk
together, so that their cost is shared. The standard library's sqlite3 is used on purpose: the
records are flat and few, and a mapping layer would cost more than the write itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeVar

from sluice.controller.pool.model import (
    Change,
    Event,
    Gpu,
    GpuRemoved,
    Grant,
    GrantState,
    Node,
    NodeState,
    Session,
    SessionState,
    Vgpu,
)
from sluice.controller.pool.pool import Snapshot
from sluice.controller.store.store import StoreError

# each entry takes the store from the version of its index to the next; append only
MIGRATIONS = (
    """
    CREATE TABLE nodes (
      name TEXT PRIMARY KEY, address TEXT NOT NULL, port INTEGER NOT NULL, version TEXT NOT NULL,
      vgpu_count INTEGER NOT NULL, state TEXT NOT NULL, generation INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE gpus (
      node TEXT NOT NULL, uuid TEXT NOT NULL, model TEXT NOT NULL, memory_mib INTEGER NOT NULL,
      software INTEGER NOT NULL, context_overhead_mib INTEGER NOT NULL,
      reserved_mib INTEGER NOT NULL, PRIMARY KEY (node, uuid)
    ) STRICT;
    CREATE TABLE grants (
      id TEXT PRIMARY KEY, request_id TEXT NOT NULL, node TEXT NOT NULL, vgpus TEXT NOT NULL,
      priority INTEGER NOT NULL, created REAL NOT NULL, state TEXT NOT NULL,
      generation INTEGER NOT NULL, ended REAL, reason TEXT NOT NULL
    ) STRICT;
    CREATE INDEX grants_by_state ON grants (state, created);
    CREATE TABLE sessions (
      id TEXT PRIMARY KEY, grant_id TEXT NOT NULL, node TEXT NOT NULL, channel TEXT NOT NULL,
      host TEXT NOT NULL, program TEXT NOT NULL, client_pid INTEGER NOT NULL,
      client_uid INTEGER NOT NULL, domain_uuid TEXT NOT NULL, domain_name TEXT NOT NULL,
      started REAL NOT NULL, state TEXT NOT NULL, ended REAL, reason TEXT NOT NULL
    ) STRICT;
    CREATE INDEX sessions_by_grant ON sessions (grant_id);
    CREATE TABLE events (
      number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
      subject TEXT NOT NULL, text TEXT NOT NULL
    ) STRICT;
    CREATE INDEX events_by_subject ON events (subject, number);
    """,
    """
    ALTER TABLE grants ADD COLUMN job TEXT NOT NULL DEFAULT '';
    ALTER TABLE grants ADD COLUMN job_domain TEXT NOT NULL DEFAULT '';
    ALTER TABLE grants ADD COLUMN job_processes INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN request_id TEXT NOT NULL DEFAULT '';
    ALTER TABLE sessions ADD COLUMN chosen TEXT NOT NULL DEFAULT '[]';
    """,
)
TABLES = {Node: "nodes", Gpu: "gpus", Grant: "grants", Session: "sessions", Event: "events"}
TRIM_EVERY_COMMITS = 1000

T = TypeVar("T")


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
        self._connection: sqlite3.Connection | None = None
        self._waiting: list[tuple[Sequence[Change], asyncio.Future[None]]] = []
        self._flush: asyncio.Task[None] | None = None
        self._commits = 0

    async def load(self) -> Snapshot:
        """Opens the file (creating or migrating it) and returns its state."""
        return await self._in_thread(self._open_and_load)

    async def commit(self, changes: Sequence[Change]) -> None:
        """Stores the changes, together with others that arrive meanwhile."""
        if not changes:
            return
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((changes, done))
        if self._flush is None:
            self._flush = asyncio.create_task(self._flush_waiting())
        await done

    async def events(self, limit: int, subject: str | None = None) -> list[Event]:
        """Returns the newest events, newest first."""

        def read() -> list[Event]:
            where, values = ("WHERE subject = ?", (subject, limit)) if subject else ("", (limit,))
            rows = self._db.execute(
                f"SELECT time, kind, subject, text FROM events {where} "
                "ORDER BY number DESC LIMIT ?",
                values,
            )
            return [Event(*row) for row in rows]

        return await self._in_thread(read)

    async def close(self) -> None:
        """Waits for commits under way and closes the file."""
        if self._flush:
            await self._flush

        def close() -> None:
            if self._connection:
                self._connection.close()
                self._connection = None

        await self._in_thread(close)
        self._thread.shutdown()

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self._path}: the store is not open")
        return self._connection

    async def _in_thread(self, step: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, step)
        except sqlite3.Error as error:
            raise self._explain(error) from error

    def _explain(self, error: sqlite3.Error) -> StoreError:
        return StoreError(
            f"{self._path}: {error}; look at the disk's free space, the file's permissions and "
            "whether another controller uses it"
        )

    async def _flush_waiting(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    await self._in_thread(
                        lambda batch=batch: self._write([c for cs, _ in batch for c in cs])  # type: ignore[misc]
                    )
                except StoreError as error:
                    for _, done in batch:
                        if not done.done():
                            done.set_exception(error)
                else:
                    for _, done in batch:
                        if not done.done():
                            done.set_result(None)
        finally:
            self._flush = None

    # in the writer thread

    def _open_and_load(self) -> Snapshot:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{self._path.parent}: cannot be created ({error.strerror}); "
                "set [controller] store to a place that the controller may write"
            ) from None
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, timeout=2.0
        )
        self._connection = connection
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        self._migrate(connection)
        return self._load(connection)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise StoreError(
                f"{self._path}: is of store version {version}, newer than this controller's "
                f"{len(MIGRATIONS)}; start the newer controller, or name another store"
            )
        for number in range(version, len(MIGRATIONS)):
            connection.executescript(
                f"BEGIN; {MIGRATIONS[number]}; PRAGMA user_version = {number + 1}; COMMIT;"
            )

    def _load(self, db: sqlite3.Connection) -> Snapshot:
        def rows(table: str, order: str) -> list[dict[str, Any]]:
            cursor = db.execute(f"SELECT * FROM {table} ORDER BY {order}")
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

        nodes = [Node(**{**r, "state": NodeState(r["state"])}) for r in rows("nodes", "name")]
        gpus = [Gpu(**{**r, "software": bool(r["software"])}) for r in rows("gpus", "node, uuid")]
        grants = []
        for r in rows("grants", "created"):
            vgpus = tuple(Vgpu(**vgpu) for vgpu in json.loads(r["vgpus"]))
            grants.append(Grant(**{**r, "state": GrantState(r["state"]), "vgpus": vgpus}))
        sessions = [
            Session(
                **{
                    **r,
                    "state": SessionState(r["state"]),
                    "chosen": tuple(json.loads(r["chosen"])),
                }
            )
            for r in rows("sessions", "started")
        ]
        return Snapshot(nodes, gpus, grants, sessions)

    def _write(self, changes: list[Change]) -> None:
        db = self._db
        db.execute("BEGIN IMMEDIATE")
        try:
            for change in changes:
                self._put(db, change)
            self._commits += 1
            if self._commits % TRIM_EVERY_COMMITS == 0:
                self._trim(db)
            db.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            raise

    def _put(self, db: sqlite3.Connection, change: Change) -> None:
        if isinstance(change, GpuRemoved):
            db.execute("DELETE FROM gpus WHERE node = ? AND uuid = ?", (change.node, change.uuid))
            return
        record = asdict(change)
        record.pop("last_seen", None)
        if isinstance(change, Grant):
            record["vgpus"] = json.dumps(record["vgpus"])
        if isinstance(change, Session):
            record["chosen"] = json.dumps(record["chosen"])
        columns = ", ".join(record)
        marks = ", ".join("?" * len(record))
        db.execute(
            f"INSERT OR REPLACE INTO {TABLES[type(change)]} ({columns}) VALUES ({marks})",
            tuple(record.values()),
        )

    def _trim(self, db: sqlite3.Connection) -> None:
        db.execute(
            "DELETE FROM grants WHERE state = 'ended' AND id NOT IN "
            "(SELECT id FROM grants WHERE state = 'ended' ORDER BY ended DESC LIMIT ?)",
            (self._ended_kept,),
        )
        db.execute("DELETE FROM sessions WHERE grant_id NOT IN (SELECT id FROM grants)")
        db.execute(
            "DELETE FROM events WHERE number <= (SELECT max(number) FROM events) - ?",
            (self._events_kept,),
        )
