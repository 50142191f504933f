# SPDX-License-Identifier: Apache-2.0
"""PyTorch, as far as it goes without running a kernel; test_torch.py starts it by `sluice run`.

`torch_app.py PART` runs one function below and prints what it returns as one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch


def counted() -> dict[str, Any]:
    """Counting devices is done before a fork, so it must not start CUDA."""
    count = torch.cuda.device_count()
    child = os.fork()
    if child == 0:
        there = torch.cuda.is_available() and torch.empty(4, device="cuda").is_cuda
        os._exit(0 if there else 1)
    return {"count": count, "child": os.waitpid(child, 0)[1]}


def hidden() -> dict[str, bool]:
    """Whether there is anything to compute on."""
    return {"available": torch.cuda.is_available()}


def device() -> dict[str, Any]:
    """What PyTorch says of the vGPU."""
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return {
        "available": torch.cuda.is_available(),
        # PyTorch counts by NVML and reads CUDA_VISIBLE_DEVICES itself; then CUDA is asked.
        "count": torch.cuda.device_count(),
        "cuda_count": torch._C._cuda_getDeviceCount(),
        "name": torch.cuda.get_device_name(),
        "capability": torch.cuda.get_device_capability(),
        "total": [properties.total_memory, total],
        "free": free,
        "kernels_for": "sm_90" in torch.cuda.get_arch_list(),
    }


def memory() -> dict[str, bool]:
    """Allocation, its statistics and its limits."""
    x = torch.empty(1000, device="cuda")
    found = {"allocated": torch.cuda.memory_allocated() == 4096}
    found["reserved"] = torch.cuda.memory_stats()["reserved_bytes.all.current"] == 2 << 20
    large = [torch.empty(5 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
    found["nvml"] = torch.cuda.device_memory_used() >= torch.cuda.memory_reserved() > 100 << 20
    del large, x
    torch.cuda.empty_cache()
    found["given back"] = torch.cuda.memory_reserved() == 0
    total = torch.cuda.mem_get_info()[1]
    try:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        found["too much"] = "CUDA out of memory" in str(error)
    found["goes on"] = torch.empty(total // 2, dtype=torch.uint8, device="cuda").is_cuda
    return found


def copies() -> dict[str, bool]:
    """Bytes there and back, by every way that a tensor takes."""
    found = {}
    for kind in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        x = torch.arange(100_003).remainder(251).to(kind)
        found[f"{kind}"] = torch.equal(x.cuda().cpu(), x)
    x = torch.randn(3_000_000)
    on_gpu = x.cuda()
    found["on the device"] = torch.equal(on_gpu.clone().cpu(), x)
    found["part"] = torch.equal(on_gpu[1000:2_000_000].cpu(), x[1000:2_000_000])
    pinned = x.pin_memory()
    found["pinned"] = pinned.is_pinned() and torch.equal(pinned, x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        there = torch.empty_like(x, device="cuda")
        there.copy_(pinned, non_blocking=True)
        back = torch.empty_like(x).pin_memory()
        back.copy_(there, non_blocking=True)
    stream.synchronize()
    found["without waiting"] = torch.equal(back, x)
    found["same bytes"] = torch.from_dlpack(on_gpu).data_ptr() == on_gpu.data_ptr()
    return found


def order() -> dict[str, bool]:
    """Streams and events."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    x, y = torch.randn(1 << 20).pin_memory(), torch.empty(1 << 20, device="cuda")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    done = torch.cuda.Event()
    with torch.cuda.stream(first):
        start.record()
        y.copy_(x, non_blocking=True)
        done.record()
    with torch.cuda.stream(second):
        second.wait_event(done)
        z = torch.empty_like(y).copy_(y)
        end.record()
    end.synchronize()
    torch.cuda.synchronize()
    return {
        "waited for": torch.equal(z.cpu(), x),
        "done": done.query() and second.query() and torch.cuda.current_stream().query(),
        "time": start.elapsed_time(end) >= 0,
        "priority": second.priority == -1,
    }


def libraries() -> dict[str, str]:
    """The CUDA libraries of the process: name → the folder that each came from."""
    torch.cuda.init()
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {Path(line.split()[-1]) for line in lines if ".so" in line}
    return {path.name: str(path.parent) for path in paths}


def profiler() -> dict[str, Any]:
    """The names in a profile of both sides."""
    from torch.profiler import ProfilerActivity, profile

    warnings.simplefilter("ignore")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        torch.randn(64).cuda().cpu()
    return {"names": [event.key for event in record.key_averages()]}


def triton() -> dict[str, Any]:
    """Triton compiles a part in C for its driver and links it with libcuda.so.1."""
    from triton.backends.nvidia.driver import CudaUtils, libcuda_dirs

    torch.cuda.init()
    properties = CudaUtils().get_device_properties(0)  # type: ignore[no-untyped-call]
    return {"folders": libcuda_dirs(), "warp": properties["warpSize"]}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
