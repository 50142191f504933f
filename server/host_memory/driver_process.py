# SPDX-License-Identifier: Apache-2.0
"""Has the GPUs' driver make host memory: a process, `python -P THIS_FILE --driver … --socket FD`.

Started by host_memory.driver_memory; nothing of Sluice's is imported, so that it starts fast. It
reads one JSON object a message from the socket (SOCK_SEQPACKET), `{"pieces", "mib"}`, and answers
with `{"made"}` and as many descriptors, or with `{"status"}`, a CUresult by name; its first message
is `{"ready"}`, or `{"missing"}` and why. What it has made is whose who has the descriptors: it lets
go of it at once, and of everything when the socket is closed or it ends. It has no context and
takes no GPU memory, but has the GPUs open while it is there. Source: the CUDA driver API, "Virtual
Memory Management", `CU_MEM_LOCATION_TYPE_HOST_NUMA`, since CUDA 12.2.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any

MIB = 1 << 20
MOST_BYTES = 4096  # of a message
NODES = Path("/sys/devices/system/node")
MEMORY = Path("/proc/meminfo")
#: What the host keeps: the driver asks for its memory until something else ends for want of it.
LEFT_FREE_MIB = 1024
PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
HOST_NUMA = 3  # CU_MEM_LOCATION_TYPE_HOST_NUMA
DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
NEEDED = ("cuMemCreate", "cuMemRelease", "cuMemExportToShareableHandle")


class Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location_id", ctypes.c_int),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class DriverError(Exception):
    """Of a call; the text is a CUresult by name."""


class MissingError(Exception):
    """The driver cannot do it; the text says why."""


class Driver:
    """A CUDA driver library; raises MissingError."""

    def __init__(self, path: str) -> None:
        try:
            self._cuda = ctypes.CDLL(path)
        except OSError as error:
            raise MissingError(f"the driver cannot be loaded: {error}") from None
        if lacking := [name for name in NEEDED if not hasattr(self._cuda, name)]:
            raise MissingError(f"the driver has no {lacking[0]}")
        try:
            self._ask("cuInit", 0)
        except DriverError as error:
            raise MissingError(f"cuInit: {error}") from None

    def make(self, mib: int, node: int) -> int:
        """A descriptor of so much; raises DriverError."""
        wanted = Properties(
            type=PINNED, handle_types=DESCRIPTOR, location_type=HOST_NUMA, location_id=node
        )
        handle, descriptor = ctypes.c_uint64(), ctypes.c_int(-1)
        size, none = ctypes.c_size_t(mib * MIB), ctypes.c_ulonglong(0)
        self._ask("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(wanted), none)
        try:
            self._ask(
                "cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, DESCRIPTOR, none
            )
        finally:
            self._cuda.cuMemRelease(handle)
        return descriptor.value

    def _ask(self, name: str, *arguments: Any) -> None:
        if not (status := getattr(self._cuda, name)(*arguments)):
            return
        text = ctypes.c_char_p()
        known = self._cuda.cuGetErrorName(status, ctypes.byref(text)) == 0 and text.value
        raise DriverError(
            known.decode().removeprefix("CUDA_ERROR_").lower() if known else f"error_{status}"
        )


def kib_of(text: str, name: str) -> int:
    """A line of a meminfo, 0 where there is none."""
    found = re.search(rf"\b{name}:\s+(\d+) kB", text)
    return int(found[1]) if found else 0


def emptiest_node() -> int:
    """The NUMA node that has most free memory; the first where the kernel knows of none."""
    free = {
        int(path.parent.name.removeprefix("node")): kib_of(path.read_text(), "MemFree")
        for path in NODES.glob("node[0-9]*/meminfo")
    }
    return max(free, key=lambda node: (free[node], -node)) if free else 0


def make(driver: Driver, pieces: int, mib: int) -> list[int]:
    """Descriptors of all, or none; raises DriverError."""
    if kib_of(MEMORY.read_text(), "MemAvailable") >> 10 < pieces * mib + LEFT_FREE_MIB:
        raise DriverError("out_of_memory")
    found: list[int] = []
    try:
        for _ in range(pieces):
            found.append(driver.make(mib, emptiest_node()))
    except DriverError:
        for descriptor in found:
            os.close(descriptor)
        raise
    return found


def main() -> int:
    """Says that it is there, or why it can do nothing, and makes what it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--driver", required=True)
    parser.add_argument("--socket", type=int, required=True)
    options = parser.parse_args()
    asker = socket.socket(fileno=options.socket)

    def say(what: dict[str, Any], descriptors: list[int]) -> None:
        socket.send_fds(asker, [json.dumps(what).encode()], descriptors)

    try:
        driver = Driver(options.driver)
    except MissingError as missing:
        say({"missing": str(missing)}, [])
        return 1
    say({"ready": True}, [])
    while asked := asker.recv(MOST_BYTES):
        wanted = json.loads(asked)
        try:
            made = make(driver, wanted["pieces"], wanted["mib"])
        except DriverError as error:
            say({"status": str(error)}, [])
            continue
        say({"made": len(made)}, made)
        for descriptor in made:
            os.close(descriptor)
    return 0


if __name__ == "__main__":
    sys.exit(main())
