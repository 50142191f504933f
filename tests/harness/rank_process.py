# SPDX-License-Identifier: Apache-2.0
"""A rank of a training, as torchrun starts them: it sees all devices and uses the one of its rank.

It does what the lines of its standard input say, and prints a line for each:

    id · join HEX · reduce FLOAT · peer · works DEVICE · quit

The first line that it prints is how many devices it sees and which is current, or "failed N".
`Rank` starts one and talks to it; it needs nothing of the project to run.
"""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

COUNT = 256  # floats of a collective
COPIED = 3 << 20  # bytes of a peer copy: more than a link's piece
RANKS = 2


class Rank:
    """Such a process, as a test sees it."""

    def __init__(self, rank: int, environment: Mapping[str, str], *before: str | Path) -> None:
        self.process = subprocess.Popen(
            [*before, sys.executable, __file__],
            env={**environment, "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.first = self.read()

    def read(self, most_seconds: float | None = None) -> str:
        """The next line that it says; "" where none comes in time."""
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], most_seconds)[0]:
            return ""
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> None:
        """A command whose answer is read later."""
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def do(self, line: str) -> str:
        """A command and its answer."""
        self.ask(line)
        return self.read()

    def kill(self) -> str:
        """As by the kernel; returns what it said on standard error."""
        self.process.kill()
        return self.process.communicate(timeout=60)[1]

    def close(self) -> str:
        """Ends it in good order; returns what it said on standard error."""
        return self.process.communicate(timeout=60)[1]


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("bytes", ctypes.c_ubyte * 128),)


class Work:
    """What a rank does on its device."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.nccl: ctypes.CDLL | None = None
        self.comm, self.context = c_void_p(), c_void_p()
        self.buffer = c_uint64()
        self.contexts: dict[int, c_void_p] = {}
        self.count = c_int()

    def begin(self) -> int:
        """The CUresult of the first call that failed, or 0."""
        status: int = self.cuda.cuInit(0) or self.cuda.cuDeviceGetCount(byref(self.count))
        status = status or self.use(self.rank)
        return status or int(self.cuda.cuMemAlloc_v2(byref(self.buffer), c_size_t(COUNT * 4)))

    def use(self, device: int) -> int:
        """Makes a device current."""
        status = 0
        if device not in self.contexts:
            context = c_void_p()
            status = self.cuda.cuDevicePrimaryCtxRetain(byref(context), device)
            self.contexts[device] = context
        return status or int(self.cuda.cuCtxSetCurrent(self.contexts[device]))

    def id(self, _: str) -> str:
        """NCCL's unique id, for the other ranks."""
        self.nccl = ctypes.CDLL("libnccl.so.2")
        value = UniqueId()
        status = self.nccl.ncclGetUniqueId(byref(value))
        return f"failed {status}" if status else bytes(value.bytes).hex()

    def join(self, text: str) -> str:
        """One communicator with the other ranks."""
        self.nccl = self.nccl or ctypes.CDLL("libnccl.so.2")
        value = UniqueId.from_buffer_copy(bytes.fromhex(text))
        return str(self.nccl.ncclCommInitRank(byref(self.comm), RANKS, value, self.rank))

    def reduce(self, text: str) -> str:
        """The sum over all ranks, as the last element has it."""
        assert self.nccl
        mine = (ctypes.c_float * COUNT)(*[float(text)] * COUNT)
        size, at = c_size_t(ctypes.sizeof(mine)), c_void_p(self.buffer.value)
        status = self.cuda.cuMemcpyHtoD_v2(self.buffer, mine, size)
        status = status or self.nccl.ncclAllReduce(at, at, c_size_t(COUNT), 7, 0, self.comm, None)
        status = status or self.cuda.cuMemcpyDtoH_v2(mine, self.buffer, size)
        return f"failed {status}" if status else f"{mine[COUNT - 1]:g}"

    def peer(self, _: str) -> str:
        """A copy from this rank's device to the next one's, and what has arrived there."""
        other = (self.rank + 1) % self.count.value
        sent, received = c_uint64(), c_uint64()
        found = (ctypes.c_ubyte * COPIED)()
        size, value = c_size_t(COPIED), 17 + self.rank
        status = self.use(other) or self.cuda.cuMemAlloc_v2(byref(received), size)
        status = status or self.cuda.cuMemsetD8_v2(received, 0, size)
        status = status or self.use(self.rank) or self.cuda.cuMemAlloc_v2(byref(sent), size)
        status = status or self.cuda.cuMemsetD8_v2(sent, value, size)
        to, of = self.contexts[other], self.contexts[self.rank]
        status = status or self.cuda.cuMemcpyPeer(received, to, sent, of, size)
        status = status or self.use(other) or self.cuda.cuMemcpyDtoH_v2(found, received, size)
        status = status or self.use(self.rank)
        for memory in (sent, received):
            self.cuda.cuMemFree_v2(memory)
        if status:
            return f"failed {status}"
        return str(value) if bytes(found) == bytes([value]) * COPIED else "other bytes"

    def works(self, text: str) -> str:
        """The CUresult of some work on a device."""
        address, size = c_uint64(), c_size_t(1 << 20)
        status = self.use(int(text)) or self.cuda.cuMemAlloc_v2(byref(address), size)
        status = status or self.cuda.cuMemsetD8_v2(address, 1, size)
        status = status or self.cuda.cuCtxSynchronize() or self.cuda.cuMemFree_v2(address)
        self.use(self.rank)
        return str(status)


def main() -> None:
    """Do as the lines say."""
    work = Work(int(os.environ["LOCAL_RANK"]))
    if status := work.begin():
        print(f"failed {status}", flush=True)
        sys.exit(1)
    print(work.count.value, work.rank, flush=True)
    verbs = {"id": work.id, "join": work.join, "reduce": work.reduce}
    verbs |= {"peer": work.peer, "works": work.works}
    for line in sys.stdin:
        verb, _, argument = line.strip().partition(" ")
        if verb == "quit":
            break
        print(verbs[verb](argument), flush=True)


if __name__ == "__main__":
    main()
