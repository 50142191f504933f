# SPDX-License-Identifier: Apache-2.0
"""The line to sluice-doorbell, the process that watches the guests' regions.

Used by guests.regions. It starts the doorbell where none runs, connects again when it was lost, and
passes its messages on; what must be watched is told to it anew after each connection by whoever
uses this.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.config.native_files import NativeFileMissing
from sluice.config.peer_lines import SERVER as PEERS
from sluice.protocol.control import DOORBELL_SENT
from sluice.server.workers.packets import Message, PacketLink
from sluice.server.workers.process import WorkerStarter, reap

log = logging.getLogger("sluice.server")

RETRY_SECONDS = 1.0
START_TRIES = 50
ANSWER_SECONDS = 5.0


class DoorbellError(Exception):
    """The doorbell refused or did not answer."""


class Doorbell:
    """One connection to the host's doorbell process."""

    def __init__(
        self,
        starter: WorkerStarter,
        run_dir: Path,
        log_dir: Path,
        on_message: Callable[[Message], None],
        on_connected: Callable[[], None],
    ) -> None:
        self._starter = starter
        self._path = run_dir / "doorbell.sock"
        self._log_path = log_dir / "doorbell.log"
        self._on_message = on_message
        self._on_connected = on_connected
        self._link: PacketLink | None = None
        self._lost = asyncio.Event()
        self._answers: dict[tuple[str, str], asyncio.Future[Message]] = {}
        self.pid = 0

    @property
    def is_connected(self) -> bool:
        """Whether the doorbell can be spoken to now."""
        return self._link is not None and self._link.is_open

    async def run(self) -> None:
        """Keeps the connection, for ever."""
        complained = False
        while True:
            try:
                await self._connect()
            except (OSError, NativeFileMissing) as error:
                if not complained:
                    log.error("guests cannot be served: the doorbell does not run: %s", error)
                complained = True
                await asyncio.sleep(RETRY_SECONDS)
                continue
            complained = False
            self._lost.clear()
            self._on_connected()
            await self._lost.wait()
            log.warning("the doorbell is gone; starting it again")

    def close(self) -> None:
        """Hangs up; the doorbell goes on."""
        if self._link:
            self._link.close()

    def tell(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Sends a message that needs no answer; copies of the descriptors go with it."""
        if self._link:
            self._link.send(message, descriptors)

    async def ask(self, message: Message, expected: str) -> Message:
        """Sends a message and returns its answer; raises DoorbellError."""
        if self._link is None or not self._link.is_open:
            raise DoorbellError("the doorbell is not connected")
        key = (expected, message.get("id"))
        answer = asyncio.get_running_loop().create_future()
        self._answers[key] = answer
        self._link.send(message)
        try:
            got: Message = await asyncio.wait_for(answer, ANSWER_SECONDS)
        except TimeoutError:
            raise DoorbellError(f"the doorbell did not answer `{message.verb}`") from None
        finally:
            self._answers.pop(key, None)
        if got.verb == "error":
            raise DoorbellError(f"`{message.verb}`: {got.get('message', 'no reason given')}")
        return got

    async def _connect(self) -> None:
        try:
            self._link = self._try_connect()
            return
        except OSError:
            self._path.unlink(missing_ok=True)
        if self.pid:
            reap(self.pid)
        self.pid = self._starter.start_doorbell(self._path, self._log_path)
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
            connected, self._take, self._gone, expected=DOORBELL_SENT, on_fault=self._take_fault
        )

    def _take_fault(self, _message: Message, fault: str) -> None:
        text = "the doorbell said what no doorbell says: %s"
        PEERS.warning("doorbell: a message that is none", "doorbell", text, fault)

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
                answer.set_exception(DoorbellError("the doorbell is gone"))
        self._lost.set()
