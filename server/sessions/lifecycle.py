# SPDX-License-Identifier: Apache-2.0
"""Opens sessions and ends them: what the listeners and the controller's orders call.

Called by the listeners (listeners.unix_socket, listeners.data_port, guests.regions, guests.vsock),
by sessions.adoption and by service. It asks the controller for grants; the way from a grant to a
worker is sessions.opening's, or sessions.relays', and what runs here is sessions.registry's. It
promises that a session's end, however it came, leaves no process, no descriptor, no cgroup and no
grant, within seconds.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sluice.config import log_ids
from sluice.config.peer_lines import OFTEN
from sluice.config.peer_lines import SERVER as PEERS
from sluice.config.server_gpus import SuspendSection
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc
from sluice.server.checkpoints.caller import Caller
from sluice.server.controller.link import ControllerLink
from sluice.server.controller.orders import OrderRefused
from sluice.server.gpus.discovery import LocalGpu
from sluice.server.host_memory.driver_memory import DriverMemory
from sluice.server.listeners.resumption import key_of
from sluice.server.sessions.accounts import Accounts
from sluice.server.sessions.code_cache import CodeCache
from sluice.server.sessions.context_rules import Rules
from sluice.server.sessions.contexts import Contexts
from sluice.server.sessions.job_holds import JobHolds
from sluice.server.sessions.moving import MoveRules
from sluice.server.sessions.open_session import OpenSession, RefusalError
from sluice.server.sessions.opening import SessionGrant, SessionOpener, SessionRequest
from sluice.server.sessions.records import (
    ENDED_UNSEEN,
    JobPart,
    Requester,
    Session,
    grant_request,
    trust_domain,
)
from sluice.server.sessions.registry import SessionRegistry
from sluice.server.sessions.relays import Relays
from sluice.server.sessions.resizing import resize
from sluice.server.sessions.suspending import Suspensions
from sluice.server.sessions.swap_memory import SwapMemory
from sluice.server.sessions.turn_pages import TurnPages
from sluice.server.sessions.views import GpusHere, Views
from sluice.server.workers.memory_limit import anonymous_mib
from sluice.server.workers.packets import Message
from sluice.server.workers.process import WorkerStarter
from sluice.server.workers.session_start import ConnectedSocket, SharedRegion
from sluice.server.workers.warm import WarmWorkers


class SessionLifecycle:
    """Every session of this server."""

    def __init__(
        self,
        node: str,
        controller: ControllerLink,
        workers: WarmWorkers,
        starter: WorkerStarter,
        log_dir: Path,
        *,
        throttle: bool = True,
        accounts: Accounts | None = None,
        code_cache: CodeCache | None = None,
        suspend: SuspendSection | None = None,
        caller: Caller | None = None,
        driver_memory: DriverMemory | None = None,
        gpus: Callable[[], Sequence[LocalGpu]] = tuple,
    ) -> None:
        """`caller`: of the driver's checkpoint; `gpus`: this host's, once they are known.

        `driver_memory`: host memory that the driver makes; None: it is not asked.
        """
        self._throttle = throttle
        self._accounts = accounts or Accounts()
        self._node = node
        self._controller = controller
        self._workers = workers
        self._starter = starter
        self._log_dir = log_dir
        self._registry = SessionRegistry(controller, starter, code_cache, self._tell_end)
        self._opener = SessionOpener(
            workers, starter, self._registry, log_dir, throttle=throttle, code_cache=code_cache
        )
        section = suspend or SuspendSection()
        self._caller = caller or Caller("")
        self._swap = SwapMemory(section.swap_mib, section.ready_mib, driver_memory)
        self._swap.may_open_gpus = lambda: not workers.lets_go
        self.suspensions = self._registry.suspensions = Suspensions(
            self._registry.of_grant,
            controller.report,
            self._swap,
            section.drain_seconds,
            self._contexts(section, gpus),
            MoveRules(section.movable == "on", workers.has_let_go),
        )
        self.sessions = self._registry.sessions
        self.ledgers = self._registry.ledgers
        self.figures = self._registry.figures
        self.times = self._registry.times
        self.links = self._registry.links
        self.on_opened = self._registry.on_opened
        self.holds = JobHolds(controller.report)
        self.on_end: list[Callable[[Session, End], None]] = []
        self.relays: Relays | None = None
        #: What clients are shown that only look; service has the GPUs for it.
        self.views: Views | None = None

    def _contexts(
        self,
        section: SuspendSection,
        gpus: Callable[[], Sequence[LocalGpu]],
    ) -> Contexts:
        def may_take(session: Session) -> int | None:
            limit = self._starter.memory_mib(len(session.places), software=False)
            return limit - anonymous_mib(session.worker.record.pid) if limit else None

        rules = Rules(section.checkpoint_contexts == "auto", may_take)
        contexts = Contexts(self._caller, gpus, self._swap, rules, self._registry.write, self.end)
        contexts.on_moved = self._registry.moved
        return contexts

    def divide_time(self, pages: TurnPages) -> None:
        """From now on sessions have turns on their GPUs."""
        self._registry.turns = pages

    def limit_overruns(self, seconds: float) -> None:
        """From now on what runs on beyond its turn for longer than that is ended."""

        def overdue(grant_id: str, so_far: float) -> None:
            live = [s for s in self._registry.of_grant(grant_id) if s.worker.why is None]
            if so_far > seconds and live:
                text = (
                    f"its work ran on for {so_far:.1f} s after its turn on the GPU was over, and "
                    f"[throttle] longest_overrun_seconds of its node is {seconds:g}: use shorter "
                    "kernels, or ask for a whole GPU"
                )
                for session in live:
                    self.end(session, End(EndCause.OVERRAN, text))

        self.times.on_overdue = overdue

    def relay_by(self, run_dir: Path, ca_file: Path | None) -> None:
        """From now on what this host's GPUs can never serve is relayed to other hosts'."""
        self.relays = Relays(self._starter, run_dir, self._log_dir, self._tell_end, ca_file)

    def show(self, here: GpusHere) -> None:
        """From now on clients that only look are shown what there is."""
        self.views = Views(
            self._node,
            lambda: self.served,
            lambda asked, requester: self.wanted(asked, requester, relay=True),
            self._controller,
            here,
        )

    async def view(self, asked: OpenSession, requester: Requester) -> str:
        """What a client of this host is shown that only looks; raises RefusalError."""
        if self.views is None:
            raise RefusalError(CudaStatus.SYSTEM_NOT_READY, "sluice-server is starting; try again")
        return await self.views.answer(asked, requester)

    @property
    def served(self) -> list[Session]:
        """The sessions whose clients are served from here, wherever their GPUs are."""
        relayed = self.relays.sessions.values() if self.relays else ()
        return [*self.sessions.values(), *relayed]

    @property
    def resumable(self) -> Mapping[str, Session]:
        """Those whose clients may come back to this host by another connection, by their ids."""
        return ChainMap(self.sessions, self.relays.sessions) if self.relays else self.sessions

    def resume_relayed(self, session: Session, descriptor: int, epoch: int) -> None:
        """The client of one on another node has proved by this connection that it is its own."""
        if self.relays:
            self.relays.streams.resume(session, descriptor, epoch)

    async def open(self, request: SessionRequest, tell: Callable[[str], None]) -> Session:
        """Gets a grant from the controller and opens the session; raises RefusalError.

        Cancelling it, as a listener does when its client is gone, takes everything back.
        """
        request_id = log_ids.new_request_id()
        with log_ids.bound(request_id=request_id):
            requester = request.requester
            who, text = requester.describe(), "open: %s asks for %s"
            PEERS.info("open", requester.owner, text, who, _wanted(request.asked), often=OFTEN)
            try:
                return await self._open(request_id, request, tell)
            except RefusalError as refusal:
                self.figures.refused(refusal.status)
                PEERS.warning(
                    "open: refused",
                    requester.owner,
                    "refused: %s: %s (status %d)",
                    *(who, refusal.message, refusal.status),
                )
                raise

    async def _open(
        self, request_id: str, request: SessionRequest, tell: Callable[[str], None]
    ) -> Session:
        asked, requester = request.asked, request.requester
        # a relay carries a slot, if its client knows how, or a guest's connection as it is
        slot = isinstance(request.channel, SharedRegion)
        relay = asked.takes_relay if slot else requester.channel == "vsock"
        wanted = self.wanted(asked, requester, relay=relay)
        part, project = self.part_of(asked, requester), wanted.project
        wanted.request_id = request_id
        async with self._controller.grant(wanted, tell) as granted:
            grant = SessionGrant(granted, part, project, resume_key_of(request, granted.session_id))
            if self.relays and granted.relay:
                return await self.relays.open(request, grant, granted.relay)
            return await self._opener.open(request, grant)

    def wanted(self, asked: OpenSession, requester: Requester, *, relay: bool) -> rpc.GrantRequest:
        """What the controller is asked for a client of this host; raises RefusalError.

        `relay`: what its own node can never give may be another's.
        """
        account = self._accounts.of(requester)
        return grant_request(
            self._node,
            asked,
            requester,
            self.part_of(asked, requester),
            project=account.project(asked.request.project, requester.describe()),
            owner_label=account.label,
            person=account.person,
            relay=self.relays is not None and relay,
        )

    async def open_granted(self, request: SessionRequest, grant: SessionGrant) -> Session:
        """Opens a session that the controller granted; raises RefusalError.

        The grant stays the caller's to give back.
        """
        return await self._opener.open(request, grant)

    def part_of(self, asked: OpenSession, requester: Requester) -> JobPart | None:
        """The part in a job that a client of this host asks for."""
        if not asked.job:
            return None
        domain = asked.job_domain or trust_domain(self._node, requester)
        return JobPart(asked.job, domain, asked.job_processes, asked.chosen)

    def adopt(self, session: Session, status: Message) -> None:
        """Takes over a session that an earlier server opened, and whose worker says how it is."""
        self._registry.adopt(session, status)
        if session.requester.channel == "shm" and session.requester.pidfd < 0:
            self.end(session, ENDED_UNSEEN)

    def end(self, session: Session, why: End) -> None:
        """Ends a session; its client gets a sticky CUDA error."""
        session.log.write(f"ending: {why}")
        session.end(why)

    def end_grant(self, grant_id: str, why: End) -> bool:
        """Ends every session of a grant; False if there is none."""
        sessions = self._registry.of_grant(grant_id)
        for session in sessions:
            self.end(session, why)
        return bool(sessions)

    def on_gpu(self, uuid: str) -> list[Session]:
        """The sessions that use a GPU."""
        return self._registry.on_gpu(uuid)

    async def resize_grant(self, grant_id: str, vgpus: Sequence[rpc.Vgpu]) -> None:
        """Changes the compute of what runs for a grant. Raises OrderRefused: all stays as it is."""
        sessions = self._registry.of_grant(grant_id)
        resized = await resize(sessions, vgpus, throttle=self._throttle)
        if self._registry.turns:
            self._registry.turns.resize(resized)
        for session in resized:
            self._registry.write(session)
            session.log.write(
                "resized: " + ", ".join(f"{v.memory_mib} MiB {v.compute_percent} %" for v in vgpus)
            )

    async def hand_over(self, gpu_uuid: str, *, back: bool, whole: bool = False) -> None:
        """Ends what of this server holds a GPU without a session, or has it held again.

        `whole`: to a VM, so that no session may so much as see it. Raises OrderRefused where the
        GPU is not free.
        """
        if back:
            self._workers.serve([gpu_uuid])
            return
        sessions = [
            session.id
            for session in self.sessions.values()
            if any(vgpu.gpu_uuid == gpu_uuid for vgpu in session.vgpus)
        ]
        if sessions:
            raise OrderRefused(f"session {', '.join(sessions)} still runs on it")
        seeing = [s for s in self.sessions.values() if gpu_uuid in s.worker.record.sees]
        if seeing and whole:
            raise OrderRefused(
                f"the worker of session {', '.join(s.id for s in seeing)} sees it, as the session "
                "may move ([suspend] movable); it is free when that has ended"
            )
        for session in seeing:
            session.log.write(f"GPU {gpu_uuid} is let go, and its worker sees it still")
        self._caller.let_go()
        await self._workers.let_go(gpu_uuid)
        await self._swap.let_go()

    def of_process(self, pid: int, start_time: int) -> list[Session]:
        """The sessions of one client process."""
        return [
            session
            for session in self.served
            for who in (session.requester,)
            if who.pid == pid and who.start_time == start_time and who.pidfd >= 0
        ]

    def let_go(self) -> None:
        """The server stops: sessions go on without it."""
        self._registry.let_go()
        if self.relays:
            self.relays.let_go()

    def _tell_end(self, session: Session, why: End) -> None:
        for told in self.on_end:
            told(session, why)


def resume_key_of(request: SessionRequest, session_id: str) -> str:
    """The key by which a session outlives its connection; "": it does not."""
    channel = request.channel
    if not isinstance(channel, ConnectedSocket) or not channel.resume:
        return ""
    if not channel.resume.grace_seconds:
        return ""
    return key_of(request.asked.key, session_id).hex()


def _wanted(asked: OpenSession) -> str:
    request = asked.request
    memory = f"{request.memory_mib} MiB" if request.memory_mib else "default memory"
    compute = f"{request.compute_percent} %" if request.compute_percent else "default compute"
    return f"{request.count or 1} vGPU of {memory} and {compute}"
