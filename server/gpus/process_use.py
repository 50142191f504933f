# SPDX-License-Identifier: Apache-2.0
"""What each process used of a GPU, as its driver says it (NVML's utilisation by process).

Read by sessions.use_watch, by figures.NvmlReader in a thread of its own. NVML keeps samples of some
seconds, each with the share of its time in which kernels of the process ran on the GPU.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.server.gpus.discovery import Driver
from sluice.server.gpus.figures import NvmlReader


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """By process id, the share of the GPU's time since the last reading; None: it did not tell."""

    shares: dict[int, float] | None
    never: str = ""  # why it never will


class ProcessUseReader(NvmlReader[ProcessUse]):
    """Asks what came since it asked last."""

    def __init__(self, driver: Driver, wall: Callable[[], float] = time.time) -> None:
        super().__init__(driver, self._use)
        self._wall = wall
        self._since: dict[str, int] = {}  # of each GPU, microseconds since the epoch

    def _use(self, nvml: Any, gpu: Any, uuid: str) -> ProcessUse:
        since = self._since.get(uuid)
        self._since[uuid] = int(self._wall() * 1e6)
        return process_use(nvml, gpu, since if since is not None else self._since[uuid])


def process_use(nvml: Any, gpu: Any, since: int) -> ProcessUse:
    """What processes used of a GPU since then (microseconds since the epoch)."""
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(gpu, since)
    except AttributeError as error:
        return ProcessUse(None, str(error))
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_NOT_FOUND:
            return ProcessUse({})  # nobody used it
        for_good = (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION)
        return ProcessUse(None, str(error) if error.value in for_good else "")
    found: dict[int, list[int]] = defaultdict(list)
    for sample in samples:
        if sample.timeStamp > since:
            found[int(sample.pid)].append(int(sample.smUtil))
    return ProcessUse({pid: sum(of) / len(of) / 100 for pid, of in found.items()})
