# SPDX-License-Identifier: Apache-2.0
"""What becomes of host memory that the driver makes, and how a worker copies to it fastest.

    python3 tests/gpu/driver_memory_probe.py [--gib 32] [empty|checkpoint|rates …]

The probe behind docs/decisions/0012-suspension.md, "What bounds a move", beside
host_memory_probe.py. `empty`: whether memory that another process filled is empty when it is made
anew, and whose who has its descriptor is. `checkpoint`: whether a process is restored that has a
descriptor, a handle or a mapping of it; as root. `rates`: GiB/s out of the card and in, by way of
mapping. Decides nothing. Without a GPU or cuda-bindings it says that it was skipped.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from checkpoint_calls import Checkpointer
from host_memory_probe import GIB, MIB, cu, ok, on_host, shareable

PIECE = 256 * MIB
PATTERN = 0xA5
MOST_SENT = 100  # descriptors of a message
#: How memory is mapped: pieces of one call for access, threads, streams that copy.
WAYS = {
    "as the copies go": (1, 1, 1),
    "by another thread": (1, 2, 1),
    "by four threads": (1, 5, 1),
    "access for four pieces": (4, 1, 1),
    "two streams": (1, 1, 2),
    "before the copies": (1, 0, 1),
}


def make(count: int) -> list[int]:
    """Descriptors of so many bytes, made by a process that has ended."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ok(cu.cuInit(0))
        handles = [ok(cu.cuMemCreate(PIECE, on_host(), 0)) for _ in range(count // PIECE)]
        found = [ok(cu.cuMemExportToShareableHandle(each, shareable(), 0)) for each in handles]
        for at in range(0, len(found), MOST_SENT):
            socket.send_fds(theirs, [b"x"], found[at : at + MOST_SENT])
            theirs.recv(1)
        os._exit(0)
    got: list[int] = []
    while len(got) < count // PIECE:
        got += socket.recv_fds(ours, 1, MOST_SENT)[1]
        ours.send(b"x")
    os.waitpid(pid, 0)
    return got


def in_process(what: Callable[..., None], *arguments: Any) -> None:
    """Runs it in a process of its own, which alone has a context."""
    pid = os.fork()
    if pid == 0:
        try:
            what(*arguments)
        finally:
            os._exit(1 if sys.exc_info()[0] else 0)
    os.waitpid(pid, 0)


def context() -> None:
    """The process' own, current in this thread."""
    ok(cu.cuInit(0))
    ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))


def access(on_host_too: bool) -> list[Any]:
    """The GPU's, and the processor's."""
    kinds = [cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE]
    kinds += [cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA] if on_host_too else []
    found = []
    for kind in kinds:
        found.append(cu.CUmemAccessDesc())
        found[-1].location.type = kind
        found[-1].flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    return found


class Mapped:
    """All of it, mapped."""

    def __init__(self, descriptors: Sequence[int], on_host_too: bool = False) -> None:
        self.bytes = PIECE * len(descriptors)
        self.at = int(ok(cu.cuMemAddressReserve(self.bytes, 0, 0, 0)))
        self._access = access(on_host_too)
        self._descriptors = descriptors
        self.handles: list[Any] = [None] * len(descriptors)

    def open(self, n: int, pieces: int = 1) -> None:
        """Some of its pieces."""
        for each in range(n, n + pieces):
            opened = ok(cu.cuMemImportFromShareableHandle(self._descriptors[each], shareable()))
            self.handles[each] = opened
            ok(cu.cuMemMap(self.at + each * PIECE, PIECE, 0, opened, 0))
        begin, size = self.at + n * PIECE, PIECE * pieces
        ok(cu.cuMemSetAccess(begin, size, self._access, len(self._access)))

    def unmap(self) -> None:
        """The handles stay."""
        ok(cu.cuMemUnmap(self.at, self.bytes))

    def release(self) -> None:
        """Of what is unmapped."""
        for handle in self.handles:
            ok(cu.cuMemRelease(handle))
        ok(cu.cuMemAddressFree(self.at, self.bytes))


def all_of(descriptors: Sequence[int], on_host_too: bool = False) -> Mapped:
    """The same, with a context."""
    context()
    memory = Mapped(descriptors, on_host_too)
    for n in range(len(descriptors)):
        memory.open(n)
    return memory


def close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def fill(descriptors: Sequence[int]) -> None:
    """By the GPU."""
    memory = all_of(descriptors)
    ok(cu.cuMemsetD8(memory.at, PATTERN, memory.bytes))
    ok(cu.cuCtxSynchronize())


def count(descriptors: Sequence[int], what: str, user: int = 0) -> None:
    """Says how much of it is not zero, and how much what fill() leaves; by the processor."""
    if user:
        os.setgid(user)
        os.setuid(user)
    memory = all_of(descriptors, on_host_too=True)
    other = filled = 0
    for at in range(0, memory.bytes, MIB):
        block = ctypes.string_at(memory.at + at, MIB)
        other += MIB - block.count(0)
        filled += block.count(PATTERN)
    print(f"  {what}: {other >> 20} MiB are not zero, {filled >> 20} MiB are filled", flush=True)


