# SPDX-License-Identifier: Apache-2.0
"""A process with two devices, which does what each line of its standard input says.

`copy A B`: 64 KiB from the one device to the other, by the source's stream, and whether they are
right. `wait A B`: B's stream waits for an event of A's. `hold A B`, `expect A B`: the same, but
behind a gate on A that nobody opens, and not waited for. `load A B`: code for B, while streams of B
wait for a copy to B, and then for one from it, which are behind such a gate until B loads; and
whether the bytes are right. `use A`: all that A has is done. `read A`:
some of its memory, which waits for neither stream. `legacy A B`: as `copy`, by A's default stream
while a stream of B captures that B's default stream would wait for.
The CUresult of the first call that failed is printed, or 0; -1: the bytes are others.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p

SIZE = 1 << 16
BLOCKING, NON_BLOCKING, DISABLE_TIMING, GEQ = 0, 1, 2, 0
RELAXED, INVALIDATED = 2, 901
CODE = b".version 6.4\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n\0"

cuda = ctypes.CDLL("libcuda.so.1")


class Failed(Exception):
    """A call's CUresult."""


def good(status: int) -> None:
    """Raises Failed."""
    if status:
        raise Failed(status)


class Side:
    """A device with memory and two streams."""

    def __init__(self, device: int) -> None:
        self.context = c_void_p()
        good(cuda.cuDevicePrimaryCtxRetain(byref(self.context), device))
        self.use()
        self.stream, self.event, self.memory = c_void_p(), c_void_p(), c_uint64()
        good(cuda.cuStreamCreate(byref(self.stream), NON_BLOCKING))
        good(cuda.cuEventCreate(byref(self.event), DISABLE_TIMING))
        good(cuda.cuMemAlloc_v2(byref(self.memory), c_size_t(SIZE)))
        good(cuda.cuMemsetD8_v2(self.memory, 0, c_size_t(SIZE)))
        good(cuda.cuCtxSynchronize())
        self.value = 0
        self.opener = c_void_p()
        good(cuda.cuStreamCreate(byref(self.opener), NON_BLOCKING))

    def use(self) -> None:
        """Makes it current."""
        good(cuda.cuCtxSetCurrent(self.context))

    def fill(self) -> None:
        """Other bytes than before."""
        self.use()
        self.value = self.value % 200 + 1
        good(cuda.cuMemsetD8Async(self.memory, self.value, c_size_t(SIZE), self.stream))

    def close_gate(self) -> None:
        """Its stream waits for what never comes."""
        self.use()
        good(cuda.cuStreamSynchronize(self.stream))
        good(cuda.cuMemsetD8Async(self.memory, 0, c_size_t(SIZE), self.stream))
        good(cuda.cuStreamWaitValue32_v2(self.stream, self.memory, c_uint(7), GEQ))

    def open_gate(self) -> None:
        """It comes."""
        self.use()
        good(cuda.cuStreamWriteValue32_v2(self.opener, self.memory, c_uint(7), 0))


def copy(one: Side, other: Side) -> None:
    """In the source's stream."""
    one.use()
    good(
        cuda.cuMemcpyPeerAsync(
            other.memory, other.context, one.memory, one.context, c_size_t(SIZE), one.stream
        )
    )


def wait(one: Side, other: Side) -> None:
    """The other's stream, for the one's."""
    one.use()
    good(cuda.cuEventRecord(one.event, one.stream))
    other.use()
    good(cuda.cuStreamWaitEvent(other.stream, one.event, 0))


def compare(one: Side, other: Side) -> int:
    """Whether the other has the bytes of the one."""
    good(cuda.cuStreamSynchronize(one.stream))
    other.use()
    got = ctypes.create_string_buffer(SIZE)
    good(cuda.cuMemcpyDtoH_v2(got, other.memory, c_size_t(SIZE)))
    return 0 if got.raw == bytes([one.value]) * SIZE else -1


def copy_while_capturing(one: Side, other: Side) -> int:
    """The copy's status."""
    other.use()
    stream, graph = c_void_p(), c_void_p()
    good(cuda.cuStreamCreate(byref(stream), BLOCKING))
    good(cuda.cuStreamBeginCapture_v2(stream, RELAXED))
    one.use()
    status: int = cuda.cuMemcpyPeerAsync(
        other.memory, other.context, one.memory, one.context, c_size_t(SIZE), None
    )
    other.use()
    if cuda.cuStreamEndCapture(stream, byref(graph)) != INVALIDATED:
        return -1
    good(cuda.cuStreamDestroy_v2(stream))
    return status


def load(side: Side, failed: list[int]) -> None:
    """Code that the device does not have yet."""
    side.use()
    module = c_void_p()
    failed.append(cuda.cuModuleLoadData(byref(module), CODE))


def load_while_streams_wait(one: Side, other: Side, source: Side) -> int:
    """The other loads code while its stream waits for a copy that the one's gate keeps."""
    target = other if source is one else one
    one.close_gate()
    source.use()
    if source is other:
        other.fill()
        good(cuda.cuStreamSynchronize(other.stream))
    one.use()
    good(
        cuda.cuMemcpyPeerAsync(
            target.memory, target.context, source.memory, source.context, c_size_t(SIZE), one.stream
        )
    )
    failed: list[int] = []
    loading = threading.Thread(target=load, args=(other, failed))
    loading.start()
    loading.join(0.3)  # it is well under way
    one.open_gate()
    loading.join()
    good(failed[0])
    one.use()
    good(cuda.cuStreamSynchronize(one.stream))
    target.use()
    got = ctypes.create_string_buffer(SIZE)
    good(cuda.cuMemcpyDtoH_v2(got, target.memory, c_size_t(SIZE)))
    wanted = bytes([other.value]) * SIZE if source is other else bytes([7]).ljust(SIZE, b"\0")
    return 0 if got.raw == wanted else -1


def do(sides: list[Side], what: str, numbers: list[int]) -> int:
    """One line's."""
    one, other = sides[numbers[0]], sides[numbers[-1]]
    if what == "read":
        one.use()
        good(cuda.cuMemcpyDtoH_v2(ctypes.create_string_buffer(1), one.memory, c_size_t(1)))
        return 0
    if what == "use":
        one.use()
        good(cuda.cuCtxSynchronize())
        good(cuda.cuMemsetD8_v2(one.memory, 0, c_size_t(SIZE)))
        good(cuda.cuCtxSynchronize())
        return 0
    if what == "load":
        return load_while_streams_wait(one, other, one) or load_while_streams_wait(
            one, other, other
        )
    if what == "legacy":
        return copy_while_capturing(one, other)
    if what in ("hold", "expect"):
        one.close_gate()
    else:
        one.fill()
    if what in ("copy", "hold"):
        copy(one, other)
    else:
        wait(one, other)
    if what == "copy":
        return compare(one, other)
    if what == "wait":
        good(cuda.cuStreamSynchronize(other.stream))
    return 0


def main() -> None:
    """Until its input ends."""
    good(cuda.cuInit(0))
    sides = [Side(device) for device in range(2)]
    print(len(sides), flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        try:
            print(do(sides, what, [int(n) for n in numbers]), flush=True)
        except Failed as failed:
            print(failed, flush=True)


if __name__ == "__main__":
    main()
