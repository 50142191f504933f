# SPDX-License-Identifier: Apache-2.0
"""What a client is shown that only looks: its requester's vGPUs, or those that it would get.

Called by the listeners for requests with the flag VIEW, and by controller.node_side for clients
elsewhere. It opens no session, takes nothing from the pool and starts no worker. Whoever looks sees
the sessions of his own trust domain (records.trust_domain) and of nobody else. An answer is good
for a quarter of a second and is made once for all who ask meanwhile, so that a client which asks
thousands of times a second costs its own connections.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.vgpu_view import Process, view_text
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink, GrantedVgpu
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.sessions.open_session import OpenSession, RefusalError
from sluice.server.sessions.records import Requester, Session, trust_domain
from sluice.server.workers.packets import Message
from sluice.server.workers.worker import WorkerError

FRESH_SECONDS = 0.25
STATUS_SECONDS = 2.0
#: Answers that are kept, of so many requesters and requests.
MOST_KEPT = 1024
#: Sessions of one requester that are shown.
MOST_SHOWN = 64


@dataclass(frozen=True, slots=True)
class GpusHere:
    """The GPUs of this host, by UUID, and what NVML says of one."""

    gpus: Callable[[], dict[str, LocalGpu]]
    figures: Callable[[str], Awaitable[dict[int, int]]]


_Key = tuple[str, str, tuple[str, ...]]


@dataclass(slots=True)
class _Kept:
    answer: asyncio.Task[str]
    until: float = field(default=float("inf"))  # monotonic


class Views:
    """Answers to who looks at this host."""

    def __init__(
        self,
        node: str,
        served: Callable[[], Sequence[Session]],
        wanted: Callable[[OpenSession, Requester], rpc.GrantRequest],
        controller: ControllerLink,
        here: GpusHere,
    ) -> None:
        """`served`: the sessions of this host's clients; `wanted`: what one of them asks for."""
        self._node = node
        self._served = served
        self._wanted = wanted
        self._controller = controller
        self._here = here
        self._kept: dict[_Key, _Kept] = {}
        self._said: dict[str, tuple[float, Message]] = {}

    async def answer(self, asked: OpenSession, requester: Requester) -> str:
        """The JSON that a client of this host is shown; raises RefusalError."""
        domain = trust_domain(self._node, requester)
        own = self._own(domain)
        # what begins or ends is seen at once
        key = (domain, repr(asked.request), tuple(session.id for session in own))
        kept = self._kept.get(key)
        if kept is None or time.monotonic() >= kept.until:
            kept = self._begin(key, own, self._wanted(asked, requester))
        return await asyncio.shield(kept.answer)

    def _own(self, domain: str) -> list[Session]:
        """The running sessions of a trust domain whose clients are served from here."""
        return [
            session
            for session in self._served()
            if not session.opening and trust_domain(self._node, session.requester) == domain
        ][:MOST_SHOWN]

    def _begin(self, key: _Key, own: list[Session], wanted: rpc.GrantRequest) -> _Kept:
        self._kept.pop(key, None)
        while len(self._kept) >= MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        kept = self._kept[key] = _Kept(asyncio.create_task(self._answer(key[0], own, wanted)))

        def done(answer: asyncio.Task[str]) -> None:
            kept.until = time.monotonic() + FRESH_SECONDS
            if not answer.cancelled():
                answer.exception()  # seen, whoever waited

        kept.answer.add_done_callback(done)
        return kept

    async def _answer(self, domain: str, own: list[Session], wanted: rpc.GrantRequest) -> str:
        local = [session for session in own if not session.relayed_to]
        relayed = [session.id for session in own if session.relayed_to]
        views = await self.of_sessions(local)
        if relayed:
            views += await self._elsewhere(wanted, relayed)
        if not views:  # or all of them have just ended
            views += await self._elsewhere(wanted, ())
        processes = {
            session.id: Process(who.own_pid or who.pid, who.program)
            for session in own
            for who in (session.requester,)
        }
        return view_text(views, processes, whose=domain)

    async def _elsewhere(
        self, wanted: rpc.GrantRequest, relayed: Sequence[str]
    ) -> Sequence[rpc.SessionView]:
        """What the controller knows: sessions on other nodes; without, what there is to get."""
        answer = await self._controller.view(rpc.ViewRequest(request=wanted, session_ids=relayed))
        if answer.status:
            raise RefusalError(answer.status, answer.message)
        return list(answer.sessions)

    # what is here

    async def of_sessions(self, sessions: Sequence[Session]) -> list[rpc.SessionView]:
        """What sessions whose workers are here have; those that have just ended are left out."""
        found = await asyncio.gather(*(self._of_session(session) for session in sessions))
        return [view for view in found if view is not None]

    async def of_idle(self, vgpus: Sequence[GrantedVgpu]) -> rpc.SessionView:
        """What vGPUs of this host's GPUs would be that nobody has."""
        return rpc.SessionView(vgpus=[await self._vgpu(vgpu, "", 0) for vgpu in vgpus])

    async def _of_session(self, session: Session) -> rpc.SessionView | None:
        try:
            status = await self._status(session)
        except WorkerError:
            return None  # it ends, or does not answer
        view = rpc.SessionView(session_id=session.id)
        for index, place in enumerate(session.places):
            key = f"vgpu.{index}."
            # a worker of an earlier release does not say it
            uuid = status.get(f"{key}uuid") or session.vgpus[place].gpu_uuid
            used = max(0, min(status.number(f"{key}used_mib"), session.vgpus[place].memory_mib))
            view.vgpus.append(await self._vgpu(session.vgpus[place], uuid, used))
        return view

    async def _status(self, session: Session) -> Message:
        """What its worker says, at most a quarter of a second old; raises WorkerError."""
        now = time.monotonic()
        at, said = self._said.get(session.id, (float("-inf"), Message("")))
        if now - at < FRESH_SECONDS:
            return said
        said = await session.worker.status(STATUS_SECONDS)
        if len(self._said) >= MOST_KEPT:
            self._said.clear()
        self._said[session.id] = (now, said)
        return said

    async def _vgpu(self, vgpu: GrantedVgpu, uuid: str, used_mib: int) -> rpc.VgpuView:
        gpu = self._here.gpus().get(vgpu.gpu_uuid)
        if gpu is None:
            raise RefusalError(
                CudaStatus.NO_DEVICE, f"GPU {vgpu.gpu_uuid} is not here any more; try again"
            )
        return rpc.VgpuView(
            uuid=uuid,
            gpu_uuid=vgpu.gpu_uuid,
            name=gpu.name,
            memory_mib=vgpu.memory_mib,
            used_mib=used_mib,
            compute_percent=vgpu.compute_percent,
            pci_bus_id=gpu.pci_bus_id,
            driver_name=gpu.driver_name,
            cuda_version=gpu.cuda_version,
            attributes=gpu.attributes,
            figures=await self._here.figures(vgpu.gpu_uuid),
        )
