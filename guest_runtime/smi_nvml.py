# SPDX-License-Identifier: Apache-2.0
"""Our libnvidia-ml.so.1, as nvidia-smi asks it: by ctypes, with no more than Python has.

Used by smi.py. It starts NVML so that this process only looks (NVML_INIT_FLAG_NO_ATTACH): it gets
no vGPU of its own. A question that has no answer gives None; what the library says of itself, such
as why nothing can be shown, is on standard error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

NO_ATTACH = 2
SUCCESS, NOT_SUPPORTED, INSUFFICIENT_SIZE = 0, 3, 7
MOST_PROCESSES = 4096


class NvmlError(Exception):
    """An NVML status; `status` is also what nvidia-smi exits with, where that has a number."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Process(NamedTuple):
    """A process that computes on a GPU; its memory in bytes."""

    pid: int
    name: str
    used: int | None


class _Memory(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Pci(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("id", ctypes.c_uint),
        ("sub_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class Nvml:
    """The library, started until close()."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where it cannot be loaded, NvmlError where it does not start."""
        self._library = ctypes.CDLL(str(path))
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        self._check(self._library.nvmlInitWithFlags(ctypes.c_uint(NO_ATTACH)))

    def close(self) -> None:
        """Ends it."""
        self._library.nvmlShutdown()

    # what there is

    def count(self) -> int:
        """How many GPUs there are to be seen."""
        found = ctypes.c_uint()
        self._check(self._library.nvmlDeviceGetCount_v2(ctypes.byref(found)))
        return found.value

    def driver_version(self) -> str | None:
        """Of the node's driver; raises NvmlError unless it is merely unknown."""
        text = ctypes.create_string_buffer(96)
        status = self._library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(len(text)))
        if status == NOT_SUPPORTED:
            return None
        self._check(status)
        return _text(text.value)

    def cuda_version(self) -> str | None:
        """As "13.0"."""
        found = ctypes.c_int()
        if self._library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(found)) != SUCCESS:
            return None
        return f"{found.value // 1000}.{found.value % 1000 // 10}"

    def nvml_version(self) -> str | None:
        """The interface's."""
        text = ctypes.create_string_buffer(96)
        status = self._library.nvmlSystemGetNVMLVersion(text, ctypes.c_uint(len(text)))
        return _text(text.value) if status == SUCCESS else None

    def device(self, index: int) -> Device:
        """One GPU; raises NvmlError."""
        handle = ctypes.c_void_p()
        number = ctypes.c_uint(index)
        self._check(self._library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)))
        return Device(self._library, handle, self._check)

    def _check(self, status: int) -> None:
        if status != SUCCESS:
            words = self._library.nvmlErrorString(ctypes.c_int(status)) or b"Unknown Error"
            raise NvmlError(status, _text(words))


class Device:
    """One GPU."""

    def __init__(self, library: Any, handle: Any, check: Any) -> None:
        self._library = library
        self._handle = handle
        self._check = check

    def uuid(self) -> str:
        """Its name; raises NvmlError, which tells whether there is a GPU at all."""
        text = ctypes.create_string_buffer(96)
        self._check(self._library.nvmlDeviceGetUUID(self._handle, text, ctypes.c_uint(len(text))))
        return _text(text.value)

    def text(self, name: str) -> str | None:
        """What nvmlDeviceGet`name` says, which is a text."""
        text = ctypes.create_string_buffer(256)
        status = getattr(self._library, f"nvmlDeviceGet{name}")(
            self._handle, text, ctypes.c_uint(len(text))
        )
        return _text(text.value) if status == SUCCESS else None

    def number(self, name: str, *before: int, kind: Any = ctypes.c_uint) -> int | None:
        """What it says, which is a number."""
        found = kind()
        status = getattr(self._library, f"nvmlDeviceGet{name}")(
            self._handle, *map(ctypes.c_uint, before), ctypes.byref(found)
        )
        return int(found.value) if status == SUCCESS else None

    def two(self, name: str) -> Sequence[int | None]:
        """What it says, which is two numbers."""
        first, second = ctypes.c_uint(), ctypes.c_uint()
        status = getattr(self._library, f"nvmlDeviceGet{name}")(
            self._handle, ctypes.byref(first), ctypes.byref(second)
        )
        return (first.value, second.value) if status == SUCCESS else (None, None)

    def utilization(self) -> Sequence[int | None]:
        """Of the GPU and of its memory, in percent."""
        both = (ctypes.c_uint * 2)()
        status = self._library.nvmlDeviceGetUtilizationRates(self._handle, both)
        return (both[0], both[1]) if status == SUCCESS else (None, None)

    def memory(self) -> _Memory | None:
        """In bytes."""
        memory = _Memory()
        memory.version = ctypes.sizeof(memory) | 2 << 24
        status = self._library.nvmlDeviceGetMemoryInfo_v2(self._handle, ctypes.byref(memory))
        return memory if status == SUCCESS else None

    def pci(self) -> _Pci | None:
        """Where it is."""
        pci = _Pci()
        status = self._library.nvmlDeviceGetPciInfo_v3(self._handle, ctypes.byref(pci))
        return pci if status == SUCCESS else None

    def processes(self) -> list[Process]:
        """Those that compute on it."""
        room = ctypes.c_uint(64)
        while room.value <= MOST_PROCESSES:
            found = (_Process * room.value)()
            status = self._library.nvmlDeviceGetComputeRunningProcesses_v3(
                self._handle, ctypes.byref(room), found
            )
            if status == SUCCESS:
                return [
                    Process(each.pid, self._name_of(each.pid), int(each.used))
                    for each in found[: room.value]
                ]
            if status != INSUFFICIENT_SIZE:
                return []
            room = ctypes.c_uint(room.value + 64)  # they may be more by now
        return []

    def _name_of(self, pid: int) -> str:
        text = ctypes.create_string_buffer(4096)
        status = self._library.nvmlSystemGetProcessName(
            ctypes.c_uint(pid), text, ctypes.c_uint(len(text))
        )
        return _text(text.value) if status == SUCCESS else ""


def _text(raw: bytes) -> str:
    """For a terminal: whoever names a program must not write escape sequences there."""
    decoded = raw.decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in decoded)
