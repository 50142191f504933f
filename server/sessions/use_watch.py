# SPDX-License-Identifier: Apache-2.0
"""Compares what the driver says that workers use of GPUs with what they say, and tells of excess.

Made and run by server.service; decided in sessions.use_comparison. Where a driver offers no figures
by process, that is said once, and its GPUs are left out. It changes nothing: what follows from an
excess is the operator's to decide, who finds it in the log, in the session's log and in
sluice_peer_lines_total.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from sluice.config.peer_lines import SERVER as PEERS
from sluice.server.gpus.process_use import ProcessUse
from sluice.server.sessions.figures import SessionFigures
from sluice.server.sessions.records import Session, run_at_once
from sluice.server.sessions.use_comparison import Claim, Excess, UseComparison

log = logging.getLogger("sluice.server")

EVERY_SECONDS = 5.0
KIND = "worker: more of a GPU than it says"
UNKNOWN = (
    "GPU %s: its driver does not tell what each process uses (%s); a worker that takes more than "
    "its turns is not noticed"
)


class UseReader(Protocol):
    """The driver, as far as it is asked here; gpus.process_use."""

    async def read(self, uuids: Collection[str]) -> dict[str, ProcessUse]:
        """What processes used of these GPUs since the last time; of some nothing may be known."""
        ...


class UseWatch:
    """One comparison of all sessions."""

    def __init__(
        self,
        reader: UseReader,
        sessions: Mapping[str, Session],
        figures: SessionFigures,
        has_let_go: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`has_let_go`: whether a GPU must not be asked."""
        self._reader = reader
        self._sessions = sessions
        self._figures = figures
        self._has_let_go = has_let_go
        self._clock = clock
        self._comparison = UseComparison()
        self._unknown: set[str] = set()  # GPUs whose driver does not tell

    async def run(self) -> None:
        """Compares for ever."""
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.look()

    async def look(self) -> list[Excess]:
        """Asks the driver once; returns what is told."""
        claims = list(self._claims())
        gpus = {c.gpu for c in claims if not self._has_let_go(c.gpu)} - self._unknown
        answers = await self._reader.read(gpus) if gpus else {}
        for gpu, use in answers.items():
            if use.never:
                self._unknown.add(gpu)
                log.info(UNKNOWN, gpu, use.never)
        seen = {gpu: use.shares for gpu, use in answers.items() if use.shares is not None}
        found = self._comparison.take(self._clock(), seen, claims)
        for excess in found:
            self._tell(excess)
        return found

    def _claims(self) -> list[Claim]:
        return [
            Claim(
                session.id,
                vgpu.gpu,
                session.worker.record.pid,
                said,
                vgpu.held if vgpu.in_turns else None,
            )
            for session in self._sessions.values()
            # through MPS the driver's word is of all that runs at once
            if not session.opening and not run_at_once(session.vgpus)
            for vgpu, said in self._figures.times.said_by(session.id)
        ]

    def _tell(self, excess: Excess) -> None:
        turns = "" if excess.held is None else f", and its turns were {excess.held:.0%}"
        text = (
            f"its worker used {excess.seen:.0%} of GPU {excess.gpu} in the last minute by the "
            f"driver's word, {excess.said:.0%} by its own{turns}"
        )
        session = self._sessions.get(excess.session_id)
        if session:
            session.log.write(text)
        if PEERS.admits(KIND, excess.session_id, logging.WARNING):
            fields = {
                "event": "session.excess",
                "session_id": excess.session_id,
                "gpu": excess.gpu,
                "pid": excess.pid,
                "seen": round(excess.seen, 3),
                "said": round(excess.said, 3),
                "held": None if excess.held is None else round(excess.held, 3),
            }
            log.warning("session %s: %s", excess.session_id, text, extra={"fields": fields})
