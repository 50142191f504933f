# SPDX-License-Identifier: Apache-2.0
"""Finds the driver and the GPUs of this host.

Called by server.service at start. NVIDIA's own libcuda is used where it is installed, the software
GPU elsewhere, and the log says which. What the GPUs are is learned from a worker, which sees
exactly what sessions will see; NVML, where it works, adds the memory that the driver itself keeps.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.config.native_files import find_native
from sluice.server.worker import WorkerDevice

log = logging.getLogger("sluice.server")

SOFTGPU = "libsluice-softgpu.so.1"
NVIDIA_CONTEXT_MIB = 534  # measured on an H200, driver 580, CUDA 13.0
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/lib")


@dataclass(frozen=True, slots=True)
class Driver:
    """A CUDA driver library; software says that it is the software GPU."""

    path: str
    software: bool


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """A GPU of this host. context_overhead_mib is charged per session besides the vGPU."""

    uuid: str
    name: str
    memory_mib: int
    software: bool
    context_overhead_mib: int
    reserved_mib: int


def find_driver(setting: str) -> Driver:
    """Resolves [server] driver; raises NativeFileMissing or FileNotFoundError."""
    if setting == "softgpu":
        return Driver(str(find_native(SOFTGPU)), software=True)
    if setting != "auto":
        path = Path(setting)
        if not path.exists():
            raise FileNotFoundError(
                f"[server] driver = {setting}: there is no such file; give auto, softgpu or the "
                "path of a CUDA driver library"
            )
        return Driver(str(path), software=SOFTGPU in path.resolve().name)
    if library := _nvidia_library():
        log.info("driver: %s", library)
        return Driver(str(library), software=False)
    software = find_native(SOFTGPU)
    log.warning(
        "no NVIDIA driver on this host: sessions run on the software GPU (%s), which is slow and "
        "meant for trying Sluice out; set [server] driver to choose another",
        software,
    )
    return Driver(str(software), software=True)


def describe_gpus(
    devices: Sequence[WorkerDevice], driver: Driver, prestarted: int, overhead_mib: int | None
) -> list[LocalGpu]:
    """Turns what a worker saw into what the pool is told.

    Each warm worker holds a context of its own, which is reserved.
    """
    overhead = overhead_mib if overhead_mib is not None else NVIDIA_CONTEXT_MIB
    if driver.software:
        overhead = overhead_mib or 0
    kept = {} if driver.software else kept_by_driver_mib(driver)
    return [
        LocalGpu(
            uuid=device.uuid,
            name=device.name,
            memory_mib=device.memory_mib,
            software=driver.software,
            context_overhead_mib=overhead,
            reserved_mib=overhead * prestarted + kept.get(device.uuid, 0),
        )
        for device in devices
    ]


def _nvidia_library() -> Path | None:
    if not Path("/proc/driver/nvidia/version").exists() and not Path("/dev/dxg").exists():
        return None
    for folder in LIBRARY_FOLDERS:
        library = Path(folder) / "libcuda.so.1"
        # Sluice's client library has the same name; NVIDIA's carries the driver's version
        if library.exists() and re.search(r"\.so\.\d+\.\d+", library.resolve().name):
            return library
        if library.exists() and folder.startswith("/usr/lib/wsl"):
            return library
    return None


def kept_by_driver_mib(driver: Driver) -> dict[str, int]:
    """What the driver keeps of each GPU for itself, by UUID; empty where NVML does not say.

    Where the guest's part is installed too, the loader's cache may name Sluice's NVML, which would
    ask this very server. So NVIDIA's is loaded first, by its path; NVML's Python asks by name, and
    gets what is loaded.
    """
    nvml = Path(driver.path).parent / "libnvidia-ml.so.1"
    try:
        ctypes.CDLL(str(nvml))
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        log.info("NVML does not answer (%s): the driver's own memory is not accounted", error)
        return {}
    kept = {}
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            kept[str(pynvml.nvmlDeviceGetUUID(handle))] = memory.reserved >> 20
    except pynvml.NVMLError as error:
        log.info("NVML does not tell the reserved memory (%s)", error)
    finally:
        pynvml.nvmlShutdown()
    return kept
