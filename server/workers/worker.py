# SPDX-License-Identifier: Apache-2.0
"""One sluice-worker process as the server sees it: its control socket, its life and its death.

Used by workers.warm, sessions.opening, sessions.relays and sessions.adoption. It owns the
connection and the pidfd; it promises that on_exit is called exactly once, after the process has
really ended, with the reason that the worker gave or what its end looked like.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from sluice.config.peer_lines import SERVER as PEERS
from sluice.protocol.frames import MAX_DEVICES
from sluice.resources.ends import End, EndCause, read_cause
from sluice.server.workers.packets import Message, PacketLink, Unsent, close_descriptor
from sluice.server.workers.process import WorkerFiles, WorkerRecord, reap
from sluice.server.workers.session_start import RelayStart, SessionStart, TurnPage

log = logging.getLogger("sluice.server")

END_SECONDS = 2.0
ANSWER_SECONDS = 20.0
SHARING_VERBS = ("share", "unshare", "fetch")
#: What a worker has not read yet, besides what its socket holds: an honest one waits for no more
#: answers than its session has threads, and hears of the end of all that it has opened at once.
MOST_UNREAD = Unsent(messages=8192, descriptors=512)
#: What an adopted worker offers again before its session is known, with some room
#: (sharing.MOST_PER_SESSION).
MOST_BEFORE = 2048
#: What it wants of its links by then: one message for each other node, with some room.
MOST_LINKS_BEFORE = 2 * MAX_DEVICES


class WorkerError(Exception):
    """The worker refused, did not answer, or ended; status is a CUresult where one was said."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class WorkerDevice:
    """A GPU as the worker's driver names it."""

    uuid: str
    name: str
    memory_mib: int
    pci_bus_id: str = ""
    attributes: str = ""  # CUdevice_attribute and value: "75=9 76=0"
    cuda_version: int = 0
    driver_name: str = ""  # of the kernel's driver


