# SPDX-License-Identifier: Apache-2.0
"""Stops all sessions of a grant: those of a job at one cut, as they wait for one another.

Used by sessions.suspending. It promises that either all of them stand still behind it, or that who
asked is told why not; what was stopped by then is his to wake.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from sluice.server.controller.orders import OrderRefused
from sluice.server.sessions.records import Session
from sluice.server.sessions.standing import OUT, STOPPED, Standing
from sluice.server.sessions.suspension_steps import ANSWER_SECONDS, SuspensionSteps, for_all


class CommonStop:
    """`hold`, `go_on`: of sessions.turn_pages, by which a job comes to a cut and stays there."""

    def __init__(
        self,
        steps: SuspensionSteps,
        of: Callable[[Session], Standing],
        drain_seconds: float,
        hold: Callable[[str, float, float], Awaitable[bool]],
        go_on: Callable[[str], None],
    ) -> None:
        self._steps = steps
        self._of = of
        self._drain_seconds = drain_seconds
        self._hold = hold
        self._go_on = go_on

    async def stop(self, grant_id: str, sessions: Sequence[Session]) -> None:
        """All of them.

        Lagging ranks go on until nothing waits for a peer, none passes its gate any more, and then
        each is stopped. Raises OrderRefused.
        """
        running = [s for s in sessions if self._of(s).state not in (STOPPED, OUT)]
        job = len(sessions) > 1 or any(len(s.places) > 1 for s in sessions)
        if not job or not running:
            return await for_all(sessions, self._steps.stop)
        try:
            if not await self._at_cut(grant_id, running):
                # somebody had begun more just then: once more
                stopped = [s for s in running if self._of(s).state == STOPPED]
                await for_all(stopped, self._steps.wake)
                await self._at_cut(grant_id, running, again=False)
        finally:
            self._go_on(grant_id)  # who was stopped begins nothing with it

    async def _at_cut(
        self, grant_id: str, sessions: Sequence[Session], *, again: bool = True
    ) -> bool:
        """False: they did not stop although they had come to their cut, and it is tried again."""
        began, seconds = time.monotonic(), self._drain_seconds
        still = await self._hold(grant_id, seconds, 2 * seconds + ANSWER_SECONDS)
        for session in sessions:
            self._of(session).note("cut" if still else "no cut", time.monotonic() - began, "")
        try:
            await for_all(sessions, self._steps.stop)
        except OrderRefused:
            if not (still and again):
                raise
            return False
        return True
