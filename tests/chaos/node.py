# SPDX-License-Identifier: Apache-2.0
"""A simulated server: the server's real link to the controller, with a written account for workers.

Run by rack.py, several to a process. It is the ServerSide of a real ControllerLink: real gRPC, a
node token, the real protocol. What would be a worker is a line in its account and a timer; both
outlive the process, as workers do, and the next process goes on from the account.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.resources.ends import End, EndCause
from sluice.rpc import pool_pb2 as rpc
from sluice.server.controller.link import ControllerLink, LocalGrant
from sluice.server.controller.orders import OrderRefused
from sluice.server.controller.tls import ControllerCredentials
from sluice.server.sessions.given_orders import GivenOrder, GivenOrders
from sluice.server.sessions.open_session import RefusalError

from .account import Account

OVERHEAD_MIB = 300
DYING_MOST_SECONDS = 0.3
MOVING_MOST_SECONDS = 0.5
REFUSED = 0.15  # of the orders to suspend or resume something
STAYING_MIB = (0, 0, 200)
ENDED = End(EndCause.CLIENT_ENDED, "its process ended")
NEVER_CAME = End(EndCause.CLIENT_NEVER_CAME, "no client came in time")
NEVER_HEARD = -1

Vgpus = list[dict[str, Any]]


@dataclass
class Worker:
    """A session that runs."""

    session: str
    grant: str
    request: str
    vgpus: Vgpus
    until: float | None  # monotonic; None runs for ever
    channel: str
    priority: int
    program: str
    started: float = field(default_factory=time.time)
    dying: asyncio.Task[None] | None = None
    staying: list[int] | None = None  # MiB by vGPU, of one that is suspended

    def report(self) -> rpc.SessionReport:
        """As an inventory has it."""
        return rpc.SessionReport(
            session_id=self.session, grant_id=self.grant, request_id=self.request,
            vgpus=[rpc.Vgpu(**vgpu) for vgpu in self.vgpus], channel=self.channel,
            program=self.program, started=self.started, priority=self.priority,
        )  # fmt: skip


class WatchedLink(ControllerLink):
    """A ControllerLink that says when its stream has ended."""

    def __init__(self, account: Account, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self._account = account

    async def _stream(self) -> None:
        try:
            await super()._stream()
        finally:
            if self.is_connected:
                self._account.write("line", up=False)


class SimulatedNode:
    """One node of the pool."""

    def __init__(
        self,
        name: str,
        targets: Sequence[str],
        accounts: Path,
        *,
        token_file: Path | None = None,
        address: str = "127.0.0.1",
        gpus: int = 2,
        memory_mib: int = 16_000,
        seed: int = 0,
        swap_mib: int = 0,
    ) -> None:
        self.name = name
        self._swap_mib = swap_mib
        self._orders = GivenOrders()  # about suspension
        self._moves: set[asyncio.Task[None]] = set()
        self._address = address
        self._port = 0
        self._gpus = {f"{name}-{number}": memory_mib for number in range(gpus)}
        self._random = random.Random(seed)
        self.account = Account(accounts, name)
        self.workers: dict[str, Worker] = {}  # by session
        self._expected: dict[str, tuple[rpc.Assignment, float]] = {}  # by key
        self._restore()
        self.account.write("boot", gpus=self._gpus, overhead_mib=OVERHEAD_MIB)
        self.link = WatchedLink(
            self.account,
            targets,
            self,
            wait_seconds=60,
            credentials=ControllerCredentials(None, token_file),
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Opens the data port and joins the pool."""
        door = await asyncio.start_server(self._serve, self._address, 0)
        self._port = door.sockets[0].getsockname()[1]
        self._tasks += [
            asyncio.create_task(self.link.run()),
            asyncio.create_task(self._watch_workers()),
            asyncio.create_task(self._watch_line()),
        ]

    # what a process on this node does

    async def ask(
        self, *, hold_seconds: float | None, label: str = "", **wanted: Any
    ) -> Worker | None:
        """A process asks for vGPUs and runs for so long; None if it was refused."""
        request = rpc.GrantRequest(
            node=self.name, local_only=True, channel="shm", owner_label=label,
            program=f"job of {self.name}", **wanted,
        )  # fmt: skip
        asked = self._random.getrandbits(48)
        note = {
            "priority": request.priority, "wait": request.wait_seconds, "preempt": request.preempt,
            "memory_mib": request.memory_mib, "percent": request.compute_percent,
            "count": request.vgpu_count, "label": label,
        }  # fmt: skip
        self.account.write("ask", request=asked, **note)
        try:
            async with self.link.grant(
                request, lambda text: self.account.write("waiting", request=asked, text=text)
            ) as grant:
                self.account.write("answer", request=asked, grant=grant.grant_id, status=0, text="")
                return self._start(grant, request, hold_seconds)
        except RefusalError as refusal:
            self.account.write(
                "answer", request=asked, grant="", status=int(refusal.status), text=refusal.message
            )
            return None
        except BaseException:
            self.account.write("answer", request=asked, grant="", status=NEVER_HEARD, text="")
            raise

    def _start(
        self, grant: LocalGrant, request: rpc.GrantRequest, hold_seconds: float | None
    ) -> Worker:
        vgpus = [
            {
                "gpu_uuid": v.gpu_uuid,
                "memory_mib": v.memory_mib,
                "compute_percent": v.compute_percent,
            }
            for v in grant.vgpus
        ]
        worker = self._run(
            Worker(
                grant.session_id, grant.grant_id, grant.request_id, vgpus, _until(hold_seconds),
                "shm", request.priority, request.program,
            )
        )  # fmt: skip
        self.link.report(rpc.NodeReport(session_started=worker.report()))
        return worker

    def _run(self, worker: Worker) -> Worker:
        self.account.write(
            "start", session=worker.session, grant=worker.grant, request=worker.request,
            vgpus=worker.vgpus, until=worker.until, channel=worker.channel,
            priority=worker.priority, program=worker.program, started=worker.started,
        )  # fmt: skip
        self.workers[worker.session] = worker
        return worker

    def _restore(self) -> None:
        for line in self.account.read():
            if line.kind == "start":
                self.workers[line["session"]] = Worker(**line.fields)
            elif line.kind == "resize":
                for worker in self.workers.values():
                    if worker.grant == line["grant"]:
                        worker.vgpus = line["vgpus"]
            elif line.kind in ("suspend", "resume"):
                for worker in self.workers.values():
                    if worker.grant == line["grant"]:
                        worker.staying = line["staying"] if line.kind == "suspend" else None
            elif line.kind == "end":
                self.workers.pop(line["session"], None)

    async def _watch_workers(self) -> None:
        while True:
            now = time.monotonic()
            for worker in list(self.workers.values()):
                over = worker.until is not None and worker.until <= now
                if over and worker.dying is None and worker.staying is None:
                    self._end(worker, "done", ENDED)
            await asyncio.sleep(0.05)

    async def _watch_line(self) -> None:
        was = False
        while True:
            if self.link.is_connected and not was:
                self.account.write("line", up=True)
            was = self.link.is_connected
            await asyncio.sleep(0.05)

    def _end(self, worker: Worker, by: str, why: End) -> None:
        if self.workers.pop(worker.session, None) is None:
            return
        self.account.write(
            "end", session=worker.session, grant=worker.grant, cause=by, text=why.text
        )
        self.link.report_end(worker.session, worker.grant, why)

    # the data port: a client over the network says its key and how long it runs

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                key, hold = (await reader.readline()).decode().split()
                expected, _ = self._expected.pop(key, (None, 0.0))
                if expected is None:
                    writer.write(b"refused\n")
                else:
                    self._run(
                        Worker(
                            expected.session_id, expected.grant_id, "", _vgpus(expected.vgpus),
                            _until(float(hold)), "tcp", expected.priority, expected.program,
                        )
                    )  # fmt: skip
                    self.link.report(
                        rpc.NodeReport(session_started=self.workers[expected.session_id].report())
                    )
                    writer.write(b"running\n")
                await writer.drain()
        except (OSError, ValueError, TimeoutError):
            pass
        finally:
            writer.close()

    def _key_expired(self, key: str) -> None:
        expected, _ = self._expected.pop(key, (None, 0.0))
        if expected:
            self.link.report_end(expected.session_id, expected.grant_id, NEVER_CAME)

    # ServerSide

    def inventory(self) -> rpc.Inventory:
        """What the account says runs, and the keys that are expected."""
        expected = [
            rpc.SessionReport(
                session_id=a.session_id, grant_id=a.grant_id, vgpus=a.vgpus, channel="tcp",
                program=a.program, started=time.time(), priority=a.priority, opening=True,
            )
            for a, _ in self._expected.values()
        ]  # fmt: skip
        return rpc.Inventory(
            sharing=rpc.NodeSharing(shares="kept"),
            node=self.name, data_address=self._address, data_port=self._port, version="simulated",
            vgpu_count=4,
            gpus=[
                rpc.Gpu(uuid=uuid, model="simulated", memory_mib=mib, software=True,
                        context_overhead_mib=OVERHEAD_MIB)
                for uuid, mib in self._gpus.items()
            ],
            sessions=[worker.report() for worker in self.workers.values()] + expected,
            swap_mib=self._swap_mib,
            suspensions=[
                self._standing(worker)
                for worker in self.workers.values()
                if worker.staying is not None or self._orders.is_busy(worker.grant)
                or self._orders.done_of(worker.grant)
            ],
        )  # fmt: skip

    def take_assignment(self, assignment: rpc.Assignment) -> None:
        """Expects a client with the key."""
        kept = rpc.Assignment()
        kept.CopyFrom(assignment)
        self._expected[assignment.key] = (kept, time.monotonic())
        asyncio.get_running_loop().call_later(
            assignment.key_seconds, self._key_expired, assignment.key
        )

    def end_grant(self, grant_id: str, why: End) -> None:
        """Workers die within a moment; what is not here only needs to be said."""
        found = False
        for worker in list(self.workers.values()):
            if worker.grant == grant_id:
                found = True
                if worker.dying is None:
                    worker.dying = asyncio.create_task(self._die(worker, why))
        for key, (expected, _) in list(self._expected.items()):
            if expected.grant_id == grant_id:
                found = True
                del self._expected[key]
                self.link.report_end(expected.session_id, grant_id, why)
        if not found:
            self.link.report_end("", grant_id, why)

    async def _die(self, worker: Worker, why: End) -> None:
        await asyncio.sleep(self._random.uniform(0, DYING_MOST_SECONDS))
        self._end(worker, "ordered", why)

    def suspend_grant(self, order: rpc.SuspendGrant) -> None:
        """Its memory moves for a moment; without host memory, and now and then, it does not."""
        given = GivenOrder.read(order)
        if self._orders.is_done(order.grant_id, given):
            raise AssertionError(f"given twice: {order}")
        if self._orders.put(order.grant_id, given):
            task = asyncio.create_task(self._carry_out(order.grant_id))
            self._moves.add(task)
            task.add_done_callback(self._moves.discard)

    async def _carry_out(self, grant_id: str) -> None:
        while order := self._orders.take(grant_id):
            await self._move(grant_id, order)
        self._orders.keep(w.grant for w in self.workers.values())

    async def _move(self, grant_id: str, order: GivenOrder) -> None:
        await asyncio.sleep(self._random.uniform(0, MOVING_MOST_SECONDS))
        resume = not order.suspend
        worker = next((w for w in self.workers.values() if w.grant == grant_id), None)
        error = ""
        if worker is None:
            error = f"no session of grant {grant_id} is open here"
        elif (worker.staying is not None) is not resume:
            pass  # it is as it is to be
        elif not self._swap_mib or self._random.random() < REFUSED:
            error = "simulated"
        elif resume:
            worker.staying = None
            self.account.write("resume", grant=grant_id)
        else:
            out = [w for w in self.workers.values() if w.staying is not None]
            if sum(v["memory_mib"] for w in (*out, worker) for v in w.vgpus) > self._swap_mib:
                error = "swap_mib is used up"
            else:
                worker.staying = [self._random.choice(STAYING_MIB) for _ in worker.vgpus]
                self.account.write("suspend", grant=grant_id, staying=worker.staying)
        self._orders.finish(grant_id, order, refused=bool(error))
        standing = (
            self._standing(worker, error)
            if worker
            else rpc.GrantSuspension(
                grant_id=grant_id, state="running", error=error, serial=order.serial
            )
        )
        self.link.report(rpc.NodeReport(grant_suspension=standing))

    def _standing(self, worker: Worker, error: str = "") -> rpc.GrantSuspension:
        return rpc.GrantSuspension(
            grant_id=worker.grant, error=error, staying_mib=worker.staying or (),
            state="running" if worker.staying is None else "suspended",
            busy=self._orders.is_busy(worker.grant), serial=self._orders.done_of(worker.grant),
        )  # fmt: skip

    async def resize_grant(self, grant_id: str, vgpus: Sequence[rpc.Vgpu]) -> None:
        """Compute can change while it runs, memory cannot: as in the real server."""
        changed = _vgpus(vgpus)
        expected = [a for a, _ in self._expected.values() if a.grant_id == grant_id]
        for assignment in expected:
            del assignment.vgpus[:]
            assignment.vgpus.extend(vgpus)
        if expected:
            return
        workers = [w for w in self.workers.values() if w.grant == grant_id]
        if not workers:
            raise OrderRefused("no session of it is open here")
        if any(w.staying is not None or self._orders.is_busy(w.grant) for w in workers):
            raise OrderRefused("it is suspended, or on its way")
        for worker in workers:
            if [v["memory_mib"] for v in worker.vgpus] != [v["memory_mib"] for v in changed]:
                raise OrderRefused(f"session {worker.session} runs")
        for worker in workers:
            worker.vgpus = changed
        self.account.write("resize", grant=grant_id, vgpus=changed)

    async def hand_over(self, order: rpc.HandOver) -> None:
        """No process of it holds a GPU."""

    async def native_order(self, order: rpc.NativeOrder) -> rpc.NativeDone:
        """There is no GPU that could be given up."""
        return rpc.NativeDone(call=order.call, error="simulated")

    def report_holdings(self) -> None:
        """No VM holds anything."""

    def read_log(self, session_id: str, tail_bytes: int) -> str:
        """There is none."""
        raise FileNotFoundError(session_id)


def _until(hold_seconds: float | None) -> float | None:
    return None if hold_seconds is None else time.monotonic() + hold_seconds


def _vgpus(messages: Sequence[rpc.Vgpu]) -> Vgpus:
    return [
        {
            "gpu_uuid": m.gpu_uuid,
            "memory_mib": m.memory_mib,
            "compute_percent": m.compute_percent,
        }
        for m in messages
    ]