class Worker:
    """A live worker process."""

    def __init__(self, record: WorkerRecord, pidfd: int, files: WorkerFiles) -> None:
        self.record = record
        self.devices: list[WorkerDevice] = []
        self.on_exit: Callable[[Worker, End], None] | None = None
        #: Called before on_exit, whoever's that is by then.
        self.at_exit: list[Callable[[], None]] = []
        #: What must have been done, or tried, before the process may be killed.
        self.before_kill: Callable[[], Awaitable[None]] | None = None
        self._killing: asyncio.Task[None] | None = None
        self.on_ended: Callable[[Worker, Message], None] | None = None
        self.on_code: Callable[[Message, int], None] | None = None
        #: Of a relay: it has lost its connection, and another may follow.
        self.is_broken = False
        self._on_broken: Callable[[], None] | None = None
        self.broken_by = ""  # whose connection that was, where it has two: node or client
        #: It says how it stands, after an order to suspend its session or to let it go on.
        self.on_suspension: Callable[[Message], None] | None = None
        self._on_sharing: Callable[[Message], None] | None = None
        self._sharing_before: list[Message] = []
        self._on_link: Callable[[Message], None] | None = None
        self._links_before: list[Message] = []
        self._ledger = self._region = -1
        self._turns: TurnPage | None = None
        self.exited = False
        self.why: End | None = None  # it ends, as far as that is known
        self._files = files
        self._pidfd = pidfd
        self._link: PacketLink | None = None
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        # what was asked and has no answer yet, oldest first: a worker answers in order
        self._asked: deque[tuple[str, asyncio.Future[Message]]] = deque()
        self._kill_timer: asyncio.TimerHandle | None = None
        self._loop.add_reader(pidfd, self._process_ended)

    @property
    def id(self) -> str:
        """The worker's id, which names its socket and record."""
        return self.record.id

    @property
    def pidfd(self) -> int:
        """The process's pidfd, valid until on_exit."""
        return self._pidfd

    @property
    def is_ready(self) -> bool:
        """Whether the driver is initialised and the worker waits for a session."""
        return self._ready.done() and not self.exited and not self._ready.exception()

    def connect(self) -> None:
        """Connects to the control socket; raises OSError if nobody listens there."""
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            control.connect(str(self._files.socket_path(self.id)))
        except OSError:
            control.close()
            raise
        self._link = PacketLink(
            control,
            self._take,
            self._link_gone,
            self._take_descriptors,
            MOST_UNREAD,
            expected=self._files.says,
            on_fault=self._take_fault,
        )

    async def wait_ready(self, seconds: float) -> None:
        """Waits until the worker's driver is initialised; raises WorkerError."""
        try:
            await asyncio.wait_for(asyncio.shield(self._ready), seconds)
        except TimeoutError:
            raise WorkerError(
                f"worker {self.id} was not ready within {seconds:g} s; its log is {self.record.log}"
            ) from None

    async def start_session(
        self, start: SessionStart | RelayStart, seconds: float = ANSWER_SECONDS
    ) -> Message:
        """Gives the worker, or relay, its session; returns `started`. Raises WorkerError."""
        descriptors = [descriptor for _, descriptor in start.descriptors]
        answer = await self._ask(start.message, "started", descriptors, seconds)
        if answer.verb == "error":
            why = answer.get("message", "no reason given")
            raise WorkerError(f"worker {self.id}: {why}", answer.number("status"))
        return answer

    async def status(self, seconds: float = ANSWER_SECONDS) -> Message:
        """Asks how the worker does; raises WorkerError."""
        return await self._ask(Message("status"), "status", seconds=seconds)

    async def set_compute(self, percents: Sequence[int]) -> None:
        """Changes the compute shares of its session's vGPUs; raises WorkerError."""
        fields = {f"vgpu.{n}.compute_percent": str(each) for n, each in enumerate(percents)}
        answer = await self._ask(Message("compute", fields), "status")
        if answer.verb == "error":
            raise WorkerError(f"worker {self.id}: {answer.get('message', 'no reason given')}")

    def mark_ready(self) -> None:
        """An adopted worker was ready before this server was there to hear it."""
        if not self._ready.done():
            self._ready.set_result(None)

    def end(self, why: End, grace: float = END_SECONDS) -> None:
        """Asks the worker to end its session and exit, and kills it when it does not."""
        if self.exited:
            return
        self.why = self.why or why
        if self._link:
            fields = {"reason": why.text, "cause": str(int(why.cause))}
            self._link.send(Message("end", fields))
        if self._kill_timer is None:
            self._kill_timer = self._loop.call_later(grace if self._link else 0, self.kill)

    def kill_after(self, seconds: float) -> None:
        """Kills it then, if it still runs: it was told to end by itself."""
        if self._kill_timer is None and not self.exited:
            self._kill_timer = self._loop.call_later(seconds, self.kill)

    def kill(self) -> None:
        """Ends the process at once, or as soon as that harms nobody else."""
        if self.exited or self._killing:
            return
        if self.before_kill:
            self._killing = self._loop.create_task(self._kill_after(self.before_kill))
        else:
            self._send_kill()

    async def _kill_after(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception:
            log.exception("worker %s is killed although it could not be ended well", self.id)
        self._send_kill()

    def _send_kill(self) -> None:
        if not self.exited:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def let_go(self) -> None:
        """The server stops: the worker goes on, and a later server adopts it."""
        if self.exited:
            return
        self._loop.remove_reader(self._pidfd)
        if self._link:
            self._link.close()
        if self._kill_timer:
            self._kill_timer.cancel()
        os.close(self._pidfd)
        self.exited = True

    async def _ask(
        self,
        message: Message,
        expected: str,
        descriptors: Sequence[int] = (),
        seconds: float = ANSWER_SECONDS,
    ) -> Message:
        if self._link is None or self.exited:
            raise WorkerError(f"worker {self.id} has ended; its log is {self.record.log}")
        answer: asyncio.Future[Message] = self._loop.create_future()
        self._asked.append((expected, answer))  # it stays until it is answered, be it too late
        self._link.send(message, descriptors)
        try:
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise WorkerError(
                f"worker {self.id} did not answer `{message.verb}` within {seconds:g} s"
            ) from None

    def _take_descriptors(self, message: Message, descriptors: list[int]) -> None:
        if message.verb in SHARING_VERBS:
            self._take_sharing(replace(message, descriptors=tuple(descriptors)))
            return
        if message.verb == "ledger" and len(descriptors) == 1:
            close_descriptor(self._ledger)
            self._ledger = descriptors[0]
            return
        if message.verb == "region" and len(descriptors) == 1:
            close_descriptor(self._region)
            self._region = descriptors[0]
            return
        if message.verb == "turns" and len(descriptors) == 2:
            self._close_turns()
            self._turns = TurnPage(*descriptors)
            return
        if message.verb == "code" and self.on_code and len(descriptors) == 1:
            self.on_code(message, descriptors[0])
            return
        for descriptor in descriptors:
            os.close(descriptor)

    def _take_fault(self, message: Message, fault: str) -> None:
        text = "worker %s said what no worker says: %s"
        PEERS.warning("worker: a message that is none", self.id, text, self.id, fault)
        if self._answers(message):
            self._answer(Message("error", {"message": f"its answer is none: {fault}"}))

    def _answers(self, message: Message) -> bool:
        """Whether it is what was asked first and has no answer yet."""
        return bool(self._asked) and message.verb in ("error", self._asked[0][0])

    def _answer(self, message: Message) -> None:
        _, waiter = self._asked.popleft()
        if not waiter.done():
            waiter.set_result(message)

    def take_ledger(self) -> int:
        """The page that it showed a server which is new to it, -1 if none; the caller closes it."""
        descriptor, self._ledger = self._ledger, -1
        return descriptor

    def take_region(self) -> int:
        """The same of a relay and its client's region."""
        descriptor, self._region = self._region, -1
        return descriptor

    def take_turns(self) -> TurnPage | None:
        """What it showed a server which is new to it; the caller closes it."""
        turns, self._turns = self._turns, None
        return turns

    def _close_turns(self) -> None:
        if turns := self.take_turns():
            os.close(turns.page)
            os.close(turns.bell)

    def tell(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Says something that has no answer; copies of the descriptors go with it."""
        if self._link:
            self._link.send(message, descriptors)

    async def wait_read(self, seconds: float) -> bool:
        """Until it has read what it was told, as far as sockets show; False: not within so long."""
        return self._link is None or await self._link.wait_read(seconds)

    def follow_sharing(self, take: Callable[[Message], None]) -> None:
        """Has `share`, `unshare` and `fetch` go there; their descriptors are the callee's."""
        self._on_sharing = take
        before, self._sharing_before = self._sharing_before, []
        for message in before:
            take(message)

    def follow_links(self, take: Callable[[Message], None]) -> None:
        """Has `link` and `link_over` go there: it wants a connection to another node, or no more.

        An adopted one may do so before it is known whose session it has.
        """
        self._on_link = take
        before, self._links_before = self._links_before, []
        for message in before:
            take(message)

    def follow_break(self, broken: Callable[[], None] | None) -> None:
        """Of a relay: `broken` is called when it loses its connection, at once if it has already.

        One that has just begun may lose it before whoever waited for that comes to follow it.
        """
        self._on_broken = broken
        if broken and self.is_broken:
            broken()

    def _take_sharing(self, message: Message) -> None:
        if self._on_sharing:
            self._on_sharing(message)
        elif len(self._sharing_before) < MOST_BEFORE:
            # it offers again what it shares before it is known whose session it has
            self._sharing_before.append(message)
        else:
            message.close_descriptors()
            self._stop(f"it said more than {MOST_BEFORE} things before it had a session")

    def _take_link(self, message: Message) -> None:
        if self._on_link:
            self._on_link(message)
        elif len(self._links_before) < MOST_LINKS_BEFORE:
            self._links_before.append(message)

    def _take(self, message: Message) -> None:
        if message.verb in SHARING_VERBS:
            self._take_sharing(message)
        elif message.verb in ("code_used", "code_damaged"):
            if self.on_code:
                self.on_code(message, -1)
        elif message.verb == "ready":
            self.devices = _devices(message)
            self.mark_ready()
        elif message.verb in ("link", "link_over"):
            self._take_link(message)
        elif message.verb == "suspension":
            if self.on_suspension:
                self.on_suspension(message)
        elif message.verb == "broken":
            self.broken_by, self.is_broken = message.get("by"), True
            if self._on_broken:
                self._on_broken()
        elif message.verb == "ended":
            if reason := message.get("reason"):
                ordered = self.why.cause if self.why else EndCause.UNKNOWN
                # one that an earlier release started names no cause
                self.why = End(read_cause(message.number("cause")) or ordered, reason)
            if self.on_ended:
                self.on_ended(self, message)
            # it exits by itself; the timer is for one that cannot
            if self._kill_timer is None:
                self._kill_timer = self._loop.call_later(END_SECONDS, self.kill)
        elif self._answers(message):
            self._answer(message)
        else:
            log.debug("worker %s said %s, which nobody asked for", self.id, message.verb)

    def _link_gone(self) -> None:
        # its exit, which the pidfd shows, is what counts; a worker that lives but closed its
        # control socket cannot be told anything any more
        if self._link and self._link.does_not_read:
            self._stop("it asked on and on, and read none of the server's answers")
        elif not self.exited and self._kill_timer is None:
            self._kill_timer = self._loop.call_later(END_SECONDS, self.kill)

    def _stop(self, why: str) -> None:
        """It does what no worker of ours does: it is ended at once, with its session."""
        text = "worker %s is ended: %s"
        PEERS.warning("worker: ended for what it did", self.id, text, self.id, why)
        self.why = self.why or End(EndCause.WORKER_FAILED, f"its worker was ended: {why}")
        self.kill()

    def _process_ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self.exited = True
        if self._link:
            # its last words may still be in the socket when the pidfd shows its exit
            self._link.read_now()
            self._link.close()
        os.close(self._pidfd)
        close_descriptor(self.take_ledger())
        close_descriptor(self.take_region())
        self._close_turns()
        for message in self._sharing_before:
            message.close_descriptors()
        self._sharing_before.clear()
        reap(self.record.pid)
        if self._kill_timer:
            self._kill_timer.cancel()
        self._files.remove(self.id)
        why = self.why or End(
            EndCause.WORKER_FAILED, "the worker ended without a word (killed or crashed)"
        )
        gone = WorkerError(f"worker {self.id} ended: {why}; its log is {self.record.log}")
        if not self._ready.done():
            self._ready.set_exception(gone)
            self._ready.exception()  # nobody may be waiting, which is no error
        for _, answer in self._asked:
            if not answer.done():
                answer.set_exception(gone)
        for told in self.at_exit:
            told()
        if self.on_exit:
            self.on_exit(self, why)


def _devices(message: Message) -> list[WorkerDevice]:
    devices = []
    index = 0
    while uuid := message.get(f"device.{index}.uuid"):
        devices.append(
            WorkerDevice(
                uuid,
                message.get(f"device.{index}.name", "unknown GPU"),
                message.number(f"device.{index}.memory_mib"),
                message.get(f"device.{index}.pci_bus_id"),
                message.get(f"device.{index}.attributes"),
                message.number("cuda_version"),
                message.get("driver_name"),
            )
        )
        index += 1
    return devices
