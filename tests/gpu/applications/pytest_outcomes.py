# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: what became of each test, a line of JSON each, written as it happens.

`-p pytest_outcomes` with SLUICE_OUTCOMES naming the file. A test that began and has no other line
is one during which the process died; `at` says when it began (seconds, CLOCK_MONOTONIC).
SLUICE_WANTED names a file with a list of tests, in JSON, where no others are to run.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

FILE = Path(os.environ["SLUICE_OUTCOMES"])
WANTED = os.environ.get("SLUICE_WANTED")
worst: dict[str, tuple[int, str, str]] = {}
RANK = {"passed": 0, "skipped": 1, "failed": 2}


def write(line: dict[str, Any]) -> None:
    """Append, at once: the process may die in the next test."""
    with FILE.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Only those that are wanted."""
    if WANTED:
        names = set(json.loads(Path(WANTED).read_text()))
        items[:] = [item for item in items if item.nodeid in names]


def pytest_runtest_logstart(nodeid: str, location: Any) -> None:
    """The test begins."""
    del location
    write({"case": nodeid, "outcome": "begun", "at": time.monotonic()})


def pytest_runtest_logreport(report: Any) -> None:
    """Set-up, call or teardown is over: the worst of the three counts."""
    outcome = "skipped" if getattr(report, "wasxfail", None) is not None else report.outcome
    reason = ""
    if outcome != "passed":
        said = report.longrepr
        reason = said[2] if isinstance(said, tuple) else str(getattr(said, "reprcrash", said))
    found = (RANK[outcome], outcome, reason[-400:])
    worst[report.nodeid] = max(worst.get(report.nodeid, found), found)


def pytest_runtest_logfinish(nodeid: str, location: Any) -> None:
    """The test is over."""
    del location
    _, outcome, reason = worst.pop(nodeid, (0, "passed", ""))
    write({"case": nodeid, "outcome": outcome, "reason": reason})


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be read has one case: itself."""
    if report.outcome != "passed":
        said = report.longrepr
        reason = said[2] if isinstance(said, tuple) else str(said)
        write({"case": report.nodeid, "outcome": report.outcome, "reason": reason[-400:]})