def empty(gib: int) -> None:
    """Made, filled by somebody, made anew."""
    made = make(min(gib, 4) * GIB)
    in_process(count, made, "fresh")
    in_process(fill, made)
    in_process(count, made, "filled by another process")
    close(made)
    again = make(min(gib, 4) * GIB)
    in_process(count, again, "made anew", 65534)
    close(again)


def checkpoint(gib: int) -> None:
    """A process that has it, taken off the card and restored."""
    for how in ("descriptor", "handle", "mapping"):
        made = make(min(gib, 1) * GIB)
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            holder(made, how, theirs)
        ours.recv(1)
        said = subprocess.run(
            [sys.executable, __file__, "--restore", str(pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        ours.settimeout(20)
        try:
            ours.send(b"x")
            right = ours.recv(1) == bytes([PATTERN])
        except OSError:
            right = False
        print(f"  with a {how}: {said.stdout.strip()}; {'right' if right else 'lost'}", flush=True)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        close(made)


def holder(descriptors: Sequence[int], how: str, to: socket.socket) -> None:
    """Fills it, keeps that much of it, and says later what its last byte is."""
    memory = all_of(descriptors)
    ok(cu.cuMemsetD8(memory.at, PATTERN, memory.bytes))
    ok(cu.cuCtxSynchronize())
    if how != "mapping":
        memory.unmap()
    if how == "descriptor":
        memory.release()
    to.send(b"x")
    to.recv(1)
    if how != "mapping":
        memory = all_of(descriptors)
    last = (ctypes.c_ubyte * 1)()
    ok(cu.cuMemcpyDtoH(ctypes.addressof(last), memory.at + memory.bytes - 1, 1))
    to.send(bytes(last))
    os._exit(0)


def restore(pid: int) -> None:
    """Takes a process off the card, and has it back; says what came of it."""
    one = Checkpointer(pid)
    steps = {
        "lock": one.lock,
        "checkpoint": one.checkpoint,
        "restore": one.restore,
        "unlock": one.unlock,
    }
    print(", ".join(f"{name} {step()}" for name, step in steps.items()))


class Copies:
    """Between the card and a host's memory, in pieces of which each is ready first."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        context()
        self._descriptors = descriptors
        self.bytes = PIECE * len(descriptors)
        self._card = int(ok(cu.cuMemAlloc(self.bytes)))
        self._streams = [ok(cu.cuStreamCreate(1)) for _ in range(2)]

    def rate(self, way: str, out: bool) -> tuple[float, float]:
        """GiB/s with mapping, and of the copies alone where all is mapped before."""
        together, threads, streams = WAYS[way]
        memory, pieces = Mapped(self._descriptors), len(self._descriptors)
        ready = [threading.Event() for _ in range(pieces)]
        began = time.perf_counter()

        def prepare(first: int, step: int) -> None:
            context()
            for n in range(first * together, pieces, step * together):
                memory.open(n, together)
                for each in range(n, n + together):
                    ready[each].set()

        if threads == 0:
            prepare(0, 1)
        copying = time.perf_counter()
        others = [
            threading.Thread(target=prepare, args=(first, threads - 1))
            for first in range(threads - 1)
        ]
        for other in others:
            other.start()
        for n in range(pieces):
            if threads == 1 and n % together == 0:
                memory.open(n, together)
            elif threads > 1:
                ready[n].wait()
            host, card = memory.at + n * PIECE, self._card + n * PIECE
            to, source = (host, card) if out else (card, host)
            ok(cu.cuMemcpyAsync(to, source, PIECE, self._streams[n % streams]))
        for stream in self._streams:
            ok(cu.cuStreamSynchronize(stream))
        ended = time.perf_counter()
        for other in others:
            other.join()
        memory.unmap()
        memory.release()
        return self.bytes / GIB / (ended - began), self.bytes / GIB / (ended - copying)


def measure(descriptors: Sequence[int]) -> None:
    """A line for each way."""
    copies = Copies(descriptors)
    for way in WAYS:
        out, inward = (copies.rate(way, out) for out in (True, False))
        alone = f"   the copies {out[1]:.1f} and {inward[1]:.1f}" if not WAYS[way][1] else ""
        print(f"  mapped {way:24} out {out[0]:5.1f}   in {inward[0]:5.1f} GiB/s{alone}", flush=True)


def rates(gib: int) -> None:
    """Of all ways."""
    made = make(gib * GIB)
    in_process(measure, made)
    close(made)


PARTS = {"empty": empty, "checkpoint": checkpoint, "rates": rates}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--gib", type=int, default=32, help="that are copied")
    parser.add_argument("--restore", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if cu is None or not Path("/dev/nvidiactl").exists():
        print("skipped: it needs an NVIDIA GPU and cuda-bindings")
        return 0
    if options.restore:
        restore(options.restore)
        return 0
    for part in options.parts:
        print(part, flush=True)
        PARTS[part](options.gib)
    return 0


if __name__ == "__main__":
    sys.exit(main())
