# SPDX-License-Identifier: Apache-2.0
"""The program of node_copies.py: two devices, copies between them. Prints its figures as JSON.

node_copies_program.py MIB
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64, c_void_p

NON_BLOCKING = 1
DISABLE_TIMING = 2
COPIES = 4
TURNS = 100

cuda = ctypes.CDLL("libcuda.so.1")


def good(status: int) -> None:
    """Raises SystemExit for a CUresult that is none."""
    if status:
        raise SystemExit(f"CUresult {status}")


class Side:
    """A device with memory, a stream and an event."""

    def __init__(self, device: int, size: int) -> None:
        self.context, self.stream, self.event = c_void_p(), c_void_p(), c_void_p()
        self.memory = [c_uint64(), c_uint64()]
        good(cuda.cuDevicePrimaryCtxRetain(byref(self.context), device))
        self.use()
        for memory in self.memory:
            good(cuda.cuMemAlloc_v2(byref(memory), c_size_t(size)))
            good(cuda.cuMemsetD8_v2(memory, 1 + device, c_size_t(size)))
        good(cuda.cuStreamCreate(byref(self.stream), NON_BLOCKING))
        good(cuda.cuEventCreate(byref(self.event), DISABLE_TIMING))
        good(cuda.cuCtxSynchronize())

    def use(self) -> None:
        """Makes it the current device."""
        good(cuda.cuCtxSetCurrent(self.context))


def copy(source: Side, target: Side, size: int) -> None:
    """One copy to the other, in the source's stream."""
    source.use()
    good(
        cuda.cuMemcpyPeerAsync(
            target.memory[1],
            target.context,
            source.memory[0],
            source.context,
            c_size_t(size),
            source.stream,
        )
    )


def turn(source: Side, target: Side) -> None:
    """The other's stream waits for what this one's has come to."""
    source.use()
    good(cuda.cuEventRecord(source.event, source.stream))
    target.use()
    good(cuda.cuStreamWaitEvent(target.stream, source.event, 0))


def seconds(sides: list[Side], work: Callable[[], None]) -> float:
    """From the first call until all is done."""
    begun = time.perf_counter()
    work()
    for side in sides:
        side.use()
        good(cuda.cuStreamSynchronize(side.stream))
    return time.perf_counter() - begun


def main() -> None:
    """Copies, and turns that the two take."""
    size = int(sys.argv[1]) << 20
    good(cuda.cuInit(0))
    sides = [Side(device, size) for device in range(2)]
    one, other = sides

    def one_way() -> None:
        for _ in range(COPIES):
            copy(one, other, size)

    def both_ways() -> None:
        for _ in range(COPIES):
            copy(one, other, size)
            copy(other, one, size)

    def turns() -> None:
        for _ in range(TURNS):
            turn(one, other)
            turn(other, one)

    seconds(sides, lambda: copy(one, other, size))  # the nodes connect
    gib = COPIES * size / (1 << 30)
    print(
        json.dumps(
            {
                "cross_node_copy_gib_s": gib / seconds(sides, one_way),
                "cross_node_copy_both_ways_gib_s": 2 * gib / seconds(sides, both_ways),
                "cross_node_event_us": seconds(sides, turns) / (2 * TURNS) * 1e6,
            }
        )
    )


if __name__ == "__main__":
    main()
