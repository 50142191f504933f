# SPDX-License-Identifier: Apache-2.0
"""The SQLite file itself: its schema and migrations, its lock, its check, and errors in words.

Used by sqlite.py (the running store) and maintenance.py (the commands for operators). It promises
that a file is opened for writing by one process at a time, that a damaged file or one of a newer
version is refused with the way out, and that a migration happens as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sluice.controller.store.store import RecordError, StoreError

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
    """
    CREATE TABLE documents (
      collection TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
      PRIMARY KEY (collection, key)
    ) STRICT;
    ALTER TABLE grants ADD COLUMN project TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE gpus ADD COLUMN architecture TEXT NOT NULL DEFAULT '';
    ALTER TABLE gpus ADD COLUMN numa_node INTEGER NOT NULL DEFAULT -1;
    ALTER TABLE gpus ADD COLUMN nvlink_group TEXT NOT NULL DEFAULT '';
    ALTER TABLE gpus ADD COLUMN fault TEXT NOT NULL DEFAULT '';
    ALTER TABLE nodes ADD COLUMN labels TEXT NOT NULL DEFAULT '[]';
    """,
    """
    ALTER TABLE nodes ADD COLUMN drained INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE grants ADD COLUMN reservation TEXT NOT NULL DEFAULT '';
    CREATE TABLE reservations (
      id TEXT PRIMARY KEY, owner_kind TEXT NOT NULL, owner TEXT NOT NULL, project TEXT NOT NULL,
      count INTEGER NOT NULL, memory_mib INTEGER NOT NULL, compute_percent INTEGER NOT NULL,
      priority INTEGER NOT NULL, node TEXT NOT NULL, created REAL NOT NULL, state TEXT NOT NULL,
      slots TEXT NOT NULL, generation INTEGER NOT NULL, ended REAL, reason TEXT NOT NULL
    ) STRICT;
    CREATE TABLE switches (
      node TEXT NOT NULL, uuid TEXT NOT NULL, mode TEXT NOT NULL, target TEXT NOT NULL,
      preempt INTEGER NOT NULL, reason TEXT NOT NULL, since REAL NOT NULL,
      generation INTEGER NOT NULL, PRIMARY KEY (node, uuid)
    ) STRICT;
    CREATE TABLE quotas (
      project TEXT PRIMARY KEY, vgpus INTEGER NOT NULL, memory_mib INTEGER NOT NULL,
      compute_percent INTEGER NOT NULL, may_preempt INTEGER NOT NULL, generation INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE usage (
      project TEXT NOT NULL, hour INTEGER NOT NULL, vgpu_seconds REAL NOT NULL,
      memory_mib_seconds REAL NOT NULL, compute_percent_seconds REAL NOT NULL,
      until REAL NOT NULL, PRIMARY KEY (project, hour)
    ) STRICT;
    CREATE INDEX usage_by_hour ON usage (hour);
    """,
    """
    ALTER TABLE quotas ADD COLUMN max_priority INTEGER;
    """,
    """
    ALTER TABLE gpus ADD COLUMN pci_address TEXT NOT NULL DEFAULT '';
    ALTER TABLE gpus ADD COLUMN native_problem TEXT NOT NULL DEFAULT '';
    CREATE TABLE attachments (
      node TEXT NOT NULL, uuid TEXT NOT NULL, domain_uuid TEXT NOT NULL, domain_name TEXT NOT NULL,
      state TEXT NOT NULL, since REAL NOT NULL, live INTEGER NOT NULL, config INTEGER NOT NULL,
      reason TEXT NOT NULL, generation INTEGER NOT NULL, PRIMARY KEY (node, uuid)
    ) STRICT;
    """,
    """
    ALTER TABLE grants ADD COLUMN ending TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE reservations ADD COLUMN origin TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE sessions ADD COLUMN relay TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE switches ADD COLUMN step TEXT NOT NULL DEFAULT '';
    ALTER TABLE grants ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
    """,
    """
    ALTER TABLE grants ADD COLUMN cause INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE grants ADD COLUMN ending_cause INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN cause INTEGER NOT NULL DEFAULT 0;
    """,
    """
    ALTER TABLE nodes ADD COLUMN sharing TEXT NOT NULL DEFAULT 'auto';
    ALTER TABLE nodes ADD COLUMN concurrent INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE nodes ADD COLUMN concurrent_problem TEXT NOT NULL DEFAULT '';
    ALTER TABLE nodes ADD COLUMN shares TEXT NOT NULL DEFAULT 'kept';
    ALTER TABLE reservations ADD COLUMN sharing TEXT NOT NULL DEFAULT 'auto';
    """,
    """
    ALTER TABLE usage ADD COLUMN gpu_seconds REAL NOT NULL DEFAULT 0;
    ALTER TABLE usage ADD COLUMN gpu_wait_seconds REAL NOT NULL DEFAULT 0;
    """,
    """
    ALTER TABLE sessions ADD COLUMN disconnected_since REAL;
    """,
    """
    ALTER TABLE grants ADD COLUMN person TEXT NOT NULL DEFAULT '';
    ALTER TABLE grants ADD COLUMN label TEXT NOT NULL DEFAULT '';
    CREATE TABLE usage_shares (
      project TEXT NOT NULL, person TEXT NOT NULL, label TEXT NOT NULL, day INTEGER NOT NULL,
      vgpu_seconds REAL NOT NULL, memory_mib_seconds REAL NOT NULL,
      compute_percent_seconds REAL NOT NULL, until REAL NOT NULL, gpu_seconds REAL NOT NULL,
      gpu_wait_seconds REAL NOT NULL, PRIMARY KEY (project, person, label, day)
    ) STRICT;
    CREATE INDEX usage_shares_by_day ON usage_shares (day);
    """,
    """
    ALTER TABLE sessions ADD COLUMN container_id TEXT NOT NULL DEFAULT '';
    ALTER TABLE sessions ADD COLUMN container_engine TEXT NOT NULL DEFAULT '';
    ALTER TABLE sessions ADD COLUMN container_pod TEXT NOT NULL DEFAULT '';
    ALTER TABLE sessions ADD COLUMN container_owner_uid INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN container_device TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE reservations ADD COLUMN within TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE grants ADD COLUMN suspension TEXT NOT NULL DEFAULT '';
    ALTER TABLE grants ADD COLUMN running_vgpus TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE grants ADD COLUMN suspended_since REAL;
    ALTER TABLE grants ADD COLUMN resumes INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE grants ADD COLUMN suspension_note TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE grants ADD COLUMN with_guest INTEGER NOT NULL DEFAULT 0;
    """,
    """
    ALTER TABLE grants ADD COLUMN moving_to TEXT NOT NULL DEFAULT '';
    """,
)

BUSY_SECONDS = 2.0
COMPLAINTS_SHOWN = 3


def explain(path: Path, error: Exception) -> StoreError:
    """What SQLite said, with what to do about it."""
    if isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | UnicodeError | OverflowError):
        return RecordError(f"{path}: a record cannot be stored: {error}")
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_FULL"):
        way_out = "free space on its disk; nothing that was acknowledged is lost"
    elif name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        way_out = "make the file and its folder writable (is the disk mounted read-only?)"
    elif name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return damaged(path, str(error))
    elif name.startswith("SQLITE_IOERR"):
        way_out = "its disk reports errors (full, read-only or failing); see the kernel's log"
    elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        way_out = "another process holds the file; end it"
    else:
        way_out = "look at the disk's free space and the file's permissions"
    return StoreError(f"{path}: {error}; {way_out}")


def damaged(path: Path, what: str) -> StoreError:
    """The file cannot be trusted."""
    return StoreError(
        f"{path}: is damaged or no store ({what}); put a backup in its place with "
        f"`sluice-controller restore FILE`, or move it away: the servers then report what they "
        "run and the controller adopts it"
    )


def connect(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode, used by one thread at a time."""
    return sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
    )


