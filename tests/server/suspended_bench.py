# SPDX-License-Identifier: Apache-2.0
"""Sessions of one grant that are suspended over a FakeCaller: for tests of their contexts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import GrantedVgpu
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.sessions.context_rules import ROOM_MIB
from sluice.server.sessions.given_orders import GivenOrder
from sluice.server.sessions.moving import MoveRules
from sluice.server.sessions.records import Session
from sluice.server.sessions.suspending import Suspensions
from sluice.server.sessions.swap_memory import SwapMemory
from sluice.server.workers.packets import Message
from sluice.server.workers.process import WorkerRecord

from .driver_calls import Ended, FakeCaller, contexts_over
from .ordered_worker import FakeWorker

CONTEXT_MIB, MOVED_MIB, STAYING_MIB, VGPU_MIB = 100, ROOM_MIB, 30, 2000
UUIDS = ("GPU-0", "GPU-1", "GPU-2")
GPUS = [LocalGpu(uuid, "Model", 80_000, False, CONTEXT_MIB, 0) for uuid in UUIDS]
RUNNING = {"suspension": "running"}


def stopped(**more: str) -> dict[str, str]:
    return {
        "suspension": "stopped",
        "movable_mib": str(MOVED_MIB),
        "vgpu.0.staying_mib": str(STAYING_MIB),
        "vgpu.0.movable_mib": str(MOVED_MIB),
        "vgpu.0.out_mib": "0",
        "vgpu.0.exported_mib": "0",
        **more,
    }


def out(**more: str) -> dict[str, str]:
    moved = {"suspension": "out", "moved_by": "controller", "vgpu.0.out_mib": str(MOVED_MIB)}
    return {**stopped(), **moved, **more}


class Bench:
    """Sessions of one grant, suspended or about to be."""

    def __init__(
        self,
        *more: dict[str, str],
        swap_mib: int = 8000,
        enabled: bool = True,
        count: int = 1,
        movable: bool = False,
        beside: Sequence[str] = (),
    ) -> None:
        """`more` is what the worker says besides while it is out; `beside`: GPUs that it sees."""
        self.moved: list[str] = []  # GPUs that sessions were told to be on
        self.written: list[tuple[str, bool]] = []  # of records: moving_to, context_away
        self.away: set[str] = set()  # GPUs that the server has let go
        self.beside = beside
        self.caller, self.ended, self.swap = FakeCaller(), Ended(), SwapMemory(swap_mib)
        self.reports: list[rpc.GrantSuspension] = []
        self.said: list[str] = []
        fields = more[0] if more else {}
        self.workers = [FakeWorker(stopped(**fields), out(**fields), RUNNING) for _ in range(count)]
        self.sessions = [self._session(n, worker) for n, worker in enumerate(self.workers)]
        contexts = contexts_over(self.swap, GPUS, self.caller, self.ended, enabled=enabled)
        contexts.on_moved = lambda session, gpu: self.moved.append(gpu)
        contexts._write = lambda s: self.written.append((s.moving_to, s.context_away))
        self.suspensions = Suspensions(
            lambda _: self.sessions,
            lambda report: self.reports.append(report.grant_suspension),
            self.swap,
            drain_seconds=0.1,
            contexts=contexts,
            moves=MoveRules(movable, self.away.__contains__),
        )

    def _session(self, number: int, worker: FakeWorker) -> Session:
        cast(Any, worker).record = WorkerRecord(
            f"w{number}", 100 + number, 1, "", ["GPU-0"], "", beside=list(self.beside)
        )
        fields: dict[str, Any] = {
            "id": f"s{number}",
            "grant_id": "g",
            "worker": worker,
            "opening": False,
            "places": (0,),
            "vgpus": (GrantedVgpu("GPU-0", VGPU_MIB, 10),),
            "log": SimpleNamespace(write=lambda text, *_: self.said.append(text)),
            "context_away": False,
            "moving_to": "",
        }
        session = SimpleNamespace(**fields)
        session.moved = lambda gpu: Session.moved(cast(Session, session), gpu)
        return cast(Session, session)

    def follow(self, status: dict[str, str] | None = None) -> Bench:
        for session in self.sessions:
            message = Message("status", status) if status else None
            cast(FakeWorker, session.worker).last = status or {}
            self.suspensions.follow(session, message)
        return self

    async def order(
        self, *, suspend: bool, promised: bool = False, to: str = ""
    ) -> rpc.GrantSuspension:
        """What was reported last."""
        self.suspensions.begin("g", GivenOrder(suspend, promised, to))
        while tasks := self.suspensions._tasks:
            await asyncio.gather(*tasks)
        return self.reports[-1]

    async def refused(self, to: str = "") -> rpc.GrantSuspension:
        """The answer to an order to resume it that was not carried out."""
        self.reports.clear()
        await self.order(suspend=False, to=to)
        return next(report for report in self.reports if report.error)
