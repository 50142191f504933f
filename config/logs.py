# SPDX-License-Identifier: Apache-2.0
"""Sets up a service's logging from its [log] section.

Called once by each service's main. Screen lines go to standard error; file lines to
log_dir/<service>.log. A log folder that cannot be written is an error on the screen, never the end
of the service.
"""

from __future__ import annotations

import logging
import logging.handlers
import sys
import time

from sluice.config.sections import LogSection

WITH_TIME = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOOK_EVERY_SECONDS = 1.0
WITHOUT_TIME = "%(levelname)s %(name)s: %(message)s"

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


class _LogFile(logging.handlers.WatchedFileHandler):
    """Reopened when logrotate has moved it away; that is looked for once a second, not per line."""

    looked = 0.0

    def reopenIfNeeded(self) -> None:  # noqa: N802
        """Called before each line."""
        now = time.monotonic()
        if now - self.looked >= LOOK_EVERY_SECONDS:
            self.looked = now
            super().reopenIfNeeded()


def set_up_logging(section: LogSection, service: str) -> None:
    """Directs the logger "sluice" to screen and file as the section says."""
    logger = logging.getLogger("sluice")
    logger.handlers.clear()
    logger.propagate = False
    formatter = _Lines(WITH_TIME if section.log_with_time else WITHOUT_TIME)
    lowest = logging.CRITICAL
    if section.log_to_screen:
        screen = logging.StreamHandler(sys.stderr)
        screen.setLevel(section.log_level)
        screen.setFormatter(formatter)
        logger.addHandler(screen)
        lowest = min(lowest, screen.level)
    if section.log_to_file:
        try:
            section.log_dir.mkdir(parents=True, exist_ok=True)
            file = _LogFile(section.log_dir / f"{service}.log")
        except OSError as error:
            print(
                f"sluice: {section.log_dir}/{service}.log cannot be written ({error.strerror}); "
                "set [log] log_dir or log_to_file = false",
                file=sys.stderr,
            )
        else:
            file.setLevel(section.file_log_level)
            file.setFormatter(formatter)
            logger.addHandler(file)
            lowest = min(lowest, file.level)
    logger.setLevel(lowest)
