# SPDX-License-Identifier: Apache-2.0
"""Which managed memory is touched while a stream is at work, and which waits for it.

A host function holds the one stream until this program has touched what is attached to another
stream, and to the host; what is attached to nothing is touched by a thread. Prints, as JSON, what
was seen, and whether the thread had to wait.
"""

from __future__ import annotations

import ctypes
import json
import threading

CU, LIBC = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
SIZE = 200_000
GLOBAL, HOST, SINGLE = 1, 2, 4
POINTER = ctypes.c_void_p


def must(error: int) -> None:
    """For what is to succeed."""
    if error:
        raise SystemExit(f"CUDA error {error}")


def managed(flags: int = GLOBAL) -> ctypes.c_uint64:
    """The address of new memory."""
    at = ctypes.c_uint64()
    must(CU.cuMemAllocManaged(ctypes.byref(at), ctypes.c_size_t(SIZE), flags))
    return at


def ends(at: ctypes.c_uint64) -> list[int]:
    """Its first and its last byte, touched by a function without Python's lock."""
    found = ctypes.create_string_buffer(2)
    for i, place in enumerate((0, SIZE - 1)):
        LIBC.memcpy(ctypes.byref(found, i), POINTER(at.value + place), ctypes.c_size_t(1))
    return list(found.raw)


def main() -> None:
    """All of it."""
    context, busy, other = POINTER(), POINTER(), POINTER()
    must(CU.cuInit(0))
    must(CU.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(CU.cuCtxSetCurrent(context))
    for stream in (busy, other):
        must(CU.cuStreamCreate(ctypes.byref(stream), 1))
    streams, hosts, nobodys = managed(), managed(HOST), managed()
    must(CU.cuStreamAttachMemAsync(other, streams, ctypes.c_size_t(0), SINGLE))
    for at, byte in ((streams, 3), (hosts, 4), (nobodys, 5)):
        must(CU.cuMemsetD8Async(at, byte, ctypes.c_size_t(SIZE), other))
    must(CU.cuStreamSynchronize(other))

    touched, began = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        began.set()
        touched.wait()

    function = ctypes.CFUNCTYPE(None, POINTER)(hold)
    must(CU.cuLaunchHostFunc(busy, function, None))
    began.wait()
    seen = {"of another stream": ends(streams), "the host's": ends(hosts)}
    late: list[list[int]] = []
    thread = threading.Thread(target=lambda: late.append(ends(nobodys)))
    thread.start()
    thread.join(0.3)
    waits = thread.is_alive()
    touched.set()
    thread.join()
    must(CU.cuStreamSynchronize(busy))
    print(json.dumps({**seen, "nobody's": late[0], "waits": waits}))


if __name__ == "__main__":
    main()
