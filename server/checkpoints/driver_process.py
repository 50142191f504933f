# SPDX-License-Identifier: Apache-2.0
"""The driver's checkpoint calls (`cuCheckpointProcess…`), as a process: `python -P THIS_FILE`.

Started by checkpoints.caller; nothing of Sluice's is imported, so that it starts fast, and whatever
hangs or crashes in the driver hangs and crashes alone. It reads one JSON object a line from its
standard input, `{"do", "pid", "start_time", "timeout_ms", "gpus"}`, and answers each with one line:
`{"status", "state", "seconds"}`, the status a CUresult by name, "" for success; `gpus` is of a
restore: where what was on each GPU is to be, by UUIDs. `free` asks how much of a GPU is free, by
NVML. It has no context and takes no GPU memory. It ends when its standard
input does; killed in the middle of a call, the driver carries that out all the same. Root may ask
for it, and nobody else but by the driver's leave. Source: the CUDA driver API, "CUDA
Checkpointing", since driver 570.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATES = ("running", "locked", "checkpointed", "failed")
CALLS = {"lock": "Lock", "checkpoint": "Checkpoint", "restore": "Restore", "unlock": "Unlock"}
MIB = 1 << 20
#: Not a CUresult: the process that was meant is not there any more.
GONE = "gone"


class LockArgs(ctypes.Structure):
    """CUcheckpointLockArgs."""

    _fields_ = (
        ("timeout_ms", ctypes.c_uint),
        ("reserved0", ctypes.c_uint),
        ("reserved1", ctypes.c_uint64 * 7),
    )


class GpuPair(ctypes.Structure):
    """CUcheckpointGpuPair: what was on one GPU is to be on another."""

    _fields_ = (("old", ctypes.c_ubyte * 16), ("new", ctypes.c_ubyte * 16))


class RestoreArgs(ctypes.Structure):
    """CUcheckpointRestoreArgs."""

    _fields_ = (
        ("pairs", ctypes.POINTER(GpuPair)),
        ("count", ctypes.c_uint),
        ("reserved0", ctypes.c_char * (52 - ctypes.sizeof(ctypes.c_void_p))),
        ("reserved1", ctypes.c_uint64),
    )


class NvmlMemory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class MissingError(Exception):
    """The driver cannot do it; the text says why."""


class Driver:
    """A CUDA driver library that has the calls; raises MissingError."""

    def __init__(self, path: str) -> None:
        try:
            self._cuda = ctypes.CDLL(path)
        except OSError as error:
            raise MissingError(f"the driver cannot be loaded: {error}") from None
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            raise MissingError("the driver has no cuCheckpointProcessLock: it is older than 570")
        if status := self._cuda.cuInit(0):
            raise MissingError(f"cuInit: {self.name(status)}")

    def name(self, status: int) -> str:
        """Of a CUresult, as `not_supported`; "" for success."""
        text = ctypes.c_char_p()
        if status == 0:
            return ""
        known = self._cuda.cuGetErrorName(status, ctypes.byref(text)) == 0 and text.value
        return known.decode().removeprefix("CUDA_ERROR_").lower() if known else f"error_{status}"

    def call(
        self, what: str, pid: int, timeout_ms: int = 0, gpus: Mapping[str, str] | None = None
    ) -> str:
        """What came of a call; blocks for as long as the driver does.

        `gpus`: of a restore, UUIDs, from which to which; all that the process sees have to be
        named, else the driver hangs. None: each comes back where it was.
        """
        arguments: Any = None
        if what == "lock":
            arguments = ctypes.byref(LockArgs(timeout_ms=timeout_ms))
        elif what == "restore" and gpus:
            pairs = (GpuPair * len(gpus))()
            for pair, (old, new) in zip(pairs, gpus.items(), strict=True):
                pair.old[:], pair.new[:] = uuid_bytes(old), uuid_bytes(new)
            arguments = ctypes.byref(RestoreArgs(pairs=pairs, count=len(gpus)))
        return self.name(getattr(self._cuda, f"cuCheckpointProcess{CALLS[what]}")(pid, arguments))

    def state(self, pid: int) -> tuple[str, str]:
        """Of a process, and what asking for it came to."""
        state = ctypes.c_int(-1)
        status = self.name(self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state)))
        known = 0 <= state.value < len(STATES)
        return (STATES[state.value] if known and not status else ""), status


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes of a GPU's UUID (GPU-…)."""
    return bytes.fromhex(text.removeprefix("GPU-").replace("-", ""))


def free_mib(nvml_path: str, uuid: str) -> int | None:
    """What nobody has of a GPU; None: nobody tells."""
    memory, handle = NvmlMemory(), ctypes.c_void_p()
    try:
        nvml = ctypes.CDLL(nvml_path) if nvml_path else None
    except OSError:
        return None
    if nvml is None or nvml.nvmlInit_v2():
        return None
    told = not nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
    told = told and not nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    nvml.nvmlShutdown()  # a GPU that is looked at need not be held open
    return int(memory.free // MIB) if told else None


def start_time_of(pid: int) -> int:
    """Field 22 of /proc/PID/stat, which tells two processes of one number apart; 0: none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat[stat.rindex(")") + 2 :].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def answer(driver: Driver, nvml_path: str, asked: dict[str, Any]) -> dict[str, Any]:
    """To one line."""
    if asked["do"] == "free":
        return {"free_mib": free_mib(nvml_path, asked["gpu"])}
    pid, began = asked["pid"], time.monotonic()
    if start_time_of(pid) != asked["start_time"]:
        return {"status": GONE, "state": "", "seconds": 0.0}
    status = ""
    if asked["do"] != "state":
        status = driver.call(asked["do"], pid, asked["timeout_ms"], asked.get("gpus"))
    took = time.monotonic() - began
    state, unknown = driver.state(pid)
    return {"status": status or unknown, "state": state, "seconds": took}


def main() -> int:
    """Says that it is there, or why it cannot do anything, and answers until it has heard all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", required=True)
    parser.add_argument("--nvml", default="")
    options = parser.parse_args()
    # what a driver prints is no answer
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(what: dict[str, Any]) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        driver = Driver(options.driver)
    except MissingError as missing:
        say({"missing": str(missing)})
        return 1
    say({"ready": True})
    for line in sys.stdin:
        say(answer(driver, options.nvml, json.loads(line)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
