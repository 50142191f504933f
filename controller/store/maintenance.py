# SPDX-License-Identifier: Apache-2.0
"""What an operator does with a SQLite store: check, backup, restore, upgrade.

Called by controller.__main__. check and backup work while a controller runs; restore and upgrade
take the store's lock and refuse otherwise. Every function returns the line to print and raises
StoreError.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from sluice.controller.store import records, sqlite_file
from sluice.controller.store.sqlite_file import MIGRATIONS
from sluice.controller.store.store import StoreError


def check(path: Path) -> str:
    """Reads the whole file and says what is in it."""
    with _opened(path) as connection:
        sqlite_file.check_integrity(path, connection, thorough=True)
        version = sqlite_file.version_of(connection)
        sqlite_file.refuse_newer(path, version)
        counts = _counts(connection)
    old = "" if version == len(MIGRATIONS) else f" (this controller's is {len(MIGRATIONS)})"
    return f"{path}: sound, store version {version}{old}; {counts}"


def backup(path: Path, target: Path) -> str:
    """Copies the store, in use or not, into a file that restore takes."""
    if target.exists():
        raise StoreError(f"{target}: is there already; name a new file")
    with _opened(path) as connection:
        _copy(connection, target)
    with _opened(target) as connection:
        sqlite_file.check_integrity(target, connection, thorough=True)
        counts = _counts(connection)
    return f"{target}: backup of {path}; {counts}"


def restore(path: Path, source: Path) -> str:
    """Puts a backup in the store's place; the store as it was stays beside it."""
    with _opened(source) as connection:
        sqlite_file.check_integrity(source, connection, thorough=True)
        version = sqlite_file.version_of(connection)
        sqlite_file.refuse_newer(source, version)
        if version == 0:
            raise StoreError(f"{source}: is no store of Sluice; give a file that `backup` wrote")
        path.parent.mkdir(parents=True, exist_ok=True)
        with sqlite_file.only_process(path):
            kept = _move_away(path)
            _copy(connection, path)
            counts = _counts(connection)
    was = f"; the store as it was: {kept}" if kept else ""
    return (
        f"{path}: restored from {source}; {counts}{was}. Start the controller: servers report "
        "what really runs, and the ledger follows that."
    )


def upgrade(path: Path) -> str:
    """Brings the store to this controller's version, as its start would."""
    with _opened(path) as connection, sqlite_file.only_process(path):
        before = sqlite_file.version_of(connection)
        sqlite_file.check_integrity(path, connection, thorough=True)
        sqlite_file.migrate(path, connection)
    if before == len(MIGRATIONS):
        return f"{path}: is of version {before} already"
    return f"{path}: from version {before} to {len(MIGRATIONS)}; as it was: {path}.version-{before}"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    if not path.is_file():
        raise StoreError(f"{path}: there is no such file; name the store or give --config")
    try:
        with contextlib.closing(sqlite_file.connect(path)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise sqlite_file.explain(path, error) from None


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    try:
        sqlite_file.copy_to(connection, target)
    except OSError as error:
        raise StoreError(f"{target}: cannot be written ({error.strerror})") from None


def _counts(connection: sqlite3.Connection) -> str:
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    counts = [
        f"{connection.execute(f'SELECT count(*) FROM {kind.name}').fetchone()[0]} {kind.name}"
        for kind in records.KINDS.values()
        if kind.name in tables  # an older version has fewer
    ]
    return ", ".join(counts)


def _move_away(path: Path) -> Path | None:
    """The file and its log keep belonging together."""
    if not path.exists():
        return None
    kept = path.with_name(f"{path.name}.replaced-{time.strftime('%Y%m%dT%H%M%S')}")
    for suffix in ("-wal", "-shm", ""):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(kept.with_name(kept.name + suffix))
    return kept
