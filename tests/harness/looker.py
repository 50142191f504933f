# SPDX-License-Identifier: Apache-2.0
"""A process of NVML alone, which looks at vGPUs and computes nothing: nvidia-ml-py and our library.

`look(environment)` → what it sees, as JSON; `LOOK` is what tests put their own code behind.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

LOOK = """
import json, sys, time
import pynvml as n

def refused(call, *arguments):
    try:
        return call(*arguments)
    except n.NVMLError as error:
        return -error.value

def seen():
    vgpus = []
    for i in range(n.nvmlDeviceGetCount()):
        h = n.nvmlDeviceGetHandleByIndex(i)
        memory = n.nvmlDeviceGetMemoryInfo(h)
        running = n.nvmlDeviceGetComputeRunningProcesses(h)
        vgpus.append({
            "uuid": n.nvmlDeviceGetUUID(h), "name": n.nvmlDeviceGetName(h),
            "total": memory.total >> 20, "used": memory.used >> 20,
            "capability": n.nvmlDeviceGetCudaComputeCapability(h),
            "processes": {p.pid: p.usedGpuMemory >> 20 for p in running},
            "names": [n.nvmlSystemGetProcessName(p.pid) for p in running],
            "power": refused(n.nvmlDeviceGetPowerUsage, h),
        })
    return vgpus
"""


def run_looker(environment: Mapping[str, str], code: str = "") -> subprocess.CompletedProcess[str]:
    """Runs it to its end."""
    return subprocess.run(
        [sys.executable, "-c", LOOK + (code or "n.nvmlInit(); print(json.dumps(seen()))")],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def look(environment: Mapping[str, str], code: str = "") -> Any:
    """What it sees, as `code` shows it."""
    done = run_looker(environment, code)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)
