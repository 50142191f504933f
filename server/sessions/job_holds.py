# SPDX-License-Identifier: Apache-2.0
"""Who lives and wants a job to keep its grant between its sessions: `sluice run --share`.

Used by the listeners through sessions.lifecycle, and by service for the inventory. It promises that
the controller hears of the first that holds a job and, once the last one has ended, of that; a
server that stops says nothing, as its launchers come again to the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from sluice.rpc import pool_pb2 as rpc
from sluice.server.sessions.records import JobPart


class JobHolds:
    """Holds by job and domain."""

    def __init__(self, report: Callable[[rpc.NodeReport], None]) -> None:
        self._report = report
        self._holds: Counter[tuple[str, str]] = Counter()

    def begin(self, part: JobPart) -> None:
        """One more launcher."""
        key = (part.job, part.domain)
        self._holds[key] += 1
        if self._holds[key] == 1:
            self._report(rpc.NodeReport(job_held=_message(key)))

    def end(self, part: JobPart) -> None:
        """A launcher has ended."""
        key = (part.job, part.domain)
        self._holds[key] -= 1
        if self._holds[key] == 0:
            del self._holds[key]
            self._report(rpc.NodeReport(job_released=_message(key)))

    def reports(self) -> list[rpc.JobHold]:
        """All of them, for the inventory."""
        return [_message(key) for key in self._holds]


def _message(key: tuple[str, str]) -> rpc.JobHold:
    return rpc.JobHold(job=key[0], domain=key[1])
