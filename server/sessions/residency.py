# SPDX-License-Identifier: Apache-2.0
"""Has memory move when the arbiter says so: the server's part of oversubscription.

Made by server.service where [suspend] swap_mib gives host memory. The arbiter decides whose memory
is on a GPU (native/arbiter/residency.h) and says `move`; sessions.suspending has the steps. This
tells the arbiter how much memory each GPU has, where each grant's is, and what came of each order:
again after each connection, as either may have been started anew. It promises one answer to each
order, a reason where nothing moved, that sessions which cannot move are counted whole, and that an
arbiter which was killed costs no GPU more than it has: what comes in by its last order counts as in
for the next, and what begins or is resumed meanwhile asks that one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from sluice.protocol.frames import TURN_PAGE_MEMORY_PLACES
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink
from sluice.server.controller.orders import OrderRefused
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.sessions.memory_figures import MemoryFigures
from sluice.server.sessions.records import Session, run_at_once
from sluice.server.sessions.suspending import Suspensions
from sluice.server.sessions.turn_pages import TurnPages
from sluice.server.workers.packets import Message

log = logging.getLogger("sluice.server")

MS_PER_SECOND = 1000
#: Of a card of which more is promised, left free: what contexts take beyond what is counted for
#: them (local memory, the driver's own). Where that is more, who finds no room has more made.
MARGIN_MIB = 512
MOST_PRIORITY = 0xFFFFFFFF


class Residency:
    """Between the arbiter and the steps of a suspension."""

    def __init__(
        self,
        suspensions: Suspensions,
        pages: TurnPages,
        gpus: Callable[[], Sequence[LocalGpu]],
        idle_seconds: float,
        controller: ControllerLink,
    ) -> None:
        self._suspensions = suspensions
        self._pages = pages
        self._gpus = gpus
        self._idle_seconds = idle_seconds
        self._controller = controller
        self.figures = MemoryFigures()
        self._tasks: set[asyncio.Task[None]] = set()
        pages.memory_of = self.claim
        pages.asks_at_first = self.asks_at_first
        pages.settings_of_memory = self.settings
        pages.on_move = self.order
        suspensions.on_moved = self.tell
        suspensions.kept.on_given_up = self.tell_kept
        suspensions.hold, suspensions.go_on = pages.hold, pages.go_on
        suspensions.comes_in_later = self.is_asked

    # what the arbiter is told

    def settings(self) -> list[Message]:
        """When somebody is idle, and how much memory there is on each GPU."""
        idle = Message("idle", {"idle_ms": str(int(self._idle_seconds * MS_PER_SECOND))})
        return [idle, *(Message("memory", self._told(gpu)) for gpu in self._gpus())]

    @staticmethod
    def _told(gpu: LocalGpu) -> dict[str, str]:
        margin = 0 if gpu.software else MARGIN_MIB
        memory = {"gpu": gpu.uuid, "memory_mib": str(_usable_mib(gpu))}
        return {**memory, "margin_mib": str(margin)}

    def tell_everything(self) -> None:
        """The GPUs are known now, and the arbiter may have been told of none."""
        for message in self.settings():
            self._pages.arbiter.tell(message)
        self._pages.join_all()

    def claim(self, session: Session) -> dict[str, str]:
        """What a session's memory is to the arbiter; nothing: it is not counted."""
        if not self.counts(session):
            return {}
        coming = self._suspensions.memory.is_coming(session.grant_id)
        out = {} if coming else self._suspensions.memory.out_by_gpu(session.grant_id)
        away = self._suspensions.is_out(session.grant_id) and not coming
        fields = {
            "priority": str(min(max(0, session.priority), MOST_PRIORITY)),
            "away": str(int(away)),
            "kept_mib": str(self._suspensions.kept.of_grant(session.grant_id)),
            "vgpus": str(len(session.places)),
        }
        for n, place in enumerate(session.places):
            vgpu = session.vgpus[place]
            fields |= {
                f"vgpu.{n}.gpu": vgpu.gpu_uuid,
                f"vgpu.{n}.memory_mib": str(vgpu.memory_mib),
                f"vgpu.{n}.fixed_mib": str(self._suspensions.contexts.mib(session, vgpu.gpu_uuid)),
                f"vgpu.{n}.out_mib": str(out.get(vgpu.gpu_uuid, 0)),
            }
        return fields

    def counts(self, session: Session) -> bool:
        """Whether its memory is the arbiter's business."""
        return not run_at_once(session.vgpus)

    def asks_at_first(self, session: Session) -> bool:
        """Whether a session that begins asks the arbiter for its first memory already.

        One with more vGPUs than a page has places for is asked of none.
        """
        has_places = len(session.places) <= TURN_PAGE_MEMORY_PLACES
        return has_places and self.counts(session) and self.is_asked(session.grant_id)

    def is_asked(self, grant_id: str) -> bool:
        """Whether a grant comes in when the arbiter says so: not all that run fit with it.

        Who is being resumed just now runs, too.
        """
        promised: Counter[str] = Counter()
        seen, own = set[tuple[str, int]](), set[str]()
        overheads = {gpu.uuid: gpu.context_overhead_mib for gpu in self._gpus()}
        for session in self._pages.sessions():
            runs = session.grant_id == grant_id or self._suspensions.may_run(session.grant_id)
            for place in session.places if runs else ():
                vgpu = session.vgpus[place]
                promised[vgpu.gpu_uuid] += overheads.get(vgpu.gpu_uuid, 0)
                if (session.grant_id, place) not in seen:
                    promised[vgpu.gpu_uuid] += vgpu.memory_mib
                seen.add((session.grant_id, place))
                if session.grant_id == grant_id:
                    own.add(vgpu.gpu_uuid)
        usable = {gpu.uuid: _usable_mib(gpu) for gpu in self._gpus()}
        return any(promised[uuid] > usable.get(uuid, 0) for uuid in own)

    def tell(self, grant_id: str) -> None:
        """How a grant's memory is now: it was suspended, resumed, or moved by an earlier order."""
        self._pages.join_again(grant_id)

    def tell_kept(self, grant_id: str) -> None:
        """How much host memory a grant's sessions keep by now."""
        self._pages.arbiter.tell(Message("memory_kept", self._kept(grant_id)))

    def _kept(self, grant_id: str) -> dict[str, str]:
        kept_mib = self._suspensions.kept.of_grant(grant_id)
        return {"tenant": grant_id, "kept_mib": str(kept_mib)}

    def hear_figures(self, figures: Message) -> None:
        """What the arbiter says of all of them, once a second."""
        self.figures.hear(figures)
        if self._controller.is_connected and (news := self.figures.changed()):
            memories = rpc.GrantMemories(memories=news)
            self._controller.report(rpc.NodeReport(grant_memories=memories))

    # what it orders

    def order(self, message: Message) -> None:
        """Carries out a `move`."""
        if not message.number("out"):
            self._suspensions.memory.begin_coming(message.get("tenant"))
        task = asyncio.create_task(self._carry_out(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, message: Message) -> None:
        grant_id, why_not = message.get("tenant"), ""
        wanted = {
            message.get(f"gpu.{n}.uuid"): message.number(f"gpu.{n}.mib")
            for n in range(message.number("gpus"))
        }
        before = self._suspensions.memory.out_by_gpu(grant_id)
        began = time.monotonic()
        self._suspensions.memory.take_steps(grant_id)
        try:
            async with self._suspensions.lock(grant_id):
                if message.number("out"):
                    await self._suspensions.swap_out(grant_id, wanted)
                else:
                    await self._suspensions.swap_in(grant_id)
        except OrderRefused as refused:
            why_not = str(refused)
        except Exception as problem:
            log.exception("memory of grant %s does not move", grant_id)
            why_not = f"its server failed: {problem}"
        finally:
            if not message.number("out"):
                self._suspensions.memory.end_coming(grant_id)
        way = "to the host" if message.number("out") else "to the GPU"
        self._log(grant_id, way, before, time.monotonic() - began, why_not)
        self._answer(grant_id, why_not)

    def _log(
        self, grant_id: str, way: str, before: dict[str, int], seconds: float, why_not: str
    ) -> None:
        """Each exchange is a line: who, how much, and where the time went."""
        after = self._suspensions.memory.out_by_gpu(grant_id)
        moved = sum(abs(after.get(gpu, 0) - before.get(gpu, 0)) for gpu in {*before, *after})
        steps = self._suspensions.memory.take_steps(grant_id)
        if why_not:
            missing = self._suspensions.memory.missing_by_gpu(grant_id)
            short = ", ".join(f"{mib} MiB of {gpu}" for gpu, mib in missing.items() if mib)
            log.warning(
                "memory of grant %s does not move %s (%.3f s): %s%s; %s",
                grant_id,
                way,
                seconds,
                why_not,
                f"; missing: {short}" if short else "",
                steps,
            )
        else:
            log.info(
                "memory of grant %s: %d MiB moved %s in %.3f s, %d MiB are out; %s",
                grant_id,
                moved,
                way,
                seconds,
                sum(after.values()),
                steps,
            )

    def _answer(self, grant_id: str, why_not: str) -> None:
        out = self._suspensions.memory.out_by_gpu(grant_id)
        missing = self._suspensions.memory.missing_by_gpu(grant_id) if why_not else {}
        fields = {**self._kept(grant_id), "message": why_not, "gpus": str(len(out))}
        for n, (gpu, mib) in enumerate(sorted(out.items())):
            fields |= {f"gpu.{n}.uuid": gpu, f"gpu.{n}.out_mib": str(mib)}
            if missing.get(gpu):
                fields[f"gpu.{n}.missing_mib"] = str(missing[gpu])
        self._pages.arbiter.tell(Message("memory_moved", fields))


def _usable_mib(gpu: LocalGpu) -> int:
    """That sessions may have of it, their contexts included."""
    return max(0, gpu.memory_mib - gpu.reserved_mib)
