# SPDX-License-Identifier: Apache-2.0
"""One log file per session: the worker's standard error and the server's lines about the session.

Used by sessions.lifecycle. The worker has the file open for appending before it has a session; it
becomes the session's by being renamed, so both write to the same file. Every line of the server's
carries the grant's and the session's id, and goes to server.log too.
"""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path

from sluice.config.log_ids import request_id

log = logging.getLogger("sluice.server")


class SessionLog:
    """The log file of one session."""

    def __init__(self, path: Path, session_id: str, grant_id: str, asked_by: str = "") -> None:
        """`asked_by` is the id of the request that the session was opened for."""
        self.path = path
        self._prefix = f"session={session_id} grant={grant_id}"
        self._ids = {"session_id": session_id, "grant_id": grant_id}
        self._asked_by = asked_by

    @classmethod
    def take_over(
        cls, folder: Path, worker_log: str, session_id: str, grant_id: str, asked_by: str = ""
    ) -> SessionLog:
        """Makes the worker's log the session's."""
        path = session_log_path(folder, session_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            Path(worker_log).rename(path)
        except OSError as error:
            log.warning("session %s: %s cannot be renamed: %s", session_id, worker_log, error)
            path = Path(worker_log)
        return cls(path, session_id, grant_id, asked_by)

    def write(self, text: str, level: int = logging.INFO) -> None:
        """Adds a line, to server.log too."""
        ids = dict(self._ids)
        if requester := request_id() or self._asked_by:
            ids["request_id"] = requester
        fields = {**ids, "message": text}
        log.log(level, "%s %s", self._prefix, text, extra={"fields": fields})
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        line = f"{stamp}.{int(now % 1 * 1000):03d}Z server {self._prefix} {text}\n"
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        except OSError:
            return
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def session_log_path(folder: Path, session_id: str) -> Path:
    """Where a session's log is."""
    return folder / "session" / f"{session_id}.log"


def end_of(path: Path, most_bytes: int) -> str:
    """The last so many bytes of a log; raises OSError."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
        return file.read(most_bytes).decode(errors="replace")


def read_session_log(folder: Path, session_id: str, tail_bytes: int) -> str:
    """The end of a session's log; raises FileNotFoundError with what to do."""
    if not re.fullmatch(r"[0-9a-f]{1,32}", session_id):
        raise FileNotFoundError(f"{session_id!r} is no session id")
    path = session_log_path(folder, session_id)
    try:
        return end_of(path, tail_bytes)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is not there (rotated away?)") from None
