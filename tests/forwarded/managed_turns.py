# SPDX-License-Identifier: Apache-2.0
"""Managed memory in random turns, against plain arrays: run by test_managed.py with a seed.

As tests/programs/managed_random.cu without kernels, so from Python: the program's reads and writes,
fills, copies of every kind, prefetches and attachments on three streams; then a socket, small
objects, a host function and a child of fork. Ends with an exception where something is not as it
must be.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import sys
import threading

CUDA = ctypes.CDLL("libcudart.so.13")
POINTER, SIZE = ctypes.c_void_p, ctypes.c_size_t
SIZES = (3 << 20, 5000, 100_000)
TO_HOST, DEFAULT, TO_DEVICE_LOCATION, TO_HOST_LOCATION = 2, 4, 1, 2
ATTACHMENTS = (1, 2, 4)  # to all, to the host, to one stream
STEPS = 600


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


def done(error: int) -> None:
    """Every call is to succeed."""
    if error:
        raise SystemExit(f"CUDA error {error}")


def managed(size: int) -> int:
    """The address of a new allocation, in bytes."""
    place = POINTER()
    done(CUDA.cudaMallocManaged(ctypes.byref(place), SIZE(size), 1))
    assert place.value
    return place.value


def view(place: int, size: int) -> memoryview:
    """Its bytes."""
    return memoryview((ctypes.c_ubyte * size).from_address(place)).cast("B")


class Turns:
    """The buffers, what they are to hold, and streams whose work follows in order."""

    def __init__(self) -> None:
        self.places = [managed(size) for size in SIZES]
        self.views = [view(p, n) for p, n in zip(self.places, SIZES, strict=True)]
        self.models = [bytearray(size) for size in SIZES]
        for each, size in zip(self.views, SIZES, strict=True):
            each[:] = bytes(size)
        self.streams = [POINTER() for _ in range(3)]
        for stream in self.streams:
            done(CUDA.cudaStreamCreateWithFlags(ctypes.byref(stream), 1))
        self.last = POINTER()
        done(CUDA.cudaEventCreateWithFlags(ctypes.byref(self.last), 2))

    def part(self, i: int, most: int = 1 << 30) -> tuple[int, int]:
        """Offset and length of some of a buffer."""
        start = random.randrange(SIZES[i])
        longest = min(SIZES[i] - start, most, random.choice([64, 5000, 1 << 30]))
        return start, random.randint(1, longest)

    def step(self) -> None:
        """One turn of whoever's it is."""
        i = random.randrange(3)
        start, count = self.part(i)
        at, byte = POINTER(self.places[i] + start), random.randrange(256)
        kind = random.randrange(7)
        if kind < 2:
            if random.randrange(2):  # else the touch itself waits
                done(CUDA.cudaDeviceSynchronize())
            if kind == 0:
                self.compare(i, start, count)
            else:
                fill = bytes([byte]) * count
                self.views[i][start : start + count] = fill
                self.models[i][start : start + count] = fill
            return
        stream = random.choice(self.streams)
        done(CUDA.cudaStreamWaitEvent(stream, self.last, 0))
        if kind == 2:
            done(CUDA.cudaMemsetAsync(at, byte, SIZE(count), stream))
            self.models[i][start : start + count] = bytes([byte]) * count
        elif kind == 3:
            j = (i + 1) % 3
            other, length = self.part(j, count)
            to, how = POINTER(self.places[j] + other), random.randint(1, DEFAULT)
            done(CUDA.cudaMemcpyAsync(to, at, SIZE(length), how, stream))
            self.models[j][other : other + length] = self.models[i][start : start + length]
        elif kind == 4:
            where = Location(random.choice([TO_DEVICE_LOCATION, TO_HOST_LOCATION]), 0)
            done(CUDA.cudaMemPrefetchAsync(at, SIZE(count), where, 0, stream))
        elif kind == 5:
            place, how = POINTER(self.places[i]), random.choice(ATTACHMENTS)
            done(CUDA.cudaStreamAttachMemAsync(stream, place, SIZE(0), how))
        else:
            copy = ctypes.create_string_buffer(count)
            done(CUDA.cudaMemcpyAsync(copy, at, SIZE(count), TO_HOST, stream))
            done(CUDA.cudaStreamSynchronize(stream))
            assert copy.raw == self.models[i][start : start + count], (i, start, count)
        done(CUDA.cudaEventRecord(self.last, stream))

    def compare(self, i: int, start: int, count: int) -> None:
        """What the program sees is what the model has."""
        seen = bytes(self.views[i][start : start + count])
        assert seen == self.models[i][start : start + count], (i, start, count)


def by_socket(turns: Turns) -> None:
    """Sent from managed memory, received into it."""
    ours, theirs = socket.socketpair()
    done(CUDA.cudaMemset(POINTER(turns.places[0]), 5, SIZE(SIZES[0])))
    done(CUDA.cudaDeviceSynchronize())
    sender = threading.Thread(target=lambda: ours.sendall(turns.views[0][: SIZES[2]]))
    sender.start()
    got = 0
    while got < SIZES[2]:
        got += theirs.recv_into(turns.views[2][got:])
    sender.join()
    assert set(turns.views[2]) == {5}


def small_ones() -> None:
    """Many of less than a page."""
    places = [managed(24) for _ in range(700)]
    for i, place in enumerate(places):
        ctypes.c_long.from_address(place).value = i
    done(CUDA.cudaMemset(POINTER(places[-1]), 0, SIZE(8)))
    done(CUDA.cudaDeviceSynchronize())
    assert sum(ctypes.c_long.from_address(p).value for p in places) == sum(range(699))
    for place in places:
        done(CUDA.cudaFree(POINTER(place)))


def in_host_function(turns: Turns) -> None:
    """It sees what its stream has done, and what it writes is there after it."""
    seen: list[set[int]] = []

    def look(_: object) -> None:
        seen.append(set(bytes(turns.views[0][:200_000])))
        turns.views[0][3] = 77

    function = ctypes.CFUNCTYPE(None, POINTER)(look)
    stream = turns.streams[0]
    done(CUDA.cudaMemsetAsync(POINTER(turns.places[0]), 9, SIZE(SIZES[0]), stream))
    done(CUDA.cudaLaunchHostFunc(stream, function, None))
    done(CUDA.cudaStreamSynchronize(stream))
    assert seen == [{9}]
    assert (turns.views[0][3], turns.views[0][4]) == (77, 9)


def in_a_child(turns: Turns) -> None:
    """A touch ends it, and it does not hang."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        ctypes.string_at(turns.places[0], 1)
        os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGSEGV
    assert turns.views[0][4] == 9


def main() -> None:
    """All of it."""
    random.seed(int(sys.argv[1]))
    turns = Turns()
    for _ in range(STEPS):
        turns.step()
    done(CUDA.cudaDeviceSynchronize())
    for i, size in enumerate(SIZES):
        turns.compare(i, 0, size)
    by_socket(turns)
    small_ones()
    in_host_function(turns)
    in_a_child(turns)
    for place in turns.places:
        done(CUDA.cudaFree(POINTER(place)))
    assert CUDA.cudaFree(POINTER(turns.places[0])) != 0
    print("right")


if __name__ == "__main__":
    main()
