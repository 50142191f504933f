# SPDX-License-Identifier: Apache-2.0
"""How a grant stands towards suspension: part of model.Grant, and as its node says it.

While a grant is suspended its vGPUs are booked with what stays of them on their GPUs and no
compute; what they have when it runs is `running_vgpus`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from sluice.resources.suspended_contexts import ContextPlace, Stays


class SuspensionState(StrEnum):
    """NONE runs. The order to suspend or to resume is under way, or it is SUSPENDED.

    RESUMING is booked with all that it has when it runs.
    """

    NONE = ""
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"


@dataclass(frozen=True, slots=True)
class SuspendedContexts:
    """Where a suspended grant's CUDA contexts are, as its node says; nobody else remembers it."""

    place: ContextPlace
    why: Stays = Stays.NONE  # they stay
    note: str = ""
    mib: tuple[int, ...] = ()  # that they take of each vGPU's GPU
    moves_to: tuple[str, ...] = ()  # GPUs of its node that it may come back on beside its own
    moves_not: str = ""  # why there are none

    @property
    def are_off(self) -> bool:
        """Whether they have left its GPUs."""
        return self.place is ContextPlace.OFF

    @property
    def are_decided(self) -> bool:
        """Whether they would be where they are another time, too; a server's restart is no rule."""
        return self.place is not ContextPlace.UNKNOWN and self.why is not Stays.RESTARTED


def is_undecided(
    state: SuspensionState, moving_to: str, contexts: SuspendedContexts | None
) -> bool:
    """Whether a grant is out that is to move, and nobody knows yet whether it can.

    So it is after a restart, until its node comes and says where its contexts are.
    """
    open_yet = contexts is None or contexts.place is ContextPlace.LEAVING
    return state is SuspensionState.SUSPENDED and bool(moving_to) and open_yet


@dataclass(frozen=True, slots=True)
class ReportedSuspension:
    """What a node says of a grant that it runs."""

    grant_id: str
    suspended: bool
    error: str = ""  # why an order was not carried out
    staying_mib: tuple[int, ...] = ()  # of each vGPU, where it is suspended
    busy: bool = False  # an order is being carried out
    contexts: SuspendedContexts | None = None  # of a suspended one; None: an older server's
    gpu_uuids: tuple[str, ...] = ()  # of each vGPU; none: as the grant has them
    serial: int | None = None  # of the order that it has carried out last; None: an older server's
    moving_to: str = ""  # the GPU that an order has it go to, as long as it is not there


@dataclass(frozen=True, slots=True)
class SuspendOrder:
    """A server must suspend what it runs for this grant, or resume it."""

    node: str
    grant_id: str
    resume: bool
    promised: bool = False  # its GPUs' memory is promised more than once
    gpu_uuid: str = ""  # it is resumed there, in the place of its one GPU; "": where it is
    serial: int = field(default=0, compare=False)  # above those of the grant's orders before it
    moving_to: str = field(default="", compare=False)  # of a suspension: where it is to go then
