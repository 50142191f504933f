# SPDX-License-Identifier: Apache-2.0
"""What a host may be to the pool, as `sluice doctor --part` takes it. Used by all of support/."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """What a host may be."""

    CLIENT = "client"
    SERVER = "server"
    CONTROLLER = "controller"
