# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoint calls (server/checkpoints/driver_process.py), timed, and NVML by ctypes.

Used by checkpoint_probe.py and moving_probe.py, from another process than the one that is
checkpointed. Statuses are CUresult, shown by name; times are seconds; memory is MiB of one GPU as
NVML counts it.
"""

from __future__ import annotations

import ctypes
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from sluice.server.checkpoints.driver_process import Driver, MissingError

MIB = 1 << 20
SETTLE_SECONDS = 6.0


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
        try:
            self._driver = Driver("libcuda.so.1")
        except MissingError as missing:
            raise OSError(str(missing)) from None

    def _call(self, what: str, timeout_ms: int = 0, gpus: dict[str, str] | None = None) -> Answer:
        began = time.perf_counter()
        status = self._driver.call(what, self.pid, timeout_ms, gpus)
        return Answer(status or "ok", time.perf_counter() - began)

    def state(self) -> str:
        """Of the process, or the error that asking for it has."""
        state, status = self._driver.state(self.pid)
        return status or state

    def lock(self, timeout_ms: int = 5000) -> Answer:
        """Its CUDA calls block from then on."""
        return self._call("lock", timeout_ms)

    def checkpoint(self) -> Answer:
        """Everything leaves the GPU."""
        return self._call("checkpoint")

    def restore(self, gpus: dict[str, str] | None = None) -> Answer:
        """Everything is back, still locked; `gpus` are UUIDs (GPU-…), from which to which."""
        return self._call("restore", gpus=gpus)

    def unlock(self) -> Answer:
        """It goes on."""
        return self._call("unlock")


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
