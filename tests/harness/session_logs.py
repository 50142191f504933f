# SPDX-License-Identifier: Apache-2.0
"""What the workers of a server have said, in its folder of logs: a file for each session."""

from __future__ import annotations

import re
from pathlib import Path

ENDED = re.compile(r"Z server session=\S+ grant=\S+ ended: ")


class SessionLogs:
    """The logs of the sessions that one server has opened."""

    def __init__(self, log_dir: Path) -> None:
        self._folder = log_dir / "session"
        self._seen: dict[Path, int] = {}

    def __len__(self) -> int:
        """How many sessions were opened so far."""
        return len(self._files())

    def read_text(self) -> str:
        """All of them, what was written to last at the end."""
        files = sorted(self._files(), key=lambda path: path.stat().st_mtime)
        return "".join(path.read_text(errors="replace") for path in files)

    def new_lines(self) -> list[str]:
        """What was logged since the last time."""
        lines = []
        for path in self._files():
            text = path.read_text(errors="replace")
            lines += text[self._seen.get(path, 0) :].splitlines()
            self._seen[path] = len(text)
        return lines

    def ended(self) -> int:
        """How many of them the server has seen end."""
        texts = (path.read_text(errors="replace") for path in self._files())
        return sum(ENDED.search(text) is not None for text in texts)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.log"))
