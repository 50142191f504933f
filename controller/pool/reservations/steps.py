# SPDX-License-Identifier: Apache-2.0
"""What can be asked for in one go of many reservations, and what became of each.

Made by controller.api.reservation_batch, taken by operations.ReservationOperations.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.controller.pool.impossible import Impossible, Outdated, Unknown
from sluice.controller.pool.model import Reservation


@dataclass(frozen=True, slots=True)
class Create:
    """Hold room for an owner; `wait`: or let it wait for room."""

    reservation: Reservation
    wait: bool


@dataclass(frozen=True, slots=True)
class Resize:
    """Change one's size; zeros leave a size as it is."""

    id: str
    count: int
    memory_mib: int
    compute_percent: int
    generation: int | None = None  # that the caller has seen; None: whatever it is


@dataclass(frozen=True, slots=True)
class End:
    """Give one's room back; what draws on it goes on."""

    id: str
    reason: str
    generation: int | None = None


ReservationStep = Create | Resize | End
Outcome = Reservation | Impossible | Unknown | Outdated
