# SPDX-License-Identifier: Apache-2.0
"""The line to a process of which a host has one and which outlives the server: doorbell, arbiter.

Used by guests.doorbell and service. It starts the process where none runs, connects again when it
was lost, and passes its messages on; what the process must know is told to it anew after each
connection by whoever uses this.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.config.native_files import NativeFileMissing
from sluice.config.peer_lines import SERVER as PEERS
from sluice.protocol.control import Spec
from sluice.server.workers.packets import Message, PacketLink
from sluice.server.workers.process import WorkerStarter, reap

log = logging.getLogger("sluice.server")

RETRY_SECONDS = 1.0
START_TRIES = 50
ANSWER_SECONDS = 5.0


class NoAnswerError(Exception):
    """The process refused or did not answer."""


@dataclass(frozen=True, slots=True)
class StandingKind:
    """Which process it is: `sluice-NAME`, and what it says."""

    name: str
    says: Mapping[str, Spec]
    without_it: str  # what does not work while it does not run


class StandingProcess:
    """One connection to the host's process of a kind."""

    def __init__(
        self,
        kind: StandingKind,
        starter: WorkerStarter,
        run_dir: Path,
        log_dir: Path,
        on_message: Callable[[Message], None],
        on_connected: Callable[[], None],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._kind = kind
        self._starter = starter
        self._path = run_dir / f"{kind.name}.sock"
        self._log_path = log_dir / f"{kind.name}.log"
        self._on_message = on_message
        self._on_connected = on_connected
        self._on_lost = on_lost
        self.connected = asyncio.Event()
        self._link: PacketLink | None = None
        self._lost = asyncio.Event()
        self._answers: dict[tuple[str, str], asyncio.Future[Message]] = {}
        self.pid = 0

    @property
    def is_connected(self) -> bool:
        """Whether the process can be spoken to now."""
        return self._link is not None and self._link.is_open

    async def run(self) -> None:
        """Keeps the connection, for ever."""
        complained = False
        while True:
            try:
                await self._connect()
            except (OSError, NativeFileMissing) as error:
                if not complained:
                    log.error("%s: sluice-%s does not run: %s", *self._words, error)
                complained = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            complained = False
            self._lost.clear()
            self._on_connected()
            self.connected.set()
            await self._lost.wait()
            self.connected.clear()
            self._on_lost()
            log.warning("sluice-%s is gone; starting it again", self._kind.name)

    @property
    def _words(self) -> tuple[str, str]:
        return self._kind.without_it, self._kind.name

    def close(self) -> None:
        """Hangs up; the process goes on."""
        if self._link:
            self._link.close()

    def tell(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Sends a message that needs no answer; copies of the descriptors go with it."""
        if self._link:
            self._link.send(message, descriptors)

    async def ask(self, message: Message, expected: str) -> Message:
        """Sends a message and returns its answer; raises NoAnswerError."""
        name = f"sluice-{self._kind.name}"
        if self._link is None or not self._link.is_open:
            raise NoAnswerError(f"{name} is not connected")
        key = (expected, message.get("id"))
        answer = asyncio.get_running_loop().create_future()
        self._answers[key] = answer
        self._link.send(message)
        try:
            got: Message = await asyncio.wait_for(answer, ANSWER_SECONDS)
        except TimeoutError:
            raise NoAnswerError(f"{name} did not answer `{message.verb}`") from None
        finally:
            self._answers.pop(key, None)
        if got.verb == "error":
            raise NoAnswerError(f"`{message.verb}`: {got.get('message', 'no reason given')}")
        return got

    async def _connect(self) -> None:
        try:
            self._link = self._try_connect()
            return
        except OSError:
            self._path.unlink(missing_ok=True)
        if self.pid:
            reap(self.pid)
        self.pid = self._starter.start_standing(self._kind.name, self._path, self._log_path)
        for attempt in range(START_TRIES):
            await asyncio.sleep(0.02 * (1 + attempt // 10))
            try:
                self._link = self._try_connect()
                return
            except OSError as error:
                failure = error
        raise OSError(f"{self._path}: {failure.strerror}; its log is {self._log_path}")

    def _try_connect(self) -> PacketLink:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connected.connect(str(self._path))
        except OSError:
            connected.close()
            raise
        return PacketLink(
            connected, self._take, self._gone, expected=self._kind.says, on_fault=self._take_fault
        )

    def _take_fault(self, _message: Message, fault: str) -> None:
        name = self._kind.name
        text = "sluice-%s said what it never says: %s"
        PEERS.warning(f"{name}: a message that is none", name, text, name, fault)

    def _take(self, message: Message) -> None:
        waiter = self._answers.get((message.verb, message.get("id")))
        if waiter is None and message.verb == "error":
            named = message.get("id")
            waiter = next(
                (w for (_, asked), w in self._answers.items() if not named or asked == named), None
            )
        if waiter is not None and not waiter.done():
            waiter.set_result(message)
        else:
            self._on_message(message)

    def _gone(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(NoAnswerError(f"sluice-{self._kind.name} is gone"))
        self._lost.set()
