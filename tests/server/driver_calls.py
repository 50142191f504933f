# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the driver's checkpoint of processes, as a test has it go; Contexts over it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from sluice.resources.ends import End
from sluice.server.checkpoints.caller import Answer
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.sessions.context_rules import Rules
from sluice.server.sessions.contexts import Contexts
from sluice.server.sessions.records import Session
from sluice.server.sessions.swap_memory import SwapMemory

STEPS = {
    "lock": ("running", "locked"),
    "checkpoint": ("locked", "checkpointed"),
    "restore": ("checkpointed", "locked"),
    "unlock": ("locked", "running"),
}


class FakeCaller:
    """Answers as a driver does, or as is next for a call: an error's name, or what is raised."""

    def __init__(self) -> None:
        self.states: dict[int, str] = defaultdict(lambda: "running")  # by pid
        self.next: dict[str, deque[str | Exception | Callable[[], str]]] = defaultdict(deque)
        self.asked: list[str] = []
        self.maps: list[dict[str, str]] = []  # of restores
        self.free: int | None = None
        self.free_of: dict[str, int] = {}  # by GPU, where it is another

    async def state(self, process: Any) -> Answer:
        """As a Caller's."""
        return await self.call("state", process, 1.0)

    async def call(
        self,
        what: str,
        process: Any,
        seconds: float,
        timeout_ms: int = 0,
        gpus: Mapping[str, str] | None = None,
    ) -> Answer:
        """The same."""
        del seconds, timeout_ms
        self.asked.append(what)
        if gpus:
            self.maps.append(dict(gpus))
        planned = self.next[what].popleft() if self.next[what] else ""
        if callable(planned):
            planned = planned()
        if isinstance(planned, Exception):
            raise planned
        if planned or what == "state":
            return Answer(planned, self.states[process.pid], 0.0)
        before, after = STEPS[what]
        if self.states[process.pid] != before:
            return Answer("illegal_state", self.states[process.pid], 0.0)
        self.states[process.pid] = after
        return Answer("", after, 0.0)

    async def free_mib(self, gpu_uuid: str) -> int | None:
        """The same."""
        return self.free_of.get(gpu_uuid, self.free)


class Ended:
    """Sessions that were ended, with why."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, session: Session, why: End) -> None:
        self.said.append(f"{session.id}: {why.text}")


def contexts_over(
    swap: SwapMemory,
    gpus: Sequence[LocalGpu] = (),
    caller: FakeCaller | None = None,
    ended: Ended | None = None,
    *,
    enabled: bool = True,
) -> Contexts:
    """Of these GPUs; without any nothing is booked for a context, and none leaves."""
    return Contexts(
        cast(Any, caller or FakeCaller()),
        lambda: gpus,
        swap,
        Rules(enabled),
        lambda _: None,
        ended or Ended(),
    )
