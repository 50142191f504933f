# SPDX-License-Identifier: Apache-2.0
"""A region and its slot as a client of release 0.1.0 and later sees them, in Python.

The numbers are written down here on purpose and not read from native/channel/slot.h: they are what
clients that are out there use. Whoever has to change one of them to make a test pass has broken
those clients. Used by the recorder, which stands between a client and a worker, and by the replay.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

PAGE = 4096
REGION_MAGIC = 0x31304E4745524C53
SLOT_MAGIC = 0x3130544F4C534C53
LANES, LANE_BYTES = 64, 8192
MAILBOX_BYTES = 128 << 10
MARKS = 8192

# words of a slot's header
STATE, GENERATION, STICKY_ERROR, TAIL, HEAD = 128, 132, 136, 192, 256
SLEEPING, WAKE, DOORBELL, MEMORY_USED, DIALECT = 320, 324, 384, 448, 960
BACK_TAIL, BACK_HEAD = 1024, 1088
MEMORY_USED_BYTES = 64 * 8

FREE, OPENING, READY, CLOSED, DEAD = 0, 2, 3, 5, 6
FRAMES, BYTES = 0, 1  # dialects

_FUTEX, _FUTEX_WAKE = 202, 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets within a slot."""

    lanes: int
    mailbox: int
    marks: int
    ring: int
    ring_bytes: int
    arena: int
    arena_bytes: int

    @staticmethod
    def of(slot_bytes: int) -> Layout:
        """How a slot of so many bytes is divided."""
        mailbox = PAGE + LANES * LANE_BYTES
        marks = mailbox + MAILBOX_BYTES
        ring = marks + MARKS * 8
        ring_bytes = 256 << 10
        while ring_bytes < 4 << 20 and ring_bytes * 32 <= slot_bytes:
            ring_bytes *= 2
        arena = ring + ring_bytes
        return Layout(PAGE, mailbox, marks, ring, ring_bytes, arena, slot_bytes - arena)


