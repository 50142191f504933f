# SPDX-License-Identifier: Apache-2.0
"""Random work on a device, held against the same on the host.

    random_program.py SEED SECONDS [LARGEST [THREADS]]

Copies of all sizes up to the largest from and to pageable and pinned memory, fills and copies on
the device, in any order. Pinned memory is overwritten or freed as soon as CUDA lets a program do so
and not before.
Between them kernels add to sums in place, on two streams that events order, and take from memory
that is allocated and freed while they run: what is done twice, or not at all, shows in the sums.
Now and then the process forks, and its child ends at once.
Runs so many whole seeds from the first on as begin in that time, in several threads at once if it
is told to, and prints their number, that of the operations, and how many reads were wrong.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p

SIZE = 3 << 20
OPERATIONS = 36  # of a seed
SIZES = (1, 4096, 70_000, 300_000, 1 << 20, SIZE)

WORDS, THREADS = 1000, 128  # of the sums, and of a block that adds to them
BLOCKS_HELD = 4  # allocated memory that is not freed yet
MODULO = 1 << 32

#: to[i] += factor * from[i] + i
ACCUMULATE = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry accumulate(.param .u64 to, .param .u64 from, .param .u32 factor, .param .u32 count)
{
  .reg .pred %p<1>;
  .reg .b32 %r<7>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd0, [to];
  ld.param.u64 %rd1, [from];
  ld.param.u32 %r0, [factor];
  ld.param.u32 %r1, [count];
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mad.lo.u32 %r2, %r2, %r3, %r4;
  setp.ge.u32 %p0, %r2, %r1;
  @%p0 bra done;
  mul.wide.u32 %rd2, %r2, 4;
  add.s64 %rd0, %rd0, %rd2;
  add.s64 %rd1, %rd1, %rd2;
  ld.global.u32 %r5, [%rd0];
  ld.global.u32 %r6, [%rd1];
  mad.lo.u32 %r5, %r6, %r0, %r5;
  add.u32 %r5, %r5, %r2;
  st.global.u32 [%rd0], %r5;
done:
  ret;
}
"""

cuda = ctypes.CDLL("libcuda.so.1")


def must(result: int) -> None:
    """Every CUDA error ends it."""
    if result:
        raise SystemExit(f"a CUDA call ended with {result}")


