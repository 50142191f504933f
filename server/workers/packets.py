# SPDX-License-Identifier: Apache-2.0
"""Text messages over SOCK_SEQPACKET sockets, descriptors beside them: workers and the doorbell.

Used by workers.worker and guests.doorbell. A PacketLink owns its socket; it is driven by the event
loop, never blocks, and calls back for each message and once when the other side is gone. One packet
is one message: the verb, then key=value lines, as native/api/control.yaml has them; what comes and
is not so is told to the caller as a fault. Unknown keys are kept and ignored by callers. What
waits for a side that does not read is bounded where the caller says so: it is then as good as gone.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.protocol.control import Spec

MAX_PACKET_BYTES = 1 << 17
MAX_DESCRIPTORS = 8


def close_descriptor(descriptor: int) -> None:
    """Closes a descriptor unless there is none (-1)."""
    if descriptor >= 0:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Message:
    """One message; values are strings as they crossed the socket."""

    verb: str
    fields: Mapping[str, str] = field(default_factory=dict)
    #: What came beside it; whoever takes the message closes them.
    descriptors: tuple[int, ...] = ()

    def close_descriptors(self) -> None:
        """Closes what came beside it."""
        for descriptor in self.descriptors:
            os.close(descriptor)

    def get(self, key: str, default: str = "") -> str:
        """A value, or the default if the sender did not name it."""
        return self.fields.get(key, default)

    def number(self, key: str, default: int = 0) -> int:
        """A value as a number; the default if it is missing or none."""
        try:
            return int(self.fields.get(key, ""))
        except ValueError:
            return default

    def encode(self) -> bytes:
        """The packet's bytes; a line break in a value becomes a space."""
        lines = [self.verb]
        for key, value in self.fields.items():
            lines.append(f"{key}={' '.join(str(value).splitlines())}")
        return "\n".join(lines).encode()


def decode(packet: bytes) -> Message:
    """Reads a packet; lines without `=` are dropped."""
    verb, *lines = packet.decode(errors="replace").splitlines() or [""]
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return Message(verb.strip(), fields)


@dataclass(frozen=True, slots=True)
class Unsent:
    """The most that waits for a side that does not read."""

    messages: int
    descriptors: int


class PacketLink:
    """A connected SOCK_SEQPACKET socket."""

    def __init__(
        self,
        connected: socket.socket,
        on_message: Callable[[Message], None],
        on_gone: Callable[[], None],
        on_descriptors: Callable[[Message, list[int]], None] | None = None,
        most_unsent: Unsent | None = None,
        *,
        expected: Mapping[str, Spec],
        on_fault: Callable[[Message, str], None],
    ) -> None:
        """on_descriptors gets the messages that came with descriptors, and owns those.

        What comes and is none of `expected`, or not as it stands there, goes to on_fault with what
        is wrong, without its descriptors.

        When `most_unsent` waits to be read and there is more to send, the link is closed, as if the
        other side had gone; `does_not_read` then says so.
        """
        connected.setblocking(False)
        self._socket = connected
        self._on_message = on_message
        self._on_gone = on_gone
        self._on_descriptors = on_descriptors
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._unsent_descriptors = 0
        self._is_read = asyncio.Event()  # nothing is unsent
        self._is_read.set()
        self._most_unsent = most_unsent
        self._expected = expected
        self._on_fault = on_fault
        self.does_not_read = False
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._loop.add_reader(connected, self._readable)

    @property
    def is_open(self) -> bool:
        """Whether the other side is still there, as far as is known."""
        return self._open

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Sends a message now or when there is room; copies of the descriptors go with it."""
        if not self._open:
            return
        packet = message.encode()
        if not self._unsent and self._try(packet, descriptors):
            return
        if self._most_unsent and not self._has_room(len(descriptors)):
            # not at once: whoever sends may be in the middle of something
            self.does_not_read = True
            self._loop.call_soon(self._gone)
            return
        self._unsent_descriptors += len(descriptors)
        self._unsent.append((packet, tuple(os.dup(d) for d in descriptors)))
        self._is_read.clear()
        self._loop.add_writer(self._socket, self._writable)

    def _has_room(self, descriptors: int) -> bool:
        assert self._most_unsent
        return (
            len(self._unsent) < self._most_unsent.messages
            and self._unsent_descriptors + descriptors <= self._most_unsent.descriptors
        )

    async def wait_read(self, seconds: float) -> bool:
        """Until nothing waits for the other side to read any more; False: not within so long."""
        if not self._is_read.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_read.wait(), seconds)
        return self._is_read.is_set()

    def read_now(self) -> None:
        """Takes what has arrived already, without waiting for the event loop to say so."""
        self._readable()

    def close(self) -> None:
        """Lets go of the socket; on_gone is not called."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        for _, descriptors in self._unsent:
            for descriptor in descriptors:
                os.close(descriptor)
        self._unsent.clear()
        self._is_read.set()
        self._socket.close()

    def _try(self, packet: bytes, descriptors: Sequence[int]) -> bool:
        ancillary = (
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            if descriptors
            else []
        )
        try:
            self._socket.sendmsg([packet], ancillary, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                raise
            self._loop.call_soon(self._gone)
        return True

    def _writable(self) -> None:
        while self._unsent:
            packet, descriptors = self._unsent[0]
            if not self._try(packet, descriptors):
                return
            self._unsent.popleft()
            self._unsent_descriptors -= len(descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
        self._is_read.set()
        self._loop.remove_writer(self._socket)

    def _readable(self) -> None:
        # bounded, so that one chatty peer does not keep the loop from the others
        for _ in range(64):
            if not self._open or self.does_not_read:
                return
            try:
                packet, descriptors = receive(self._socket)
            except BlockingIOError:
                return
            except OSError:
                self._gone()
                return
            message = decode(packet)
            fault = self._fault(message, len(descriptors)) if packet else ""
            if packet and descriptors and self._on_descriptors and not fault:
                self._on_descriptors(message, descriptors)
                continue
            for descriptor in descriptors:  # of a fault, or nobody is to send us any on this link
                os.close(descriptor)
            if not packet:
                self._gone()
                return
            if fault:
                self._on_fault(message, fault)
            else:
                self._on_message(message)

    def _fault(self, message: Message, descriptors: int) -> str:
        spec = self._expected.get(message.verb)
        if spec is None:
            return f"unknown verb: {message.verb[:40]!r}"
        if descriptors > spec.descriptors:
            return f"{message.verb}: {descriptors} descriptors came, at most {spec.descriptors} do"
        return spec.fault(message.fields)

    def _gone(self) -> None:
        if self._open:
            self.close()
            self._on_gone()


def receive(connected: socket.socket) -> tuple[bytes, list[int]]:
    """Receives one packet and the descriptors beside it; the caller closes those."""
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * descriptors.itemsize)
    packet, ancillary, _, _ = connected.recvmsg(
        MAX_PACKET_BYTES, space, getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    )
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return packet, list(descriptors)
