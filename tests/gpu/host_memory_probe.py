# SPDX-License-Identifier: Apache-2.0
"""How a session's memory could reach the node's host memory: registered, or made by the driver.

    python3 tests/gpu/host_memory_probe.py [--gib 8]    # as root, for huge pages; cuda-bindings

The probe behind docs/decisions/0012-suspension.md, "What bounds a move". Prints GiB/s of copies out
of the card and in, with host memory that is registered while the pieces before it are copied (what
the worker does), with memory of `cuMemCreate` on a NUMA node, which another process made, exported
and has still, and which is mapped while the pieces before it are copied, and with memory that is
not registered at all: threads carry it to and from pinned staging of their own. The last kind is
both at once: a part is registered while threads carry the rest. Decides nothing.
Without a GPU or cuda-bindings it says that it was skipped.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    from cuda.bindings import driver as cu
except ImportError:
    cu = None

MIB, GIB = 1 << 20, 1 << 30
PIECES = (64 * MIB, 256 * MIB, GIB)
HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")
MOST_GIB = 15  # one message has 253 descriptors
STAGED_BYTES = 16 * MIB
STAGING_THREADS = (2, 4, 8, 12)
REGISTERED_SHARES = (0.5, 0.65)
Step = Callable[[int, int], None]
"""What is done with a piece: its offset and its bytes."""


def ok(result: tuple[Any, ...]) -> Any:
    """What a call returned; raises RuntimeError."""
    if result[0] != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(str(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def on_host() -> Any:
    """Memory of the first NUMA node that can be exported."""
    asked = cu.CUmemAllocationProp()
    asked.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    asked.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA
    asked.requestedHandleTypes = shareable()
    return asked


def shareable() -> Any:
    """The kind of handle that another process opens."""
    return cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR


class Card:
    """Memory of the card, and copies between it and the host; the context is current."""

    def __init__(self, count: int) -> None:
        self.bytes = count
        cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0)))
        self.memory = int(ok(cu.cuMemAlloc(count)))
        self._stream = ok(cu.cuStreamCreate(1))

    def rate(
        self, host: int, piece: int, ready: Step, *, out: bool, end: int | None = None
    ) -> float:
        """GiB/s of it up to `end` in pieces, each made ready when it is about to be used."""
        end = end or self.bytes
        began = time.perf_counter()
        for at in range(0, end, piece):
            ready(at, piece)
            to, source = (host, self.memory) if out else (self.memory, host)
            ok(cu.cuMemcpyAsync(to + at, source + at, piece, self._stream))
        ok(cu.cuStreamSynchronize(self._stream))
        return end / GIB / (time.perf_counter() - began)


class Staging:
    """Two pinned pieces: one is under way between card and host while the other is carried on."""

    def __init__(self, card: Card, host: int, out: bool) -> None:
        self._memory, self._host, self._out = card.memory, host, out
        self._pieces = [int(ok(cu.cuMemHostAlloc(STAGED_BYTES, 1))) for _ in range(2)]
        self._streams = [ok(cu.cuStreamCreate(1)) for _ in range(2)]

    def carry(self, offsets: range) -> None:
        """The pieces at these offsets; a thread's."""
        cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0)))
        behind: int | None = None
        for n, at in enumerate(offsets):
            piece, stream = self._pieces[n % 2], self._streams[n % 2]
            if self._out:
                ok(cu.cuMemcpyAsync(piece, self._memory + at, STAGED_BYTES, stream))
                if behind is not None:
                    self._take(n - 1, behind)
                behind = at
            else:
                ok(cu.cuStreamSynchronize(stream))
                ctypes.memmove(piece, self._host + at, STAGED_BYTES)
                ok(cu.cuMemcpyAsync(self._memory + at, piece, STAGED_BYTES, stream))
        if behind is not None:
            self._take(len(offsets) - 1, behind)
        for stream in self._streams:
            ok(cu.cuStreamSynchronize(stream))

    def free(self) -> None:
        """Gives its memory back."""
        for piece in self._pieces:
            ok(cu.cuMemFreeHost(piece))

    def _take(self, n: int, at: int) -> None:
        ok(cu.cuStreamSynchronize(self._streams[n % 2]))
        ctypes.memmove(self._host + at, self._pieces[n % 2], STAGED_BYTES)


