# SPDX-License-Identifier: Apache-2.0
"""Sets up a service's logging from its [log] section.

Called once by each service's main. Screen lines go to standard error; file lines to
log_dir/<service>.log; as text, or as one JSON object each, with the ids that are bound
(config.log_ids). A log folder that cannot be written is an error on the screen, never the end of
the service. Neither fills a disk: the file is rotated at a size and so many old ones are kept, the
screen (which is the journal's) gets so many lines a second. What peers cause is limited before it
gets here (config.peer_lines).
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from sluice.config.log_ids import bound_ids
from sluice.config.peer_lines import CONTROLLER, SERVER, PeerLines
from sluice.config.sections import LogSection

WITH_TIME = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOOK_EVERY_SECONDS = 1.0
#: So many times the lines of a single peer's kind: they are not told apart by peer.
OF_LIBRARIES = 4
WITHOUT_TIME = "%(levelname)s %(name)s: %(message)s"
#: Of the screen: what the services of a large pool write when they begin fits into the burst.
SCREEN_LINES_PER_SECOND = 200.0
SCREEN_BURST_LINES = 5000.0
LIBRARIES = ("asyncio", "grpc", "uvicorn")  # which warn, and would print it as they like

# what no line of ours shows is not looked up for each line (Python's Logging HOWTO, "Optimization")
logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
logging._srcfile = None


class _Lines(logging.Formatter):
    """Formats a line once for screen and file, and the time once a second."""

    second = 0
    second_text = ""

    def format(self, record: logging.LogRecord) -> str:
        """The record's line."""
        line: str | None = getattr(record, "sluice_line", None)
        if line is None:
            line = record.sluice_line = super().format(record)
        return line

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """As logging writes it: local time with milliseconds."""
        second = int(record.created)
        if second != self.second:
            text = time.strftime(self.default_time_format, self.converter(record.created))
            self.second, self.second_text = second, text
        return f"{self.second_text},{record.msecs:03.0f}"


class LogFile(logging.handlers.WatchedFileHandler):
    """Rotated at `most_bytes`, of which `kept` old ones stay beside it: FILE.1 is the youngest.

    Reopened also when logrotate has moved it away. Its size and that are looked for once a second,
    not per line; in between lines are counted.
    """

    def __init__(
        self,
        path: Path,
        most_bytes: int,
        kept: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most_bytes` 0: it is never rotated. Raises OSError."""
        self._most_bytes = most_bytes
        self._kept = kept
        self._monotonic = monotonic
        self._looked = -LOOK_EVERY_SECONDS
        self._bytes = 0
        super().__init__(path)

    def format(self, record: logging.LogRecord) -> str:
        """The record's line; its size is noted."""
        line = super().format(record)
        self._bytes += len(line) + 1
        return line

    def reopenIfNeeded(self) -> None:  # noqa: N802
        """Called before each line."""
        now = self._monotonic()
        if now - self._looked >= LOOK_EVERY_SECONDS:
            self._looked = now
            super().reopenIfNeeded()
            if self.stream:
                self._bytes = os.fstat(self.stream.fileno()).st_size
        if self._most_bytes and self._bytes >= self._most_bytes:
            self._rotate()

    def _rotate(self) -> None:
        self._bytes = 0
        with contextlib.suppress(OSError):  # it goes on in the same file, and tries again
            for number in range(self._kept, 0, -1):
                younger = f"{self.baseFilename}.{number - 1}" if number > 1 else self.baseFilename
                if Path(younger).exists():
                    Path(younger).replace(f"{self.baseFilename}.{number}")
            if not self._kept:
                Path(self.baseFilename).unlink(missing_ok=True)
            super().reopenIfNeeded()


class Screen(logging.StreamHandler[TextIO]):
    """Writes so many lines a second, and says how many it left out."""

    def __init__(self, stream: TextIO, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._monotonic = monotonic
        self._room = SCREEN_BURST_LINES
        self._then = monotonic()
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Called for each line."""
        now = self._monotonic()
        more = (now - self._then) * SCREEN_LINES_PER_SECOND
        self._room, self._then = min(SCREEN_BURST_LINES, self._room + more), now
        if self._room < 1:
            self._left_out += 1
            return
        self._room -= 1
        if self._left_out:
            text = f"{self._left_out:,} lines before this one are left out here"
            self._left_out = 0
            super().emit(logging.LogRecord("sluice", logging.WARNING, "", 0, text, None, None))
        super().emit(record)


class JsonLines(logging.Formatter):
    """One object a line: time, level, service, logger, ids, message.

    What a call gives as `extra={"fields": {...}}` is added, and overrules what is bound.
    """

    def __init__(self, service: str, *, with_time: bool = True) -> None:
        super().__init__()
        self._service = service
        self._with_time = with_time

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, object] = {}
        if self._with_time:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            line["time"] = f"{stamp}.{int(record.msecs):03d}Z"
        line |= {"level": record.levelname, "service": self._service, "logger": record.name}
        line |= bound_ids()
        line["message"] = record.getMessage()
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class OfLibraries(logging.Handler):
    """Passes on some of what libraries warn of, which is mostly what peers did; sums up the rest.

    A kind is a logger and a level: a library's text may have a peer's words in it.
    """

    def __init__(self, peers: PeerLines, handlers: list[logging.Handler]) -> None:
        super().__init__()
        self._peers = peers
        self._handlers = list(handlers)

    def emit(self, record: logging.LogRecord) -> None:
        """Called for each line."""
        kind = f"{record.name}: {record.levelname}"
        if self._peers.admits(kind, record.name, record.levelno, OF_LIBRARIES):
            for handler in self._handlers:
                if record.levelno >= handler.level:
                    handler.handle(record)


def set_up_logging(section: LogSection, service: str) -> None:
    """Directs the logger "sluice" to screen and file as the section says."""
    formatter = (
        JsonLines(service, with_time=section.log_with_time)
        if section.log_format == "json"
        else _Lines(WITH_TIME if section.log_with_time else WITHOUT_TIME)
    )
    handlers: list[logging.Handler] = []
    if section.log_to_screen:
        screen = Screen(sys.stderr)
        screen.setLevel(section.log_level)
        handlers.append(screen)
    if section.log_to_file:
        try:
            section.log_dir.mkdir(parents=True, exist_ok=True)
            path = section.log_dir / f"{service}.log"
            file = LogFile(path, section.log_file_mib << 20, section.log_files_kept)
        except OSError as error:
            print(
                f"sluice: {section.log_dir}/{service}.log cannot be written ({error.strerror}); "
                "set [log] log_dir or log_to_file = false",
                file=sys.stderr,
            )
        else:
            file.setLevel(section.file_log_level)
            handlers.append(file)
    for handler in handlers:
        handler.setFormatter(formatter)
    lowest = min((handler.level for handler in handlers), default=logging.CRITICAL)
    _direct("sluice", handlers, lowest)
    peers = {"server": SERVER, "controller": CONTROLLER}.get(service) or PeerLines(
        logging.getLogger(f"sluice.{service}")
    )
    for name in LIBRARIES:
        _direct(name, [OfLibraries(peers, handlers)], max(lowest, logging.WARNING))


def _direct(name: str, handlers: list[logging.Handler], level: int) -> None:
    logger = logging.getLogger(name)
    logger.handlers[:] = handlers
    logger.propagate = False
    logger.setLevel(level)
