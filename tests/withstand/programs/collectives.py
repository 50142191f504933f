# SPDX-License-Identifier: Apache-2.0
"""A process with two devices that are two ranks, which does what each line of its input says.

`reduce N`: so many all-reduces on both, waited for. `hang`: one on both of which device 1 never
comes to its own, not waited for. `work A`: something on another stream of A. `use A`: all that A
has is done. `abort A`: its communicator is aborted. The first status that is none is printed, or 0.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import byref, c_int, c_size_t, c_void_p

from copier import NON_BLOCKING, SIZE, Failed, Side, cuda, good

FLOAT, SUM, COUNT = 7, 0, 1024

nccl = ctypes.CDLL("libnccl.so.2")


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("bytes", ctypes.c_char * 128),)


class Rank(Side):
    """A device with a communicator."""

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self.comm, self.spare = c_void_p(), c_void_p()
        good(cuda.cuStreamCreate(byref(self.spare), NON_BLOCKING))


def meet(ranks: list[Rank]) -> None:
    """They make a communicator."""
    name = UniqueId()
    good(nccl.ncclGetUniqueId(byref(name)))
    good(nccl.ncclGroupStart())
    for number, rank in enumerate(ranks):
        rank.use()
        good(nccl.ncclCommInitRank(byref(rank.comm), c_int(len(ranks)), name, c_int(number)))
    good(nccl.ncclGroupEnd())


def reduce(ranks: list[Rank]) -> None:
    """One collective, in each one's stream."""
    good(nccl.ncclGroupStart())
    for rank in ranks:
        rank.use()
        at = c_void_p(rank.memory.value)
        good(nccl.ncclAllReduce(at, at, c_size_t(COUNT), FLOAT, SUM, rank.comm, rank.stream))
    good(nccl.ncclGroupEnd())


def do(ranks: list[Rank], what: str, number: int) -> int:
    """One line's."""
    rank = ranks[number % len(ranks)]
    rank.use()
    if what == "reduce":
        for _ in range(number):
            reduce(ranks)
        for each in ranks:
            each.use()
            good(cuda.cuStreamSynchronize(each.stream))
    elif what == "hang":
        ranks[1].close_gate()
        reduce(ranks)
    elif what == "work":
        good(cuda.cuMemsetD8Async(rank.memory, 5, c_size_t(SIZE), rank.spare))
        good(cuda.cuStreamSynchronize(rank.spare))
    elif what == "abort":
        good(nccl.ncclCommAbort(rank.comm))
    else:
        good(cuda.cuCtxSynchronize())
    return 0


def main() -> None:
    """Until its input ends."""
    good(cuda.cuInit(0))
    ranks = [Rank(device) for device in range(2)]
    meet(ranks)
    print(len(ranks), flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        try:
            print(do(ranks, what, int(numbers[0]) if numbers else 0), flush=True)
        except Failed as failed:
            print(failed, flush=True)


if __name__ == "__main__":
    main()
