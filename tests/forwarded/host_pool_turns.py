# SPDX-License-Identifier: Apache-2.0
"""Pools of pinned host memory in random turns: what a stream reads there is what was put there.

    sluice run python host_pool_turns.py SEED

Buffers of two pools are filled by the host once their stream has come to rest, or by the stream;
copied to the device behind slow work, freed right behind the copy, and given out again to any
stream. Meanwhile pools are trimmed, limited, and destroyed with buffers in use. Run by
test_pinned.py; "right" on standard output unless a copy got what is another buffer's.
"""

from __future__ import annotations

import ctypes
import random
import sys
from ctypes import byref, c_int, c_size_t, c_ulonglong, c_void_p
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
SIZES = (100, 4 * KIB, 60 * KIB, 700 * KIB, 3 * MIB)
SLOW = 48 * MIB  #: bytes that a fill before a copy writes, so that the free is far ahead of it
SLOT = max(SIZES)
NON_BLOCKING = 1
ON_HOST_NODE = 3
RELEASE_THRESHOLD = 4
OUT_OF_MEMORY = 2

cuda = ctypes.CDLL("libcudart.so.13")


def ok(result: int) -> None:
    """Raises RuntimeError."""
    if result != 0:
        raise RuntimeError(f"CUDA error {result}")


class Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class PoolProps(ctypes.Structure):
    _fields_ = (
        ("kind", c_int),
        ("handles", c_int),
        ("location", Location),
        ("security", c_void_p),
        ("most", c_size_t),
        ("rest", ctypes.c_ubyte * 56),
    )


class Access(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", c_int))


@dataclass
class Buffer:
    at: int
    size: int
    stream: int  #: which alone uses it
    value: int


@dataclass
class Sent:
    slot: int
    size: int
    value: int


def device_memory(size: int) -> int:
    at = c_void_p()
    ok(cuda.cudaMalloc(byref(at), c_size_t(size)))
    return at.value or 0


class Turns:
    """Everything of one run."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.streams = [self._stream() for _ in range(3)]
        self.pools = [self._pool() for _ in range(2)]
        self.buffers: list[Buffer] = []
        self.sent: list[list[Sent]] = [[] for _ in self.streams]
        self.slow = device_memory(SLOW)
        self.slots = [device_memory(SLOT) for _ in range(24)]
        self.values = 0

    @staticmethod
    def _stream() -> c_void_p:
        stream = c_void_p()
        ok(cuda.cudaStreamCreateWithFlags(byref(stream), NON_BLOCKING))
        return stream

    def _pool(self) -> c_void_p:
        limit = self.dice.choice((0, 8 * MIB))
        props = PoolProps(kind=1, location=Location(ON_HOST_NODE, 0), most=limit)
        pool = c_void_p()
        ok(cuda.cudaMemPoolCreate(byref(pool), byref(props)))
        access = Access(Location(1, 0), 3)
        ok(cuda.cudaMemPoolSetAccess(pool, byref(access), c_size_t(1)))
        threshold = c_ulonglong(self.dice.choice((0, 4 * MIB, 1 << 40)))
        ok(cuda.cudaMemPoolSetAttribute(pool, RELEASE_THRESHOLD, byref(threshold)))
        return pool

    def next_value(self) -> int:
        self.values = self.values % 250 + 1
        return self.values

    def allocate(self) -> None:
        stream, size = self.dice.randrange(len(self.streams)), self.dice.choice(SIZES)
        at = c_void_p()
        pool = self.dice.choice(self.pools)
        result = cuda.cudaMallocFromPoolAsync(byref(at), c_size_t(size), pool, self.streams[stream])
        if result == OUT_OF_MEMORY:
            cuda.cudaGetLastError()
            return
        ok(result)
        assert at.value
        buffer = Buffer(at.value, size, stream, 0)
        for other in self.buffers:
            apart = other.at + other.size <= buffer.at or buffer.at + size <= other.at
            assert apart, "two allocations overlap"
        self.buffers.append(buffer)
        self.fill(buffer)

    def fill(self, buffer: Buffer) -> None:
        buffer.value = self.next_value()
        stream = self.streams[buffer.stream]
        if self.dice.random() < 0.5:
            ok(
                cuda.cudaMemsetAsync(
                    c_void_p(buffer.at), buffer.value, c_size_t(buffer.size), stream
                )
            )
            return
        ok(cuda.cudaStreamSynchronize(stream))
        ctypes.memset(buffer.at, buffer.value, buffer.size)

    def send(self) -> None:
        """To the device, behind something slow, and freed at once."""
        if not self.buffers or not self.slots:
            return
        buffer = self.buffers.pop(self.dice.randrange(len(self.buffers)))
        stream, slot = self.streams[buffer.stream], self.slots.pop()
        if self.dice.random() < 0.5:
            ok(cuda.cudaMemsetAsync(c_void_p(self.slow), 1, c_size_t(SLOW), stream))
        size = c_size_t(buffer.size)
        ok(cuda.cudaMemcpyAsync(c_void_p(slot), c_void_p(buffer.at), size, 4, stream))
        ok(cuda.cudaFreeAsync(c_void_p(buffer.at), stream))
        self.sent[buffer.stream].append(Sent(slot, buffer.size, buffer.value))

    def look(self) -> None:
        """What a stream got."""
        stream = self.dice.randrange(len(self.streams))
        got = ctypes.create_string_buffer(SLOT)
        ok(cuda.cudaStreamSynchronize(self.streams[stream]))
        for sent in self.sent[stream]:
            ok(cuda.cudaMemcpy(got, c_void_p(sent.slot), c_size_t(sent.size), 4))
            assert got.raw[: sent.size] == bytes([sent.value]) * sent.size, "another buffer's bytes"
            self.slots.append(sent.slot)
        self.sent[stream] = []
        for buffer in self.buffers:
            if buffer.stream == stream:
                found = ctypes.string_at(buffer.at, buffer.size)
                assert found == bytes([buffer.value]) * buffer.size, "a buffer was written over"

    def hand_on(self) -> None:
        """One stream waits for another."""
        earlier, later = self.dice.sample(self.streams, 2)
        event = c_void_p()
        ok(cuda.cudaEventCreateWithFlags(byref(event), 2))
        ok(cuda.cudaEventRecord(event, earlier))
        ok(cuda.cudaStreamWaitEvent(later, event, 0))
        ok(cuda.cudaEventDestroy(event))

    def trim(self) -> None:
        ok(cuda.cudaMemPoolTrimTo(self.dice.choice(self.pools), c_size_t(0)))

    def replace_pool(self) -> None:
        which = self.dice.randrange(len(self.pools))
        ok(cuda.cudaMemPoolDestroy(self.pools[which]))
        self.pools[which] = self._pool()

    def replace_stream(self) -> None:
        which = self.dice.randrange(len(self.streams))
        if self.sent[which] or any(buffer.stream == which for buffer in self.buffers):
            return
        ok(cuda.cudaStreamDestroy(self.streams[which]))
        self.streams[which] = self._stream()

    def run(self, turns: int) -> None:
        moves = [self.allocate] * 6 + [self.send] * 6 + [self.look] * 2
        moves += [self.hand_on, self.trim, self.replace_pool, self.replace_stream]
        for _ in range(turns):
            self.dice.choice(moves)()
            if len(self.buffers) > 30:
                self.send()


def main() -> None:
    """Run the command line."""
    Turns(int(sys.argv[1])).run(300)
    print("right")


if __name__ == "__main__":
    main()
