# SPDX-License-Identifier: Apache-2.0
"""A subject (checkpoint_subject.py) that says which GPU it is on, and trains: for what moves."""

from __future__ import annotations

import ctypes
import time
import zlib
from pathlib import Path

from checkpoint_driver import MIB
from checkpoint_subject import Said, Subject, main

UUID_BYTES, BUS_BYTES = 16, 64
TRAINED_BYTES = 2 * MIB


class MovingSubject(Subject):
    """One that is restored on other GPUs than those that it began on."""

    trained, seed = 0, 1

    def start(self) -> Said:
        """As `begin`, with the seconds of the driver's start and of the context, and MiB of it."""
        began = time.perf_counter()
        self.call("cuInit", 0)
        init_s = time.perf_counter() - began
        self.begin()
        status = Path("/proc/self/status").read_text().split()
        resident = int(status[status.index("VmRSS:") + 1]) // 1024
        all_s = time.perf_counter() - began
        opened = sorted(
            {str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.exists()}
        )
        cards = [name for name in opened if name.startswith("/dev/nvidia") and name[11:].isdigit()]
        return {"init_s": init_s, "all_s": all_s, "resident_mib": resident, "cards": cards}

    def train(self, steps: int) -> Said:
        """So many steps over memory of its own, each by what the one before left there."""
        if not self.trained:
            self.trained = self._next(TRAINED_BYTES)
            self._back(self.trained, TRAINED_BYTES)
            self.wait()
        left: list[int] = []
        words = (ctypes.c_uint32 * (TRAINED_BYTES // 4))()
        at, count = ctypes.c_uint64(self.trained), ctypes.c_uint64(TRAINED_BYTES // 4)
        for _ in range(steps):
            self.launch("fill", at, count, ctypes.c_uint32(self.seed))
            self.wait()
            self.call("cuMemcpyDtoH_v2", words, at, ctypes.c_size_t(TRAINED_BYTES))
            left.append(zlib.crc32(words, self.seed))
            self.seed = left[-1] & 0xFFFF
        return {"left": left, **self.count()}

    def count(self) -> Said:
        """How many devices this process sees."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return {"devices": count.value}

    def identity(self) -> Said:
        """What the driver says of each device, in the order of this process."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        uuids, buses = [], []
        for device in range(count.value):
            uuid = (ctypes.c_ubyte * UUID_BYTES)()
            bus = ctypes.create_string_buffer(BUS_BYTES)
            self.call("cuDeviceGetUuid_v2", ctypes.byref(uuid), device)
            self.call("cuDeviceGetPCIBusId", bus, BUS_BYTES, device)
            text = bytes(uuid).hex()
            uuids.append(
                "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
            )
            buses.append(bus.value.decode())
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"uuids": uuids, "buses": buses, "free_mib": free.value // MIB}


if __name__ == "__main__":
    main(MovingSubject)
