# SPDX-License-Identifier: Apache-2.0
"""Finds the driver and the GPUs of this host.

Called by server.start_up and gpus.host_gpus. NVIDIA's own libcuda is used where it is installed,
the software GPU elsewhere, and the log says which. What the GPUs are is learned from a worker,
which sees exactly what sessions will see; NVML, where it works, adds what only it knows
(gpus.nvml_facts).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.config.native_files import SOFTGPU, find_native
from sluice.server.gpus.nvml_facts import GpuFacts, facts_of_gpus
from sluice.server.workers.worker import WorkerDevice

log = logging.getLogger("sluice.server")

NVIDIA_CONTEXT_MIB = 534  # measured on an H200, driver 580, CUDA 13.0
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib", "/usr/lib")


@dataclass(frozen=True, slots=True)
class Driver:
    """A CUDA driver library; software says that it is the software GPU.

    No path: the host has no GPUs, and its guests' are other hosts'.
    """

    path: str
    software: bool

    @property
    def is_none(self) -> bool:
        """Whether this host is to give no GPU."""
        return not self.path


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """A GPU of this host. context_overhead_mib is charged per session besides the vGPU."""

    uuid: str
    name: str
    memory_mib: int
    software: bool
    context_overhead_mib: int
    reserved_mib: int
    architecture: str = ""
    numa_node: int = -1
    nvlink_group: str = ""
    pci_address: str = ""  # empty: unknown, or it has none
    # as its driver says, for who looks at it without a session
    pci_bus_id: str = ""
    attributes: str = ""  # CUdevice_attribute and value: "75=9 76=0"
    cuda_version: int = 0
    driver_name: str = ""


def find_driver(setting: str) -> Driver:
    """Resolves [server] driver; raises NativeFileMissing or FileNotFoundError."""
    if setting == "none":
        return Driver("", software=False)
    if setting == "softgpu":
        return Driver(str(find_native(SOFTGPU)), software=True)
    if setting != "auto":
        path = Path(setting)
        if not path.exists():
            raise FileNotFoundError(
                f"[server] driver = {setting}: there is no such file; give auto, softgpu, none or "
                "the path of a CUDA driver library"
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
    facts = {} if driver.software else facts_of_gpus(driver.path)
    unknown = GpuFacts()
    return [
        LocalGpu(
            uuid=device.uuid,
            name=device.name,
            memory_mib=device.memory_mib,
            software=driver.software,
            context_overhead_mib=overhead,
            reserved_mib=overhead * prestarted + fact.kept_mib,
            architecture=fact.architecture,
            numa_node=fact.numa_node,
            nvlink_group=fact.nvlink_group,
            pci_address=fact.pci_address,
            pci_bus_id=device.pci_bus_id,
            attributes=device.attributes,
            cuda_version=device.cuda_version,
            driver_name=device.driver_name,
        )
        for device in devices
        for fact in (facts.get(device.uuid, unknown),)
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
