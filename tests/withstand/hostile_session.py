# SPDX-License-Identifier: Apache-2.0
"""A client that opens its session as it should and then does as it likes with the shared memory.

Used by test_hostile.py. It owns the mapping. Offsets are read from the slot's own header, which the
worker wrote (native/channel/slot.h).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
import subprocess
import time

from control_plane import ControlPlane, receive_reply

from sluice.server.sessions.open_session import pack_open_session, unpack_open_reply

from .prompted import SCRIBBLE

PAGE = 4096
SYS_FUTEX, FUTEX_WAKE = 202, 1
#: Of struct SlotHeader: where its tables are said to be, and the words that a client writes.
OFFSETS = struct.Struct("<QII10Q")
STATE, TAIL, HEAD, SLEEPING, WAKE = 128, 192, 256, 320, 324
READY = 3
NO_LANE = 0xFFFF


class HostileSession:
    """One session of this process."""

    def __init__(self, plane: ControlPlane) -> None:
        self._connected = plane.connect_unix()
        self._connected.send(pack_open_session(gmem_mib=64, ratio_percent=10, program="hostile"))
        packet, descriptors = receive_reply(self._connected)
        status, session, message = unpack_open_reply(packet)
        assert status == 0, message
        self.id = f"{session:016x}"
        self._descriptors = descriptors
        self.memory = mmap.mmap(descriptors[0], 0)
        _, _, _, *tables = OFFSETS.unpack_from(self.memory, PAGE)
        self._ring, self._ring_bytes = tables[6] + PAGE, tables[7]
        self.arena_bytes = tables[9]
        self._tail = 0

    def scribble(self, seed: int, rounds: int, begin: int = 0, end: int = 1 << 62) -> None:
        """Random bytes over all of the memory, or from `begin` to `end`."""
        path = f"/proc/{os.getpid()}/fd/{self._descriptors[0]}"
        command = [str(SCRIBBLE), path, str(seed), str(rounds), str(begin), str(end)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    def scribble_ring(self, seed: int) -> None:
        """Random bytes over the command ring alone, and a tail that says that they are commands."""
        self.scribble(seed, 1, self._ring, self._ring + self._ring_bytes)
        self._publish(self._ring_bytes // 2)

    def send_frame(
        self, source: random.Random, function: int, lane: int, body: bytes | None = None
    ) -> None:
        """A well-framed command with a random body, if none is given."""
        if body is None:
            body = source.randbytes(8 * source.choice((0, 1, 2, 4, 8, 16, 40, 300)))
        frame = struct.pack(
            "<IHHII", 16 + len(body), function, lane, source.randrange(1, 1 << 32), 1
        )
        for i, byte in enumerate(frame + body):
            self.memory[self._ring + (self._tail + i) % self._ring_bytes] = byte
        self._publish(len(frame) + len(body))

    def send_often(self, function: int, lane: int, body: bytes, seconds: float) -> int:
        """One command again and again, as fast as the worker takes it; returns how many went."""
        frame = struct.pack("<IHHII", 16 + len(body), function, lane, 0, 1) + body
        assert self._ring_bytes % len(frame) == 0, "frames must not run over the ring's end"
        part = frame * (self._ring_bytes // 8 // len(frame))
        sent, until = 0, time.monotonic() + seconds
        while time.monotonic() < until and self.is_running():
            (head,) = struct.unpack_from("<Q", self.memory, PAGE + HEAD)
            if self._tail + len(part) - head > self._ring_bytes:
                time.sleep(0.001)
                continue
            at = self._ring + self._tail % self._ring_bytes
            self.memory[at : at + len(part)] = part
            self._publish(len(part))
            sent += len(part) // len(frame)
        return sent

    def is_running(self) -> bool:
        """Whether the worker has not ended the session."""
        return struct.unpack_from("<I", self.memory, PAGE + STATE) == (READY,)

    def wake(self) -> None:
        """Wakes the worker, as every client does after it has written."""
        (value,) = struct.unpack_from("<I", self.memory, PAGE + WAKE)
        struct.pack_into("<I", self.memory, PAGE + WAKE, (value + 1) & 0xFFFFFFFF)
        word = ctypes.c_uint32.from_buffer(self.memory, PAGE + WAKE)
        ctypes.CDLL(None).syscall(SYS_FUTEX, ctypes.byref(word), FUTEX_WAKE, 1 << 20)
        del word

    def close(self) -> None:
        """Lets go of the memory; the session is of this process, which goes on."""
        self.memory.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._connected.close()

    def _publish(self, count: int) -> None:
        self._tail += count
        struct.pack_into("<Q", self.memory, PAGE + TAIL, self._tail)
        self.wake()