@contextmanager
def huge_memory(count: int) -> Iterator[int]:
    """The address of memory on huge pages, touched."""
    before = HUGE_PAGES.read_text()
    HUGE_PAGES.write_text(str(count // (2 * MIB) + 64))
    descriptor = os.memfd_create("sluice-probe", os.MFD_CLOEXEC | os.MFD_HUGETLB)
    try:
        os.ftruncate(descriptor, count)
        with mmap.mmap(descriptor, count) as memory:
            window = (ctypes.c_char * count).from_buffer(memory)
            ctypes.memset(window, 1, count)
            yield ctypes.addressof(window)
            del window
    finally:
        os.close(descriptor)
        HUGE_PAGES.write_text(before)


def register_at(host: int) -> Step:
    """Registers a piece of the memory there."""

    def register(at: int, count: int) -> None:
        ok(cu.cuMemHostRegister(host + at, count, 1))

    return register


def registered(card: Card) -> None:
    """Host memory that is registered as it is used."""
    with huge_memory(card.bytes) as host:
        register = register_at(host)
        for piece in PIECES:
            rates = []
            for out in (True, False):
                rates.append(card.rate(host, piece, register, out=out))
                for at in range(0, card.bytes, piece):
                    ok(cu.cuMemHostUnregister(host + at))
            say("registered", piece, rates)
        register(0, card.bytes)
        rates = [card.rate(host, PIECES[1], lambda *_: None, out=out) for out in (True, False)]
        say("registered before", card.bytes, rates)
        ok(cu.cuMemHostUnregister(host))


def carried(card: Card) -> None:
    """Host memory that is never registered, or in part."""
    with huge_memory(card.bytes) as host:
        for threads in STAGING_THREADS:
            say(f"carried by {threads}", STAGED_BYTES, carried_rates(card, host, threads, 0))
        for share in REGISTERED_SHARES:
            for threads in STAGING_THREADS:
                begin = int(card.bytes * share) // GIB * GIB
                rates = carried_rates(card, host, threads, begin)
                say(f"{threads}, {begin / card.bytes:.0%} reg.", STAGED_BYTES, rates)


def carried_rates(card: Card, host: int, threads: int, begin: int) -> list[float]:
    """GiB/s out and in, where so many bytes are registered meanwhile and the rest is carried."""
    rates = []
    step = threads * STAGED_BYTES
    starts = range(begin, begin + step, STAGED_BYTES)
    for out in (True, False):
        staging = [Staging(card, host, out) for _ in starts]
        carrying = [
            threading.Thread(target=one.carry, args=(range(start, card.bytes, step),))
            for one, start in zip(staging, starts, strict=True)
        ]
        began = time.perf_counter()
        for thread in carrying:
            thread.start()
        if begin:
            card.rate(host, GIB, register_at(host), out=out, end=begin)
        for thread in carrying:
            thread.join()
        rates.append(card.bytes / GIB / (time.perf_counter() - began))
        for one in staging:
            one.free()
        for at in range(0, begin, GIB):
            ok(cu.cuMemHostUnregister(host + at))
    return rates


def made_by_the_driver(card: Card, descriptors: dict[int, list[int]]) -> None:
    """Another process' memory, mapped as it is used."""
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    host = int(ok(cu.cuMemAddressReserve(card.bytes, GIB, 0, 0)))

    def give_access(at: int, count: int) -> None:
        ok(cu.cuMemSetAccess(host + at, count, [access], 1))

    for piece, found in descriptors.items():
        handles = [ok(cu.cuMemImportFromShareableHandle(fd, shareable())) for fd in found]
        rates = []
        for out in (True, False):
            for n, handle in enumerate(handles):
                ok(cu.cuMemMap(host + n * piece, piece, 0, handle, 0))
            rates.append(card.rate(host, piece, give_access, out=out))
            ok(cu.cuMemUnmap(host, card.bytes))
        say("made by the driver", piece, rates)
        for handle in handles:
            ok(cu.cuMemRelease(handle))


def say(kind: str, piece: int, rates: list[float]) -> None:
    """A line of the table."""
    print(
        f"{kind:20}{piece // MIB:6} MiB   out {rates[0]:5.1f}   in {rates[1]:5.1f} GiB/s",
        flush=True,
    )


def make(count: int, to: socket.socket) -> None:
    """A process without a context makes the memory, hands it on, and keeps it until it is told."""
    ok(cu.cuInit(0))
    kept = []
    for piece in PIECES:
        began = time.perf_counter()
        handles = [ok(cu.cuMemCreate(piece, on_host(), 0)) for _ in range(count // piece)]
        rate = count / GIB / (time.perf_counter() - began)
        print(f"made in pieces of {piece // MIB} MiB: {rate:.1f} GiB/s", flush=True)
        sent = [ok(cu.cuMemExportToShareableHandle(handle, shareable(), 0)) for handle in handles]
        socket.send_fds(to, [b"x"], sent)
        kept.append(handles)
        to.recv(1)
    to.recv(1)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gib", type=int, default=8, help=f"at most {MOST_GIB}")
    count = min(parser.parse_args().gib, MOST_GIB) * GIB
    if cu is None or not Path("/dev/nvidiactl").exists():
        print("skipped: it needs an NVIDIA GPU and cuda-bindings")
        return 0
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        make(count, theirs)
        os._exit(0)
    theirs.close()
    descriptors = {}
    for piece in PIECES:
        descriptors[piece] = socket.recv_fds(ours, 1, count // piece)[1]
        ours.send(b"x")
    ok(cu.cuInit(0))
    card = Card(count)
    registered(card)
    carried(card)
    made_by_the_driver(card, descriptors)
    ours.close()
    os.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
