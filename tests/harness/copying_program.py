# SPDX-License-Identifier: Apache-2.0
"""A CUDA program that copies as it is told, each way that there is, so that somebody can count.

It loads libcuda.so.1 as any program does and prints "ready". A line of its standard input is the
name of a way and a number of bytes; the answer is how many bytes then went to the GPU and how many
came back, "TO BACK", or "failed WHAT" where a call failed or data came back wrong.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

HOST, DEVICE = 1, 2
STREAM_ORDER = 1
RELAXED = 2
LAUNCHES = 3
Size = ctypes.c_size_t
Ways = tuple[int, int]


def fields(side: tuple[tuple[str, type], ...], last: str) -> list[tuple[str, type]]:
    """A copy's: two sides, and the size of what is copied."""
    sides = [(prefix + name, kind) for prefix in ("src", "dst") for name, kind in side]
    return [*sides, *((name, Size) for name in last.split())]


MEMORY = (
    ("MemoryType", ctypes.c_uint),
    ("Host", ctypes.c_void_p),
    ("Device", ctypes.c_uint64),
    ("Array", ctypes.c_void_p),
)


class Rectangle(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = fields(
        (("XInBytes", Size), ("Y", Size), *MEMORY, ("Pitch", Size)),
        "WidthInBytes Height",
    )


class Box(ctypes.Structure):
    """CUDA_MEMCPY3D."""

    _fields_ = fields(
        (
            *(("XInBytes", Size), ("Y", Size), ("Z", Size), ("Lod", Size), *MEMORY),
            *(("Reserved", ctypes.c_void_p), ("Pitch", Size), ("Height", Size)),
        ),
        "WidthInBytes Height Depth",
    )


class Failed(Exception):
    """A call that failed, or wrong data."""


class Copier:
    """A context, a stream and memory of one size: on the device, pinned and pageable."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.context, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.bytes = 0
        self.device = ctypes.c_uint64()
        self.pinned = ctypes.c_void_p()

    def call(self, name: str, *arguments: object) -> None:
        if status := getattr(self.cuda, name)(*arguments):
            raise Failed(f"{name} {status}")

    def prepare(self, size: int) -> None:
        """New data in host memory, of as many bytes."""
        if size != self.bytes:
            self.call("cuMemAlloc_v2", ctypes.byref(self.device), Size(2 * size))
            self.call("cuMemHostAlloc", ctypes.byref(self.pinned), Size(size), 0)
            self.pageable = ctypes.create_string_buffer(size)
            self.back = ctypes.create_string_buffer(size)
            self.bytes = size
        self.data = os.urandom(size)
        ctypes.memmove(self.pageable, self.data, size)
        ctypes.memmove(self.pinned, self.data, size)
        ctypes.memset(self.back, 0, size)

    def finish(self) -> None:
        self.call("cuStreamSynchronize", self.stream)

    def check(self, at: int) -> None:
        if ctypes.string_at(at, self.bytes) != self.data:
            raise Failed("the data is not what was sent")

    # ways

    def plain(self) -> Ways:
        """Pageable memory, waited for."""
        self.call("cuMemcpyHtoD_v2", self.device, self.pageable, Size(self.bytes))
        self.call("cuMemcpyDtoH_v2", self.back, self.device, Size(self.bytes))
        self.check(ctypes.addressof(self.back))
        return self.bytes, self.bytes

    def asynchronous(self) -> Ways:
        """Pageable memory, on a stream."""
        n = Size(self.bytes)
        self.call("cuMemcpyHtoDAsync_v2", self.device, self.pageable, n, self.stream)
        self.call("cuMemcpyDtoHAsync_v2", self.back, self.device, n, self.stream)
        self.finish()
        self.check(ctypes.addressof(self.back))
        return self.bytes, self.bytes

    def from_pinned(self) -> Ways:
        """Pinned memory, on a stream and waited for."""
        n = Size(self.bytes)
        self.call("cuMemcpyHtoDAsync_v2", self.device, self.pinned, n, self.stream)
        self.finish()
        ctypes.memset(self.pinned, 0, self.bytes)
        self.call("cuMemcpyDtoH_v2", self.pinned, self.device, n)
        self.check(self.pinned.value or 0)
        return self.bytes, self.bytes

    def registered(self) -> Ways:
        """Memory of the program's that it had pinned."""
        self.call("cuMemHostRegister_v2", self.pageable, Size(self.bytes), 0)
        ways = self.asynchronous()
        self.call("cuMemHostUnregister", self.pageable)
        return ways

    def pooled(self) -> Ways:
        """Into memory that was allocated in the order of the stream."""
        own, self.device = self.device, ctypes.c_uint64()
        n = Size(self.bytes)
        self.call("cuMemAllocAsync", ctypes.byref(self.device), n, self.stream)
        ways = self.from_pinned()
        self.call("cuMemFreeAsync", self.device, self.stream)
        self.device = own
        return ways

    def rectangle(self) -> Ways:
        """Half of each row of pinned memory there and back."""
        p = Rectangle(srcMemoryType=HOST, srcHost=self.pinned, srcPitch=2048)
        p.dstMemoryType, p.dstDevice, p.dstPitch = DEVICE, self.device.value, 4096
        p.WidthInBytes, p.Height = 1024, self.bytes // 2048
        self.call("cuMemcpy2DAsync_v2", ctypes.byref(p), self.stream)
        q = Rectangle(srcMemoryType=DEVICE, srcDevice=self.device.value, srcPitch=4096)
        q.dstMemoryType, q.dstHost, q.dstPitch = HOST, ctypes.addressof(self.back), 2048
        q.WidthInBytes, q.Height = p.WidthInBytes, p.Height
        self.call("cuMemcpy2D_v2", ctypes.byref(q))
        return p.WidthInBytes * p.Height, p.WidthInBytes * p.Height

    def box(self, host: int | None, to_device: bool, size: int) -> Box:
        """One row."""
        sides = [(HOST, host, 0), (DEVICE, None, self.device.value)]
        source, target = sides if to_device else sides[::-1]
        p = Box(srcMemoryType=source[0], srcHost=source[1], srcDevice=source[2])
        p.dstMemoryType, p.dstHost, p.dstDevice = target
        p.WidthInBytes, p.Height, p.Depth = size, 1, 1
        return p

    def boxes(self) -> Ways:
        """Slices of pageable memory there, of pinned memory back."""
        slices = 4
        rows = self.bytes // 1024 // slices
        p = self.box(ctypes.addressof(self.pageable), True, 1024)
        q = self.box(self.pinned.value, False, 1024)
        for one in (p, q):
            one.Height, one.Depth = rows - 1, slices
            one.srcPitch = one.dstPitch = 1024
            one.srcHeight = one.dstHeight = rows
        self.call("cuMemcpy3D_v2", ctypes.byref(p))
        self.call("cuMemcpy3DAsync_v2", ctypes.byref(q), self.stream)
        self.finish()
        return 1024 * (rows - 1) * slices, 1024 * (rows - 1) * slices

    def batch(self) -> Ways:
        """Pinned memory there, pageable and pinned memory back, in one call."""
        half = self.bytes // 2
        addresses = ctypes.c_uint64 * 3
        host = ctypes.addressof(self.back)
        to = addresses(self.device.value or 0, host, (self.pinned.value or 0) + half)
        source = addresses(self.pinned.value or 0, self.device.value or 0, self.device.value or 0)
        sizes = (Size * 3)(self.bytes, self.bytes, half)
        attributes, first = (ctypes.c_int * 6)(STREAM_ORDER), Size(0)
        self.call(
            "cuMemcpyBatchAsync_v2", to, source, sizes, Size(3), attributes, ctypes.byref(first),
            Size(1), self.stream,
        )  # fmt: skip
        self.finish()
        self.check(host)
        return self.bytes, self.bytes + half

    @contextmanager
    def executable(self, graph: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
        """A graph, instantiated."""
        made = ctypes.c_void_p()
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_uint64(0))
        yield made
        self.call("cuGraphExecDestroy", made)
        self.call("cuGraphDestroy", graph)

    def launch(self, executable: ctypes.c_void_p) -> None:
        for _ in range(LAUNCHES):
            self.call("cuGraphLaunch", executable, self.stream)
            self.finish()

    def captured(self) -> Ways:
        """Copies of pinned and of pageable memory, recorded and launched some times."""
        graph, n = ctypes.c_void_p(), Size(self.bytes)
        self.call("cuStreamBeginCapture_v2", self.stream, RELAXED)
        self.call("cuMemcpyHtoDAsync_v2", self.device, self.pinned, n, self.stream)
        self.call("cuMemcpyDtoHAsync_v2", self.back, self.device, n, self.stream)
        self.call("cuMemcpyDtoHAsync_v2", self.pinned, self.device, Size(1 << 20), self.stream)
        self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        with self.executable(graph) as executable:
            self.launch(executable)
        self.check(ctypes.addressof(self.back))
        return LAUNCHES * self.bytes, LAUNCHES * (self.bytes + (1 << 20))

    def changed(self) -> Ways:
        """Two nodes made by hand, launched, changed, launched again."""
        graph = ctypes.c_void_p()
        self.call("cuGraphCreate", ctypes.byref(graph), 0)
        there, back = ctypes.c_void_p(), ctypes.c_void_p()
        pageable = ctypes.addressof(self.pageable)
        for node, after, p in (
            (there, None, self.box(pageable, True, self.bytes)),
            (back, there, self.box(self.pinned.value, False, self.bytes)),
        ):
            before = ctypes.byref(after) if after else None
            self.call(
                "cuGraphAddMemcpyNode", ctypes.byref(node), graph, before, Size(bool(after)),
                ctypes.byref(p), self.context,
            )  # fmt: skip
        half = self.bytes // 2
        with self.executable(graph) as executable:
            self.launch(executable)
            self.check(self.pinned.value or 0)
            for node, p in (
                (there, self.box(pageable, True, half)),
                (back, self.box(self.pinned.value, False, half)),
            ):
                self.call(
                    "cuGraphExecMemcpyNodeSetParams", executable, node, ctypes.byref(p),
                    self.context,
                )  # fmt: skip
            self.launch(executable)
        return LAUNCHES * (self.bytes + half), LAUNCHES * (self.bytes + half)

    def on_device(self) -> Ways:
        """Nothing that a client has to do with."""
        other = ctypes.c_uint64((self.device.value or 0) + self.bytes)
        self.call("cuMemcpyDtoDAsync_v2", other, self.device, Size(self.bytes), self.stream)
        self.call("cuMemsetD8Async", other, 1, Size(self.bytes), self.stream)
        self.finish()
        return 0, 0


WAYS: dict[str, Callable[[Copier], Ways]] = {
    way.__name__: way
    for way in (
        Copier.plain,
        Copier.asynchronous,
        Copier.from_pinned,
        Copier.registered,
        Copier.pooled,
        Copier.rectangle,
        Copier.boxes,
        Copier.batch,
        Copier.captured,
        Copier.changed,
        Copier.on_device,
    )
}


def main() -> None:
    """Do as the lines say."""
    copier = Copier()
    print("ready", flush=True)
    for line in sys.stdin:
        way, size = line.split()
        try:
            copier.prepare(int(size))
            print(*WAYS[way](copier), flush=True)
        except Failed as e:
            print(f"failed {e}", flush=True)


if __name__ == "__main__":
    main()
