# SPDX-License-Identifier: Apache-2.0
"""The servers' own account of what ran when: one file of JSON lines per node, appended to.

Written by node.py, read by checker.py and by the node's next process after a kill -9. A line is
written before what it says counts, in one write, so that a kill loses none. It stands for what
outlives a real server: its workers. Times are the machine's monotonic clock, the same for every
process.

| kind | fields | says |
| --- | --- | --- |
| boot | gpus, overhead_mib, limits | a server process began; what its GPUs have |
| line | up | the stream to the controller was welcomed, or ended |
| ask | request, priority, wait, memory_mib, percent, count, preempt, label | a process asks |
| waiting | request, text | the queue's line for it |
| answer | request, grant, status, text | granted (status 0), refused, or -1: nobody heard it |
| start | session, grant, request, vgpus, until, channel, priority, program | a worker runs |
| resize | grant, vgpus | its limits changed |
| suspend | grant, staying | its worker stands still; so many MiB of its vGPUs stay |
| resume | grant | it goes on with all of them |
| end | session, grant, cause, text | its worker is gone; cause: done, ordered, unused |
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a node's account."""

    at: float  # monotonic seconds
    node: str
    kind: str
    fields: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


class Account:
    """A node's file, open for appending."""

    def __init__(self, folder: Path, node: str) -> None:
        self._node = node
        self._path = folder / f"{node}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)

    def write(self, kind: str, **fields: Any) -> None:
        """Appends a line; it is there whatever becomes of this process."""
        line = json.dumps({"at": time.monotonic(), "kind": kind, **fields}) + "\n"
        os.write(self._file, line.encode())

    def read(self) -> list[Line]:
        """Everything so far, of earlier processes too."""
        return read_account(self._path)


def read_account(path: Path) -> list[Line]:
    """The lines of one node, oldest first."""
    lines = []
    for text in path.read_text().splitlines():
        fields = json.loads(text)
        lines.append(Line(fields.pop("at"), path.stem, fields.pop("kind"), fields))
    return lines


def read_accounts(folder: Path) -> list[Line]:
    """Every node's lines in the order of time."""
    lines = [line for path in folder.glob("*.jsonl") for line in read_account(path)]
    return sorted(lines, key=lambda line: line.at)
