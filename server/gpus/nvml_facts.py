# SPDX-License-Identifier: Apache-2.0
"""What NVML alone tells of a host's GPUs: memory that the driver keeps, architecture, NUMA, NVLink.

Called by gpus.discovery. It promises that a question that NVML does not answer leaves its fact
unknown and nothing else.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

log = logging.getLogger("sluice.server")

SWITCH = "an NVSwitch"  # what GPUs that reach each other through switches have in common

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Of one GPU; the defaults mean unknown, or none."""

    kept_mib: int = 0  # what the driver keeps for itself
    architecture: str = ""
    numa_node: int = -1
    nvlink_group: str = ""
    pci_address: str = ""  # as sysfs writes it


def facts_of_gpus(driver: str) -> dict[str, GpuFacts]:
    """The facts by UUID; empty where NVML does not answer.

    Where the guest's part is installed too, the loader's cache may name Sluice's NVML, which would
    ask this very server. So NVIDIA's is loaded first, by its path; NVML's Python asks by name, and
    gets what is loaded.
    """
    nvml = Path(driver).parent / "libnvidia-ml.so.1"
    try:
        ctypes.CDLL(str(nvml))
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        log.info("NVML does not answer (%s): the driver's own memory is not accounted", error)
        return {}
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        uuids = [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        groups = nvlink_groups([_nvlink_peers(handle) for handle in handles])
        return {
            uuid: _facts(handle, group)
            for uuid, handle, group in zip(uuids, handles, groups, strict=True)
        }
    except pynvml.NVMLError as error:
        log.info("NVML does not tell about the GPUs (%s)", error)
        return {}
    finally:
        pynvml.nvmlShutdown()


def nvlink_groups(gpus: list[tuple[str, set[str]]]) -> list[str]:
    """A group's name for each GPU, given as its own bus id and what its links lead to.

    GPUs are of one group if links lead from one to the other, over others or a switch. A GPU that
    reaches none has no group.
    """
    members = [{own, *peers} for own, peers in gpus]
    merged: list[set[str]] = []
    for member in members:
        apart = []
        for other in merged:
            if member & other:
                member = member | other
            else:
                apart.append(other)
        merged = [*apart, member]
    names = []
    for own, _ in gpus:
        group = next(found for found in merged if own in found)
        here = [index for index, (bus, _) in enumerate(gpus) if bus in group]
        names.append(f"nvlink{here[0]}" if len(here) > 1 else "")
    return names


def _facts(handle: Any, nvlink_group: str) -> GpuFacts:
    import pynvml

    memory = _asked(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2))
    capability = _asked(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    numa_node = _asked(lambda: int(pynvml.nvmlDeviceGetNumaNodeId(handle)))
    address = sysfs_address(_asked(lambda: _bus_id(pynvml.nvmlDeviceGetPciInfo(handle))) or "")
    if numa_node is None:
        numa_node = _numa_node_of(address)
    return GpuFacts(
        kept_mib=memory.reserved >> 20 if memory else 0,
        architecture="sm_{}{}".format(*capability) if capability else "",
        numa_node=numa_node,
        nvlink_group=nvlink_group,
        pci_address=address,
    )


def _nvlink_peers(handle: Any) -> tuple[str, set[str]]:
    """The GPU's bus id, and what its active links lead to."""
    import pynvml

    own = _asked(lambda: _bus_id(pynvml.nvmlDeviceGetPciInfo(handle))) or f"unknown {id(handle)}"
    peers: set[str] = set()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if not _asked(lambda link=link: pynvml.nvmlDeviceGetNvLinkState(handle, link)):  # type: ignore[misc]
            continue
        kind = _asked(lambda link=link: pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))  # type: ignore[misc]
        if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            peers.add(SWITCH)
        elif remote := _asked(
            lambda link=link: _bus_id(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))  # type: ignore[misc]
        ):
            peers.add(remote)
    return own, peers


def _bus_id(pci: Any) -> str:
    text = pci.busId
    return (text.decode() if isinstance(text, bytes) else str(text)).lower()


def sysfs_address(bus_id: str) -> str:
    """NVML's eight digits of the PCI domain as sysfs writes it; empty for what is no address."""
    if not re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", bus_id):
        return ""
    domain, _, rest = bus_id.partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _numa_node_of(address: str) -> int:
    """What the kernel says of the PCI device; -1 if it does not know."""
    if not address:
        return -1
    try:
        return int((Path("/sys/bus/pci/devices") / address / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def _asked(question: Callable[[], T]) -> T | None:
    import pynvml

    try:
        return question()
    except (pynvml.NVMLError, AttributeError):
        return None
