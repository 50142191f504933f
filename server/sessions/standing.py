# SPDX-License-Identifier: Apache-2.0
"""How a session stands on its way out and back, by its worker's own word.

Remembered by sessions.suspending, which orders the steps. A worker that was taken over may say
anything, so no size is more than its vGPUs have: else it could have the host's memory counted as
used, and those who wait for its steps wait by what it says that there is to move.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.resources.suspended_contexts import Stays, read_why
from sluice.server.workers.packets import Message

RUNNING, STOPPED, OUT = "running", "stopped", "out"
#: Whose order it is that a session is out: the pool suspended it, or its node needs the room.
CONTROLLER, ARBITER = "controller", "arbiter"
UNDER_WAY = ("stopping", "moving-out", "moving-in")
#: For moving; slow hosts swap, or copy without pinned memory.
MOVE_SECONDS, MOVE_SECONDS_PER_GIB = 30.0, 10.0
MIB_PER_GIB = 1024
#: What is said of each vGPU, and how many times its memory that may be: code is charged besides.
OF_VGPUS = (("staying", 2), ("movable", 1), ("out", 1), ("missing", 1), ("exported", 1))
MOST_KEPT = 2  # what it had, and what it was given for this move
#: Of what is logged of one order.
MOST_STEPS, MOST_STEP_TEXT = 16, 300


@dataclass(slots=True)
class Standing:
    """How a session's worker stands, by its own word."""

    state: str = RUNNING
    movable_mib: int = 0
    planned_mib: int = 0  # that the next move takes of host memory
    new_mib: int = 0  # of that, what does not go into what it keeps
    kept_mib: int = 0  # host memory that it has beyond what is out
    moved_by: str = ""  # of one that is out
    plans: bool = False  # it can have a part of its memory moved; an earlier release's cannot
    takes_driver_memory: bool = False  # and move it into what the driver made; the same
    staying_mib: tuple[int, ...] = ()  # by vGPU of the session
    movable: tuple[int, ...] = ()  # MiB, the same
    out: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()  # of one that found no place: MiB that its GPU has too few free
    exported: tuple[int, ...] = ()  # of what stays: MiB that other processes may have open
    tie: Stays = Stays.NONE  # why its context may not leave its GPUs
    tells_ties: bool = False  # an earlier release's worker does not
    taken: list[str] = field(default_factory=list)  # its steps since it was asked, in words
    owed: int = 0  # answers to orders that it has not given yet
    waiter: asyncio.Future[Message] | None = field(default=None, repr=False)

    def take(self, message: Message, vgpus_mib: Sequence[int]) -> None:
        """What the worker says; `vgpus_mib`: the memory of its session's vGPUs."""
        most = sum(vgpus_mib)
        self.state = message.get("suspension", RUNNING)
        self.staying_mib, self.movable, self.out, self.missing, self.exported = (
            tuple(
                min(message.number(f"vgpu.{place}.{name}_mib"), times * mib)
                for place, mib in enumerate(vgpus_mib)
            )
            for name, times in OF_VGPUS
        )
        self.movable_mib = min(message.number("movable_mib"), most)
        self.planned_mib = min(message.number("planned_mib"), most - sum(self.out))
        new_mib = message.number("new_mib") if "new_mib" in message.fields else self.planned_mib
        self.new_mib = min(new_mib, self.planned_mib)
        self.kept_mib = min(message.number("kept_mib"), MOST_KEPT * most)
        self.plans = "planned_mib" in message.fields
        self.takes_driver_memory = message.get("takes_driver_memory") == "1"
        self.moved_by = message.get("moved_by")
        self.tie = read_why(message.get("context_tie"))
        self.tells_ties = "vgpu.0.exported_mib" in message.fields

    def note(self, step: str, seconds: float, parts: str) -> None:
        """A step was done; `parts`: by its worker."""
        if len(self.taken) < MOST_STEPS:
            within = f" ({parts[:MOST_STEP_TEXT]})" if parts else ""
            self.taken.append(f"{step} {seconds:.3f} s{within}")

    def plan_all(self) -> None:
        """Of one whose worker takes no plans: all of it is to move."""
        self.planned_mib = self.new_mib = self.movable_mib if self.state != OUT else 0

    @property
    def left_over_mib(self) -> int:
        """What it keeps beyond what is out when that which is planned is out, too."""
        return max(0, self.kept_mib + self.new_mib - self.planned_mib)

    @property
    def host_mib(self) -> int:
        """The host memory that it has, or has with the move that is under way or planned."""
        return sum(self.out) + self.planned_mib if self.plans else self.movable_mib


def seconds_for(mib: int) -> float:
    """How long a worker may take to move so much."""
    return MOVE_SECONDS + MOVE_SECONDS_PER_GIB * mib / MIB_PER_GIB
