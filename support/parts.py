# SPDX-License-Identifier: Apache-2.0
"""What a host may be to the pool, as `sluice doctor --part` takes it, and where its services log.

Used by all of support/.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

from sluice.config.sections import LOG_DIR


class Part(StrEnum):
    """What a host may be."""

    CLIENT = "client"
    SERVER = "server"
    CONTROLLER = "controller"


def log_folder_of(service: str, configured: Path) -> Path:
    """Where a service logs: its unit gives it a folder of its own where no other is configured."""
    own = Path(LOG_DIR) / service
    # the link may lead where only root looks
    return own if configured == Path(LOG_DIR) and os.path.lexists(own) else configured