def free_bytes() -> int:
    """Of the device's memory."""
    free, total = c_size_t(), c_size_t()
    must(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value


class Sums:
    """Words in which kernels add up, on two streams, from memory that comes and goes."""

    def __init__(self, draw: random.Random, function: c_void_p) -> None:
        self.random, self.function = draw, function
        self.wrong = 0
        self.memory = c_uint64()
        must(cuda.cuMemAlloc_v2(byref(self.memory), c_size_t(4 * WORDS)))
        self.streams = [c_void_p(), c_void_p()]
        self.events = [c_void_p() for _ in range(3)]
        for stream in self.streams:
            must(cuda.cuStreamCreate(byref(stream), 1))  # only events order them
        for event in self.events:
            must(cuda.cuEventCreate(byref(event), 2))
        self.stream = self.streams[0]  #: the one that has the sums now
        must(cuda.cuMemsetD32Async(self.memory, 1, c_size_t(WORDS), self.stream))
        self.model = [1] * WORDS
        self.blocks: list[tuple[c_uint64, int, bool]] = []  #: each with its value; of a pool

    def launch(self, source: c_uint64, words: list[int]) -> None:
        """One kernel that adds from there, where these are."""
        factor, count = self.random.randrange(MODULO), self.random.randint(1, WORDS)
        values = self.memory, source, c_uint32(factor), c_uint32(count)
        parameters = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        blocks = -(-count // THREADS)
        launch = cuda.cuLaunchKernel
        must(launch(self.function, blocks, 1, 1, THREADS, 1, 1, 0, self.stream, parameters, None))
        new = [(self.model[i] + factor * words[i] + i) % MODULO for i in range(count)]
        self.model[:count] = new

    def accumulate(self) -> None:
        """A few, each of what those before it left."""
        for _ in range(self.random.randint(1, 5)):
            self.launch(self.memory, self.model)

    def hand_over(self) -> None:
        """The other stream goes on where this one is then."""
        event = self.random.choice(self.events)
        must(cuda.cuEventRecord(event, self.stream))
        [self.stream] = [stream for stream in self.streams if stream is not self.stream]
        must(cuda.cuStreamWaitEvent(self.stream, event, 0))

    def allocate(self) -> None:
        """Memory with a value in it, and the oldest goes while others may run."""
        block, value = c_uint64(), self.random.randrange(MODULO)
        pooled = self.random.random() < 0.5
        size = c_size_t(4 * WORDS * self.random.randint(1, 50))
        if pooled:
            must(cuda.cuMemAllocAsync(byref(block), size, self.stream))
        else:
            must(cuda.cuMemAlloc_v2(byref(block), size))
        must(cuda.cuMemsetD32Async(block, c_uint32(value), c_size_t(WORDS), self.stream))
        self.launch(block, [value] * WORDS)
        self.blocks.append((block, value, pooled))
        if len(self.blocks) > BLOCKS_HELD:
            self.free()

    def take(self) -> None:
        """From memory of before, which then goes."""
        if self.blocks:
            block, value, _ = self.blocks[0]
            self.launch(block, [value] * WORDS)
            self.free()

    def free(self) -> None:
        """The oldest, in the stream that has the sums or, where CUDA waits for all, at once."""
        block, _, pooled = self.blocks.pop(0)
        must(cuda.cuMemFreeAsync(block, self.stream) if pooled else cuda.cuMemFree_v2(block))

    def load(self) -> None:
        """All of them."""
        got = (c_uint32 * WORDS)()
        must(cuda.cuMemcpyDtoHAsync_v2(got, self.memory, c_size_t(4 * WORDS), self.stream))
        must(cuda.cuStreamSynchronize(self.stream))
        self.wrong += list(got) != self.model

    def end(self) -> None:
        """Nothing of it stays."""
        self.load()
        while self.blocks:
            self.free()
        must(cuda.cuMemFree_v2(self.memory))
        for stream in self.streams:
            must(cuda.cuStreamSynchronize(stream))
            must(cuda.cuStreamDestroy_v2(stream))
        for event in self.events:
            must(cuda.cuEventDestroy_v2(event))


class Run:
    """A seed's work."""

    def __init__(self, seed: int, function: c_void_p, largest: int) -> None:
        self.random = random.Random(seed)
        self.wrong = 0
        self.largest = largest
        self.sums = Sums(self.random, function)
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
        sums = self.sums
        kinds = (
            *(self.store, self.store_pinned, self.load, self.load_pinned, self.fill, self.move),
            *(sums.accumulate, sums.hand_over, sums.allocate, sums.take, sums.load, self.fork),
        )
        for _ in range(OPERATIONS):
            self.random.choice(kinds)()
            if self.random.random() < 0.3:
                self.wait()
        self.load()
        sums.end()
        for block in self.used + self.free:  # some while the stream may read them: it waits
            must(cuda.cuMemFreeHost(block))
        must(cuda.cuMemFree_v2(self.memory))
        must(cuda.cuStreamDestroy_v2(self.stream))
        must(cuda.cuEventDestroy_v2(self.event))
        self.wrong += sums.wrong

    def part(self) -> tuple[int, int]:
        """Where it begins, and its bytes."""
        size = self.random.randint(1, min(self.largest, self.random.choice(SIZES)))
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

    @staticmethod
    def fork() -> None:
        """A child that does nothing."""
        if not (child := os.fork()):
            os._exit(0)
        os.waitpid(child, 0)

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
    largest = int(sys.argv[3]) if len(sys.argv) > 3 else SIZE
    threads = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    context = c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    module, function = c_void_p(), c_void_p()
    must(cuda.cuModuleLoadData(byref(module), ACCUMULATE))
    must(cuda.cuModuleGetFunction(byref(function), module, b"accumulate"))

    def run(seed: int) -> int:
        must(cuda.cuCtxSetCurrent(context))
        one = Run(seed, function, largest)
        one.work()
        return one.wrong

    end = time.monotonic() + seconds
    seeds = wrong = 0
    with ThreadPoolExecutor(threads) as pool:
        while time.monotonic() < end or seeds == 0:
            before = free_bytes()
            wrong += sum(pool.map(run, range(first + seeds, first + seeds + threads)))
            seeds += threads
            if free_bytes() != before:
                raise SystemExit(f"{before - free_bytes()} bytes are not free again")
    print(seeds, seeds * OPERATIONS, wrong)


if __name__ == "__main__":
    main()
