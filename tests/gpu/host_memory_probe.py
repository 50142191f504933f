# SPDX-License-Identifier: Apache-2.0
"""How a session's memory could reach the node's host memory: registered, or made by the driver.

    python3 tests/gpu/host_memory_probe.py [--gib 8]    # as root, for huge pages; cuda-bindings

The probe behind docs/decisions/0012-suspension.md, "What bounds a move". Prints GiB/s of copies out
of the card and in, with host memory that is registered while the pieces before it are copied (what
the worker does), and with memory of `cuMemCreate` on a NUMA node, which another process made,
exported and has still, and which is mapped while the pieces before it are copied. Decides nothing.
Without a GPU or cuda-bindings it says that it was skipped.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import socket
import sys
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
        self._memory = int(ok(cu.cuMemAlloc(count)))
        self._stream = ok(cu.cuStreamCreate(1))

    def rate(self, host: int, piece: int, ready: Step, *, out: bool) -> float:
        """GiB/s of all of it in pieces, each of which is made ready when it is about to be used."""
        began = time.perf_counter()
        for at in range(0, self.bytes, piece):
            ready(at, piece)
            to, source = (host, self._memory) if out else (self._memory, host)
            ok(cu.cuMemcpyAsync(to + at, source + at, piece, self._stream))
        ok(cu.cuStreamSynchronize(self._stream))
        return self.bytes / GIB / (time.perf_counter() - began)


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


def registered(card: Card) -> None:
    """Host memory that is registered as it is used."""
    with huge_memory(card.bytes) as host:

        def register(at: int, count: int) -> None:
            ok(cu.cuMemHostRegister(host + at, count, 1))

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
    parser.add_argument("--gib", type=int, default=8)
    count = parser.parse_args().gib * GIB
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
    made_by_the_driver(card, descriptors)
    ours.close()
    os.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