@contextlib.contextmanager
def only_process(path: Path) -> Iterator[None]:
    """Holds the store's lock; raises StoreError if another process has it."""
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"{lock}: cannot be opened ({error.strerror}); set [controller] store to a place "
            "that the controller may write"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StoreError(
            f"{path}: another sluice-controller uses this store; stop it first"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def make_private(path: Path) -> None:
    """Creates a new store's file so that only its owner reads it."""
    with contextlib.suppress(OSError):  # connecting says it better
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def version_of(connection: sqlite3.Connection) -> int:
    """The store's version; 0 is a new file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def refuse_newer(path: Path, version: int) -> None:
    """A newer controller's file is left alone."""
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path}: is of store version {version}, newer than this controller's "
            f"{len(MIGRATIONS)}; start the newer controller, or name another store"
        )


def check_integrity(path: Path, connection: sqlite3.Connection, *, thorough: bool = False) -> None:
    """Raises StoreError if pages or indices are damaged; thorough compares indices too."""
    pragma = "integrity_check" if thorough else "quick_check"
    lines = [str(row[0]) for row in connection.execute(f"PRAGMA {pragma}")]
    if lines != ["ok"]:
        rest = len(lines) - COMPLAINTS_SHOWN
        more = f" and {rest} more" if rest > 0 else ""
        raise damaged(path, "; ".join(lines[:COMPLAINTS_SHOWN]) + more)


def migrate(path: Path, connection: sqlite3.Connection) -> None:
    """Brings an older file to this version; a copy of it as it was stays beside it."""
    version = version_of(connection)
    refuse_newer(path, version)
    if version == len(MIGRATIONS):
        return
    if version:
        copy_to(connection, path.with_name(f"{path.name}.version-{version}"))
    for number in range(version, len(MIGRATIONS)):
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE; {MIGRATIONS[number]}; "
                f"PRAGMA user_version = {number + 1}; COMMIT;"
            )
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def copy_to(connection: sqlite3.Connection, target: Path) -> None:
    """Writes a whole, consistent copy; the source may be in use. The copy appears complete."""
    unfinished = target.with_name(target.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    make_private(unfinished)
    try:
        copy = sqlite3.connect(unfinished)
        try:
            connection.backup(copy, pages=1024, sleep=0.005)
            copy.execute("PRAGMA journal_mode = DELETE")
        finally:
            copy.close()
        sync(unfinished)
        unfinished.replace(target)
        sync(target.parent)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Makes a file's contents, or a folder's names, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