class Slot:
    """The one slot of a region, mapped."""

    def __init__(self, descriptor: int) -> None:
        self.region_bytes = os.fstat(descriptor).st_size
        self.slot_bytes = self.region_bytes - PAGE
        self.layout = Layout.of(self.slot_bytes)
        self.memory = mmap.mmap(descriptor, self.region_bytes)

    def u32(self, at: int) -> int:
        """A word of the slot."""
        return int(ctypes.c_uint32.from_buffer(self.memory, PAGE + at).value)

    def set_u32(self, at: int, value: int) -> None:
        ctypes.c_uint32.from_buffer(self.memory, PAGE + at).value = value

    def u64(self, at: int) -> int:
        return int(ctypes.c_uint64.from_buffer(self.memory, PAGE + at).value)

    def set_u64(self, at: int, value: int) -> None:
        ctypes.c_uint64.from_buffer(self.memory, PAGE + at).value = value

    def read(self, at: int, count: int) -> bytes:
        return self.memory[PAGE + at : PAGE + at + count]

    def write(self, at: int, data: bytes) -> None:
        """Puts data; whole words where it is of whole words."""
        if at % 8 == 0 and len(data) % 8 == 0 and len(data) <= 64:
            for n in range(0, len(data), 8):
                self.set_u64(at + n, int.from_bytes(data[n : n + 8], "little"))
            return
        self.memory[PAGE + at : PAGE + at + len(data)] = data

    def wake(self, at: int) -> None:
        """Wakes whoever sleeps on a word."""
        word = ctypes.c_uint32.from_buffer(self.memory, PAGE + at)
        _libc.syscall(_FUTEX, ctypes.byref(word), _FUTEX_WAKE, 1 << 20, None, None, 0)

    # the client's side

    def push(self, data: bytes) -> bool:
        """Puts bytes into the ring, if there is room for all of them."""
        ring, size, tail = self.layout.ring, self.layout.ring_bytes, self.u64(TAIL)
        if tail + len(data) - self.u64(HEAD) > size:
            return False
        self._put(ring, size, tail, data)
        self.set_u64(TAIL, tail + len(data))
        self.wake_host()
        return True

    def wake_host(self) -> None:
        """Wakes a worker that has announced that it sleeps."""
        if self.u32(SLEEPING):
            self.set_u32(SLEEPING, 0)
            self.set_u32(WAKE, self.u32(WAKE) + 1)
            self.wake(WAKE)

    def close(self) -> None:
        """What a client does when its process ends in good order."""
        if self.u32(STATE) == READY:
            self.set_u32(STATE, CLOSED)
        self.set_u32(SLEEPING, 0)
        self.set_u32(WAKE, self.u32(WAKE) + 1)
        self.wake(WAKE)

    def is_consumed(self) -> bool:
        """Whether the host has taken everything out of the ring."""
        return self.u64(HEAD) == self.u64(TAIL)

    def answer(self, lane: int) -> tuple[int, int, bytes]:
        """What lies in a lane: sequence, status, body."""
        at = self.layout.lanes + lane * LANE_BYTES
        sequence, _, status, count = struct.unpack("<IIII", self.read(at, 16))
        return sequence, status, self.read(at + 16, min(count, LANE_BYTES - 16))

    def answered(self, lane: int) -> int:
        """The sequence of what lies in a lane."""
        return self.u32(self.layout.lanes + lane * LANE_BYTES)

    def take_back(self) -> bytes:
        """Of a slot that carries bytes: what has come, taken."""
        tail, head = self.u64(BACK_TAIL), self.u64(BACK_HEAD)
        data = self._get(self.layout.arena, self.layout.ring_bytes, head, tail - head)
        self.set_u64(BACK_HEAD, tail)
        self.wake_host()
        return data

    # the host's side

    def take(self) -> bytes:
        """Takes one frame out of the ring; empty: there is none."""
        head, ring, size = self.u64(HEAD), self.layout.ring, self.layout.ring_bytes
        if self.u64(TAIL) == head:
            return b""
        (count,) = struct.unpack("<I", self._get(ring, size, head, 4))
        frame = self._get(ring, size, head, count)
        self.set_u64(HEAD, head + count)
        return frame

    def put_answer(self, lane: int, sequence: int, status: int, body: bytes) -> None:
        """Answers, as a worker does."""
        at = self.layout.lanes + lane * LANE_BYTES
        self.memory[PAGE + at + 16 : PAGE + at + 16 + len(body)] = body
        self.set_u32(at + 8, status)
        self.set_u32(at + 12, len(body))
        self.set_u32(at, sequence)
        self.set_u32(at + 4, 0)
        self.wake(at)

    def _get(self, ring: int, size: int, position: int, count: int) -> bytes:
        start = position % size
        first = self.read(ring + start, min(count, size - start))
        return first + self.read(ring, count - len(first))

    def _put(self, ring: int, size: int, position: int, data: bytes) -> None:
        start = position % size
        first = data[: size - start]
        self.memory[PAGE + ring + start : PAGE + ring + start + len(first)] = first
        rest = data[len(first) :]
        self.memory[PAGE + ring : PAGE + ring + len(rest)] = rest


def format_region(descriptor: int, region_bytes: int, state: int) -> None:
    """Makes a region of one slot as the doorbell of release 0.1.0 does for a guest."""
    os.ftruncate(descriptor, region_bytes)
    slot = Slot(descriptor)
    layout = slot.layout
    slot.memory[:48] = struct.pack(
        "<QIIQQIIQ", REGION_MAGIC, 1, 1, region_bytes, slot.slot_bytes, 1, 0, 0
    )
    slot.write(0, struct.pack("<QII", SLOT_MAGIC, 0, LANES))
    places = (layout.lanes, LANE_BYTES, layout.mailbox, MAILBOX_BYTES, layout.marks, MARKS)
    slot.write(16, struct.pack("<6Q", *places))
    ends = (layout.ring, layout.ring_bytes, layout.arena, layout.arena_bytes)
    slot.write(64, struct.pack("<4Q", *ends))
    slot.set_u32(GENERATION, 1)
    slot.set_u32(STATE, state)


CHUNK = 64 << 10


class Area:
    """A part of a slot that both sides write, as it was when it was last looked at."""

    def __init__(self, at: int, count: int) -> None:
        self.at = at
        self._places = [(at + n, min(CHUNK, count - n)) for n in range(0, count, CHUNK)]
        self._seen = [bytes(size) for _, size in self._places]

    def changes(self, slot: Slot) -> Iterator[tuple[int, bytes]]:
        """The words that one side has changed, which are then seen."""
        for n, (at, size) in enumerate(self._places):
            old, now = self._seen[n], slot.read(at, size)
            if old == now:
                continue
            self._seen[n] = now
            begin = None
            for word in range(0, size + 8, 8):
                differs = word < size and old[word : word + 8] != now[word : word + 8]
                if differs and begin is None:
                    begin = word
                elif not differs and begin is not None:
                    yield at + begin, now[begin:word]
                    begin = None
