# SPDX-License-Identifier: Apache-2.0
"""The program of test_third_devices.py: two devices of one node and one of another.

Run with libcuda.so.1 of Sluice in the loader's path. Device 0 is current while others are meant.
"""

from __future__ import annotations

import ctypes
import threading
import time
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p

SIZE = 1 << 16
NON_BLOCKING, GEQ = 1, 0
INVALID_VALUE = 1
OPEN = 7

cuda = ctypes.CDLL("libcuda.so.1")


def good(status: int) -> None:
    """Fail unless a call succeeded."""
    assert status == 0, status


class Device:
    """A device with memory and a stream that its default stream does not wait for."""

    def __init__(self, number: int) -> None:
        self.context, self.stream, self.memory = c_void_p(), c_void_p(), c_uint64()
        good(cuda.cuDevicePrimaryCtxRetain(byref(self.context), number))
        self.use()
        good(cuda.cuStreamCreate(byref(self.stream), NON_BLOCKING))
        good(cuda.cuMemAlloc_v2(byref(self.memory), c_size_t(SIZE)))
        self.clear()

    def use(self) -> None:
        """Makes it current."""
        good(cuda.cuCtxSetCurrent(self.context))

    def clear(self) -> None:
        """Zeros its memory."""
        self.use()
        good(cuda.cuMemsetD8_v2(self.memory, 0, c_size_t(SIZE)))
        good(cuda.cuCtxSynchronize())

    def bytes(self) -> set[int]:
        """What its memory has."""
        self.use()
        found = ctypes.create_string_buffer(SIZE)
        good(cuda.cuMemcpyDtoH_v2(found, self.memory, c_size_t(SIZE)))
        return set(found.raw)


def copy_behind(one: Device, other: Device, current: Device) -> None:
    """cuMemcpyPeer comes behind what a device was given, whichever is current."""
    other.clear()
    one.clear()
    gate, opens = c_uint64(), c_void_p()
    good(cuda.cuMemAlloc_v2(byref(gate), c_size_t(4)))
    good(cuda.cuMemsetD8_v2(gate, 0, c_size_t(4)))
    good(cuda.cuStreamCreate(byref(opens), NON_BLOCKING))
    good(cuda.cuCtxSynchronize())
    good(cuda.cuStreamWaitValue32_v2(one.stream, gate, c_uint(OPEN), GEQ))
    good(cuda.cuMemsetD8Async(one.memory, 9, c_size_t(SIZE), one.stream))

    def open_gate() -> None:
        time.sleep(0.3)  # so long a copy that does not wait has time to come too early
        one.use()
        good(cuda.cuStreamWriteValue32_v2(opens, gate, c_uint(OPEN), 0))

    opening = threading.Thread(target=open_gate)
    opening.start()
    current.use()
    size = c_size_t(SIZE)
    good(cuda.cuMemcpyPeer(other.memory, other.context, one.memory, one.context, size))
    opening.join()
    assert other.bytes() == {9}, "it came before what the device was given"


class Variable:
    """A module's, which is loaded for a device."""

    def __init__(self, device: Device, size: int) -> None:
        self.device, self.size = device, size
        self.module, self.address = c_void_p(), c_uint64()
        code = f".version 7.0\n.target sm_70\n.address_size 64\n.global .b8 here[{size}];\n"
        device.use()
        good(cuda.cuModuleLoadData(byref(self.module), code.encode()))
        found = c_size_t()
        good(cuda.cuModuleGetGlobal_v2(byref(self.address), byref(found), self.module, b"here"))
        assert found.value == size

    def holds(self, value: int) -> bool:
        """Whether all of it has what is written there."""
        self.device.use()
        size, found = c_size_t(self.size), ctypes.create_string_buffer(self.size)
        good(cuda.cuMemsetD8_v2(self.address, value, size))
        good(cuda.cuMemcpyDtoH_v2(found, self.address, size))
        return found.raw == bytes([value]) * self.size

    def unload(self) -> None:
        """With its module."""
        self.device.use()
        good(cuda.cuModuleUnload(self.module))


def record_elsewhere(current: Device, other: Device) -> None:
    """An event and a stream of one device, while another is current."""
    event = c_void_p()
    other.use()
    good(cuda.cuEventCreate(byref(event), 0))
    current.use()
    good(cuda.cuEventRecord(event, other.stream))
    good(cuda.cuStreamWaitEvent(current.stream, event, 0))
    good(cuda.cuStreamSynchronize(current.stream))
    good(cuda.cuEventQuery(event))
    good(cuda.cuEventDestroy_v2(event))


def main() -> None:
    """All of it, in turn."""
    good(cuda.cuInit(0))
    first, second, far = (Device(number) for number in range(3))
    for one, other, current in ((second, far, first), (far, second, first), (first, second, far)):
        copy_behind(one, other, current)
    for current, other in ((first, far), (far, first), (first, second)):
        record_elsewhere(current, other)
    # Each node's driver chooses addresses of variables by itself: two may have the same.
    variables = Variable(first, 4096), Variable(second, 64), Variable(far, 64)
    for value, variable in enumerate(variables, 1):
        assert variable.holds(value)
    variables[2].unload()
    assert variables[0].holds(4)
    variables[0].unload()
    assert variables[1].holds(5)
    # A stream reaches no other node's memory, and loses nothing by being asked to.
    for stream, memory in ((first.stream, far.memory), (far.stream, first.memory)):
        for width in (32, 64):
            write = getattr(cuda, f"cuStreamWriteValue{width}_v2")
            wait = getattr(cuda, f"cuStreamWaitValue{width}_v2")
            value = c_uint(1) if width == 32 else c_uint64(1)
            assert write(stream, memory, value, 0) == INVALID_VALUE
            assert wait(stream, memory, value, GEQ) == INVALID_VALUE
    for device in (first, second, far):
        device.clear()
        assert device.bytes() == {0}
    print("all of it")


if __name__ == "__main__":
    main()
