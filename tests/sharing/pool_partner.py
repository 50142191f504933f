# SPDX-License-Identifier: Apache-2.0
"""One of two processes that share a memory pool: `pool_partner.py export|import SOCKET_FD`.

The exporter sends the pool's descriptor and two allocations in slabs of their own, and waits for
its end. The importer opens the first, says "ready", and after a word from the test, which has
killed the exporter by then, prints what it finds.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
import time

SLAB = 2 << 20
FILE_DESCRIPTOR = 1
INVALID_VALUE = 1
cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    status = getattr(cuda, name)(*arguments)
    if status:
        sys.exit(f"{name}: {status}")


def start() -> ctypes.c_void_p:
    """A context, and a stream in it."""
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", ctypes.byref(stream), 1)
    return stream


def export(partner: socket.socket) -> None:
    stream = start()
    # CUmemPoolProps: pinned, by descriptor, on device 0
    props = ctypes.create_string_buffer(struct.pack("<iiii72x", 1, FILE_DESCRIPTOR, 1, 0))
    pool, fd = ctypes.c_void_p(), ctypes.c_int()
    call("cuMemPoolCreate", ctypes.byref(pool), props)
    call("cuMemPoolExportToShareableHandle", ctypes.byref(fd), pool, FILE_DESCRIPTOR, 0)
    tickets = b""
    for value in (41, 42):
        pointer, data = ctypes.c_uint64(), ctypes.create_string_buffer(64)
        call("cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(SLAB), pool, stream)
        call("cuMemsetD8_v2", pointer, value, ctypes.c_size_t(SLAB))
        call("cuMemPoolExportPointer", data, pointer)
        tickets += data.raw
    socket.send_fds(partner, [tickets], [fd.value])
    sys.stdin.read()


def value_at(pointer: ctypes.c_uint64) -> int:
    value = ctypes.c_ubyte()
    call("cuMemcpyDtoH_v2", ctypes.byref(value), pointer, ctypes.c_size_t(1))
    return value.value


def import_(partner: socket.socket) -> None:
    tickets, descriptors, _, _ = socket.recv_fds(partner, 128, 1)
    stream = start()
    pool, kept, late = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
    call(
        "cuMemPoolImportFromShareableHandle",
        ctypes.byref(pool), ctypes.c_void_p(descriptors[0]), FILE_DESCRIPTOR, 0,
    )  # fmt: skip
    first, second = (ctypes.create_string_buffer(tickets[i : i + 64], 64) for i in (0, 64))
    call("cuMemPoolImportPointer", ctypes.byref(kept), pool, first)
    print("ready", value_at(kept), flush=True)
    sys.stdin.readline()
    deadline = time.monotonic() + 10
    while (status := cuda.cuMemPoolImportPointer(ctypes.byref(late), pool, second)) == 0:
        if time.monotonic() > deadline:
            sys.exit("memory of a process that has ended is still to be had")
        call("cuMemFreeAsync", late, stream)
        call("cuCtxSynchronize")
        time.sleep(0.05)
    print("refused", status, "kept", value_at(kept), flush=True)
    call("cuMemFreeAsync", kept, stream)
    call("cuMemPoolDestroy", pool)
    call("cuCtxSynchronize")


if __name__ == "__main__":
    role = {"export": export, "import": import_}[sys.argv[1]]
    role(socket.socket(fileno=int(sys.argv[2])))
