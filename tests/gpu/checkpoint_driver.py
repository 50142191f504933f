# SPDX-License-Identifier: Apache-2.0
"""What checkpoint_subject.py passes to the driver: its structures, and host memory for slabs."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time

MIB = 1 << 20
THREADS = 16
MADV_HUGEPAGE, MADV_POPULATE_WRITE = 14, 23
MFD_HUGETLB = 4

pointer, size = ctypes.c_void_p, ctypes.c_size_t


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("win32", pointer),
        ("flags", ctypes.c_ubyte * 8),
    )


class AccessDesc(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


class PoolProps(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("win32", pointer),
        ("most", size),
        ("rest", ctypes.c_ubyte * 56),
    )


class HostMemory:
    """Shared memory of this process, on huge pages where there are any."""

    def __init__(self, mib: int) -> None:
        self.bytes = mib * MIB
        self.pages = "2 MiB (hugetlb)"
        try:
            self.memfd = os.memfd_create("probe", MFD_HUGETLB)
            os.ftruncate(self.memfd, self.bytes)
            self.map = mmap.mmap(self.memfd, self.bytes)
        except OSError:
            self.memfd = -1
            self.map = mmap.mmap(-1, self.bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.pages = "4 KiB"
            if ctypes.CDLL(None).madvise(pointer(self.address), size(self.bytes), MADV_HUGEPAGE):
                return
            self.pages = "2 MiB where the kernel gives them (madvise)"

    @property
    def address(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def prefault(self) -> float:
        """All of it, by many threads; seconds. ctypes calls run beside each other."""
        libc, at = ctypes.CDLL(None, use_errno=True), self.address
        each = -(-self.bytes // THREADS // (2 * MIB)) * 2 * MIB
        failed: list[int] = []

        def one(begin: int) -> None:
            count = min(each, self.bytes - begin)
            if count > 0 and libc.madvise(pointer(at + begin), size(count), MADV_POPULATE_WRITE):
                failed.append(ctypes.get_errno())

        began = time.perf_counter()
        crew = [threading.Thread(target=one, args=(n * each,)) for n in range(THREADS)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        if failed:
            raise SystemExit(f"prefaulting: {os.strerror(failed[0])}")
        return time.perf_counter() - began
