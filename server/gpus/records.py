# SPDX-License-Identifier: Apache-2.0
"""What is remembered of each GPU over restarts: how its checks went, and what is wrong with it.

Owned by gpus.health. One JSON file for each UUID in `[server] state_dir`/gpus, replaced as a
whole. What the checks said counts for the driver that they ran on only; a fault counts until the
operator clears it. A folder that cannot be written costs the memory of these, not the service.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

log = logging.getLogger("sluice.server")


@dataclass(slots=True)
class GpuRecord:
    """Of one GPU. Empty texts: there is nothing to say."""

    uuid: str
    fault: str = ""  # why it is out of the pool, until the operator clears it
    worn: str = ""  # why it takes nothing new, until then
    since: float = 0.0  # of either
    driver: str = ""  # that it was checked on
    outcome: str = ""  # of its checks; empty: it was never checked
    text: str = ""
    checked: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)


class GpuRecords:
    """The folder of records."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / "gpus"
        self._complained = False

    def read(self, uuid: str) -> GpuRecord:
        """What is remembered of a GPU."""
        path = self._path(uuid)
        try:
            stored: dict[str, Any] = json.loads(path.read_text())
            known = {name: stored[name] for name in GpuRecord.__slots__ if name in stored}
            return GpuRecord(**{**known, "uuid": uuid})
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s cannot be read (%s); GPU %s is checked anew", path, error, uuid)
        return GpuRecord(uuid)

    def write(self, record: GpuRecord) -> None:
        """Remembers it."""
        path = self._path(record.uuid)
        scratch = path.with_suffix(".tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            scratch.write_text(json.dumps(asdict(record), indent=1) + "\n")
            scratch.replace(path)
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning(
                    "%s cannot be written (%s): GPUs are checked at each start and faults are "
                    "forgotten; set [server] state_dir",
                    path,
                    error.strerror,
                )

    def _path(self, uuid: str) -> Path:
        return self._folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.json"
