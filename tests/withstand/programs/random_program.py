# SPDX-License-Identifier: Apache-2.0
"""Random work on a device, held against the same on the host: `random_program.py SEED SECONDS`.

Copies of all sizes from and to pageable and pinned memory, fills and copies on the device, in any
order. Pinned memory is overwritten or freed as soon as CUDA lets a program do so and not before.
Runs so many whole seeds from the first on as begin in that time, and prints their number, that of
the operations, and how many reads were wrong.
"""

from __future__ import annotations

import ctypes
import random
import sys
import time
from ctypes import byref, c_size_t, c_uint64, c_void_p

SIZE = 3 << 20
OPERATIONS = 24  # of a seed
SIZES = (1, 4096, 70_000, 300_000, 1 << 20, SIZE)

cuda = ctypes.CDLL("libcuda.so.1")


def must(result: int) -> None:
    """Every CUDA error ends it."""
    if result:
        raise SystemExit(f"a CUDA call ended with {result}")


class Run:
    """A seed's work."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.wrong = 0
        self.memory, self.stream, self.event = c_uint64(), c_void_p(), c_void_p()
        must(cuda.cuMemAlloc_v2(byref(self.memory), c_size_t(SIZE)))
        must(cuda.cuStreamCreate(byref(self.stream), 0))
        must(cuda.cuEventCreate(byref(self.event), 2))
        must(cuda.cuMemsetD8Async(self.memory, 0, c_size_t(SIZE), self.stream))
        self.model = bytearray(SIZE)
        self.free: list[c_void_p] = []  #: pinned blocks of SIZE that nothing uses
        self.used: list[c_void_p] = []  #: and those that the stream may still read

    def work(self) -> None:
        """All of it."""
        kinds = (self.store, self.store_pinned, self.load, self.load_pinned, self.fill, self.move)
        for _ in range(OPERATIONS):
            self.random.choice(kinds)()
            if self.random.random() < 0.3:
                self.wait()
        self.load()
        for block in self.used + self.free:  # some while the stream may read them: it waits
            must(cuda.cuMemFreeHost(block))
        must(cuda.cuMemFree_v2(self.memory))
        must(cuda.cuStreamDestroy_v2(self.stream))
        must(cuda.cuEventDestroy_v2(self.event))

    def part(self) -> tuple[int, int]:
        """Where it begins, and its bytes."""
        size = self.random.randint(1, self.random.choice(SIZES))
        return self.random.randint(0, SIZE - size), size

    def at(self, offset: int) -> c_uint64:
        """A device address."""
        return c_uint64(self.memory.value + offset)

    def block(self) -> c_void_p:
        """A pinned one."""
        if self.free:
            return self.free.pop()
        made = c_void_p()
        must(cuda.cuMemHostAlloc(byref(made), c_size_t(SIZE), 0))
        return made

    def wait(self) -> None:
        """In one of the ways that CUDA has; what the stream has passed is overwritten."""
        if self.random.random() < 0.5:
            must(cuda.cuStreamSynchronize(self.stream))
        else:
            must(cuda.cuEventRecord(self.event, self.stream))
            must(cuda.cuEventSynchronize(self.event))
        for block in self.used:
            ctypes.memset(block, 0xEE, SIZE)
        self.free += self.used
        self.used = []

    def store(self) -> None:
        """From pageable memory."""
        offset, size = self.part()
        data = self.random.randbytes(size)
        copy = cuda.cuMemcpyHtoDAsync_v2
        must(copy(self.at(offset), data, c_size_t(size), self.stream))
        self.model[offset : offset + size] = data

    def store_pinned(self) -> None:
        """From pinned memory, without a wait."""
        offset, size = self.part()
        data = self.random.randbytes(size)
        block = self.block()
        ctypes.memmove(block, data, size)
        must(cuda.cuMemcpyHtoDAsync_v2(self.at(offset), block, c_size_t(size), self.stream))
        self.model[offset : offset + size] = data
        self.used.append(block)

    def load(self) -> None:
        """To pageable memory."""
        offset, size = self.part()
        got = ctypes.create_string_buffer(size)
        must(cuda.cuMemcpyDtoHAsync_v2(got, self.at(offset), c_size_t(size), self.stream))
        self.wait()
        self.wrong += got.raw != bytes(self.model[offset : offset + size])

    def load_pinned(self) -> None:
        """To pinned memory."""
        offset, size = self.part()
        block = self.block()
        must(cuda.cuMemcpyDtoHAsync_v2(block, self.at(offset), c_size_t(size), self.stream))
        self.wait()
        got = ctypes.string_at(block, size)
        self.wrong += got != bytes(self.model[offset : offset + size])
        self.free.append(block)

    def fill(self) -> None:
        """On the device."""
        offset, size = self.part()
        value = self.random.randint(0, 255)
        must(cuda.cuMemsetD8Async(self.at(offset), value, c_size_t(size), self.stream))
        self.model[offset : offset + size] = bytes([value]) * size

    def move(self) -> None:
        """From one half to the other."""
        size = self.random.randint(1, SIZE // 2)
        copy = cuda.cuMemcpyDtoDAsync_v2
        must(copy(self.at(SIZE // 2), self.memory, c_size_t(size), self.stream))
        self.model[SIZE // 2 : SIZE // 2 + size] = self.model[:size]


def main() -> None:
    """Seed after seed."""
    first, seconds = int(sys.argv[1]), float(sys.argv[2])
    context = c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    end = time.monotonic() + seconds
    seeds = wrong = 0
    while time.monotonic() < end or seeds == 0:
        run = Run(first + seeds)
        run.work()
        seeds += 1
        wrong += run.wrong
    print(seeds, seeds * OPERATIONS, wrong)


if __name__ == "__main__":
    main()
