# SPDX-License-Identifier: Apache-2.0
"""A process with devices of two nodes, which copies between them as each line of its input says.

`rectangles A B`: many rectangles each way at once, of odd widths, pitches and offsets.
`large A B S`: 48 MiB from A to B, by a stream of S. `use A`: all that A has is done, and it still
computes.
The CUresult of the first call that failed is printed, or 0; -1: the bytes are others.
"""

from __future__ import annotations

import ctypes
import random
import sys
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

SIZE = 48 << 20
NON_BLOCKING, DEVICE = 1, 2
#: Bytes of a row; the last is in more than one piece of a link's.
WIDTHS = (1, 3, 16, 48, 4097, (2 << 20) + 5)

cuda = ctypes.CDLL("libcuda.so.1")


class Failed(Exception):
    """A call's CUresult."""


def good(status: int) -> None:
    """Raises Failed."""
    if status:
        raise Failed(status)


class Side(ctypes.Structure):
    """One end of a CUDA_MEMCPY2D."""

    _fields_ = [
        ("x", c_size_t),
        ("y", c_size_t),
        ("type", c_uint),
        ("host", c_void_p),
        ("device", c_uint64),
        ("array", c_void_p),
        ("pitch", c_size_t),
    ]


class Copy(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [("source", Side), ("target", Side), ("width", c_size_t), ("height", c_size_t)]


class Device:
    """One with memory to read, memory to write and a stream."""

    def __init__(self, ordinal: int) -> None:
        self.context, self.stream = c_void_p(), c_void_p()
        self.source, self.target = c_uint64(), c_uint64()
        good(cuda.cuDevicePrimaryCtxRetain(byref(self.context), ordinal))
        self.use()
        good(cuda.cuStreamCreate(byref(self.stream), NON_BLOCKING))
        self.bytes = random.Random(ordinal).randbytes(SIZE)
        for memory, content in ((self.source, self.bytes), (self.target, bytes(SIZE))):
            good(cuda.cuMemAlloc_v2(byref(memory), c_size_t(SIZE)))
            good(cuda.cuMemcpyHtoD_v2(memory, c_char_p(content), c_size_t(SIZE)))

    def use(self) -> None:
        """Makes it current."""
        good(cuda.cuCtxSetCurrent(self.context))

    def written(self) -> bytes:
        """What there is to be written, once its stream is done."""
        self.use()
        good(cuda.cuStreamSynchronize(self.stream))
        got = ctypes.create_string_buffer(SIZE)
        good(cuda.cuMemcpyDtoH_v2(got, self.target, c_size_t(SIZE)))
        return got.raw


def shapes() -> list[tuple[int, int, int, int, int]]:
    """Width, rows, offset and both pitches of each."""
    chosen = random.Random(7)
    found = []
    for width in WIDTHS:
        for rows in range(1, 3 if width > 1 << 20 else 8):
            straight = chosen.random() < 0.3
            pitches = [width + (0 if straight else chosen.choice((0, 1, 13, 16))) for _ in range(2)]
            found.append((width, rows, chosen.choice((0, 1, 4, 16)), *pitches))
    return found


def copy_all(one: Device, other: Device, expected: bytearray) -> None:
    """One behind the other in the target's memory, from the source's stream."""
    one.use()
    at = 0
    for width, rows, offset, from_pitch, to_pitch in shapes():
        copy = Copy(
            Side(type=DEVICE, device=one.source.value + at + offset, pitch=from_pitch),
            Side(type=DEVICE, device=other.target.value + at, pitch=to_pitch),
            width,
            rows,
        )
        good(cuda.cuMemcpy2DAsync_v2(byref(copy), one.stream))
        for row in range(rows):
            source, target = at + offset + row * from_pitch, at + row * to_pitch
            expected[target : target + width] = one.bytes[source : source + width]
        at += -(-rows * max(from_pitch, to_pitch) // 256) * 256 + offset


def rectangles(devices: list[Device]) -> int:
    """In both directions at once."""
    for one in devices:
        one.use()
        good(cuda.cuMemsetD8Async(one.target, 0, c_size_t(SIZE), one.stream))
        good(cuda.cuStreamSynchronize(one.stream))
    expected = [bytearray(SIZE), bytearray(SIZE)]
    for number, (one, other) in enumerate((devices, devices[::-1])):
        copy_all(one, other, expected[number])
    for one in devices:
        one.use()
        good(cuda.cuStreamSynchronize(one.stream))
    right = [other.written() == expected[i] for i, other in enumerate(devices[::-1])]
    return 0 if all(right) else -1


def do(devices: list[Device], what: str, numbers: list[int]) -> int:
    """One line's."""
    one, other = devices[numbers[0]], devices[numbers[min(1, len(numbers) - 1)]]
    if what == "rectangles":
        return rectangles([one, other])
    if what == "use":
        one.use()
        good(cuda.cuCtxSynchronize())
        good(cuda.cuMemsetD8_v2(one.target, 0, c_size_t(SIZE)))
        good(cuda.cuCtxSynchronize())
        return 0
    by = devices[numbers[2]]
    by.use()
    good(
        cuda.cuMemcpyPeerAsync(
            other.target, other.context, one.source, one.context, c_size_t(SIZE), by.stream
        )
    )
    good(cuda.cuStreamSynchronize(by.stream))
    return 0 if other.written() == one.bytes else -1


def main() -> None:
    """Until its input ends."""
    good(cuda.cuInit(0))
    count = c_int()
    good(cuda.cuDeviceGetCount(byref(count)))
    devices = [Device(ordinal) for ordinal in range(count.value)]
    print(len(devices), flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        try:
            print(do(devices, what, [int(n) for n in numbers]), flush=True)
        except Failed as failed:
            print(failed, flush=True)


if __name__ == "__main__":
    main()
