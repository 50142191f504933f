# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoint calls (`cuCheckpointProcess…`, driver 570 and newer) and NVML, by ctypes.

Used by checkpoint_probe.py, from another process than the one that is checkpointed. Statuses are
CUresult, shown by name; times are seconds; memory is MiB of one GPU as NVML counts it. Source: the
CUDA driver API, "CUDA Checkpointing".
"""

from __future__ import annotations

import ctypes
import sys
import time
from dataclasses import dataclass

STATES = {0: "running", 1: "locked", 2: "checkpointed", 3: "failed"}
MIB = 1 << 20
SETTLE_SECONDS = 6.0


class _LockArgs(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("zero", ctypes.c_uint), ("r", ctypes.c_uint64 * 7))


class _GpuPair(ctypes.Structure):
    _fields_ = (("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16))


class _RestoreArgs(ctypes.Structure):
    _fields_ = (
        ("pairs", ctypes.POINTER(_GpuPair)),
        ("count", ctypes.c_uint),
        ("r", ctypes.c_char * (52 - ctypes.sizeof(ctypes.c_void_p))),
        ("r1", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Answer:
    """What a call returned, and how long it took."""

    status: str
    seconds: float

    @property
    def good(self) -> bool:
        """Whether it was done."""
        return self.status == "ok"

    def __str__(self) -> str:
        return f"{self.status} in {self.seconds:.3f} s"


class Checkpointer:
    """The calls, for one process. Raises OSError where the driver has none of them."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._cuda = ctypes.CDLL("libcuda.so.1")
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            raise OSError("this driver has no cuCheckpointProcessLock: it is older than 570")
        if status := self._cuda.cuInit(0):
            raise OSError(f"cuInit: {self._name(status)}")

    def _name(self, status: int) -> str:
        text = ctypes.c_char_p()
        known = self._cuda.cuGetErrorName(status, ctypes.byref(text)) == 0 and text.value
        return known.decode().removeprefix("CUDA_ERROR_").lower() if known else str(status)

    def _call(self, name: str, arguments: ctypes.Structure | None) -> Answer:
        began = time.perf_counter()
        passed = None if arguments is None else ctypes.byref(arguments)
        status = getattr(self._cuda, f"cuCheckpointProcess{name}")(self.pid, passed)
        took = time.perf_counter() - began
        return Answer("ok" if status == 0 else self._name(status), took)

    def state(self) -> str:
        """Of the process, or the error that asking for it has."""
        state = ctypes.c_int(-1)
        status = self._cuda.cuCheckpointProcessGetState(self.pid, ctypes.byref(state))
        return self._name(status) if status else STATES.get(state.value, str(state.value))

    def lock(self, timeout_ms: int = 5000) -> Answer:
        """Its CUDA calls block from then on."""
        return self._call("Lock", _LockArgs(timeout_ms=timeout_ms))

    def checkpoint(self) -> Answer:
        """Everything leaves the GPU."""
        return self._call("Checkpoint", None)

    def restore(self, gpus: dict[str, str] | None = None) -> Answer:
        """Everything is back, still locked; `gpus` are UUIDs (GPU-…), from which to which."""
        if not gpus:
            return self._call("Restore", None)
        pairs = (_GpuPair * len(gpus))()
        for pair, (old, new) in zip(pairs, gpus.items(), strict=True):
            pair.old[:], pair.new[:] = uuid_bytes(old), uuid_bytes(new)
        return self._call("Restore", _RestoreArgs(pairs=pairs, count=len(gpus)))

    def unlock(self) -> Answer:
        """It goes on."""
        return self._call("Unlock", None)


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes of a GPU's UUID (GPU-…)."""
    return bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong))
    _fields_ += (("used", ctypes.c_ulonglong),)


class Card:
    """One GPU, by its place in NVML's list. Raises OSError where there is none."""

    def __init__(self, index: int = 0) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._handle = ctypes.c_void_p()
        text = ctypes.create_string_buffer(96)
        if (
            self._nvml.nvmlInit_v2()
            or self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self._handle))
            or self._nvml.nvmlDeviceGetUUID(self._handle, text, 96)
        ):
            raise OSError(f"NVML shows no GPU {index}")
        self.uuid = text.value.decode()

    @staticmethod
    def count() -> int:
        """How many GPUs NVML shows; 0 without NVML."""
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return 0
        found = ctypes.c_uint()
        bad = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(found))
        return 0 if bad else found.value

    def _memory(self) -> _Memory:
        memory = _Memory()
        if status := self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            raise OSError(f"nvmlDeviceGetMemoryInfo: {status}")
        return memory

    def free_mib(self) -> int:
        """What nobody has."""
        return int(self._memory().free // MIB)

    def used_mib(self) -> int:
        """What is taken, once it no longer changes: memory is free a while after its process."""
        end = time.monotonic() + SETTLE_SECONDS
        readings = [-1, -2, -3]
        while time.monotonic() < end and len(set(readings[-3:])) > 1:
            readings.append(int(self._memory().used // MIB))
            time.sleep(0.1)
        return readings[-1]


def main() -> int:
    """`python checkpoint_calls.py PID lock checkpoint …`: the calls, as a process of its own."""
    calls = Checkpointer(int(sys.argv[1]))
    for name in sys.argv[2:]:
        answer: Answer = getattr(calls, name)()
        print(f"{name}: {answer}", flush=True)
        if not answer.good:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
