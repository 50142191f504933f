# SPDX-License-Identifier: Apache-2.0
"""What tenants of one GPU do to each other when the driver slices its time: a probe without Sluice.

    python3 tests/gpu/neighbours.py [SECONDS]

Each tenant is a process with a context of its own (tenants.py) and calls the driver by ctypes.
Kernels are counted by loop iterations, never by clocks (a clock runs on while a kernel is switched
out), and their length is calibrated once for all. A tenant's figure is work done between two
moments that all know. docs/decisions/0003-time-on-the-gpu.md says what came out of it.
"""

import ctypes
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tenants

PTX = b"""
.version 7.8
.target sm_70
.address_size 64
.visible .entry work(.param .u32 count, .param .u64 out) {
  .reg .pred %p; .reg .f32 %f<3>; .reg .u32 %r<3>; .reg .u64 %d;
  ld.param.u32 %r1, [count]; ld.param.u64 %d, [out];
  mov.f32 %f1, 0f3F800000; mov.u32 %r2, 0;
again:
  fma.rn.f32 %f1, %f1, 0f3F7FFFFF, 0f34000000;
  fma.rn.f32 %f1, %f1, 0f3F7FFFFF, 0f34000000;
  fma.rn.f32 %f1, %f1, 0f3F7FFFFF, 0f34000000;
  fma.rn.f32 %f1, %f1, 0f3F7FFFFF, 0f34000000;
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p, %r2, %r1;
  @%p bra again;
  setp.gt.f32 %p, %f1, 0f7F000000;
  @%p st.global.f32 [%d], %f1;
  ret;
}
"""
MIB = 1 << 20
COPY_BYTES = 64 * MIB
WHOLE_CARD, CORNER = 132, 8  # blocks of 1,024 threads
NOT_READY = 600

pointer = ctypes.c_void_p
size, ref = ctypes.c_size_t, ctypes.byref


class Tenant:
    """A context, a stream, memory and the kernel, in this process."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context, module = ctypes.c_int(), pointer(), pointer()
        self.stream, self.work = pointer(), pointer()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ref(module), PTX)
        self.call("cuModuleGetFunction", ref(self.work), module, b"work")
        self.call("cuStreamCreate", ref(self.stream), 1)
        self.here, self.there, self.pinned = ctypes.c_uint64(), ctypes.c_uint64(), pointer()
        self.call("cuMemAlloc_v2", ref(self.here), size(COPY_BYTES))
        self.call("cuMemAlloc_v2", ref(self.there), size(COPY_BYTES))
        self.call("cuMemAllocHost_v2", ref(self.pinned), size(COPY_BYTES))
        self.out = ctypes.c_uint64(self.here.value)

    def call(self, name: str, *arguments: object) -> None:
        status = getattr(self.cuda, name)(*arguments)
        if status:
            raise SystemExit(f"{name}: {status}")

    def launch(self, iterations: int, blocks: int) -> None:
        count = ctypes.c_uint32(iterations)
        params = (pointer * 2)(ctypes.addressof(count), ctypes.addressof(self.out))
        self.call(
            "cuLaunchKernel", self.work, blocks, 1, 1, 1024, 1, 1, 0, self.stream, params, None
        )

    def event(self) -> pointer:
        made = pointer()
        self.call("cuEventCreate", ref(made), 2)
        return made

    def wait(self) -> None:
        self.call("cuStreamSynchronize", self.stream)


def calibrate(tenant: Tenant) -> float:
    """Iterations for a microsecond of a kernel on the whole card, once its clock is up."""
    rate = 100.0
    for _ in range(6):
        began = time.perf_counter()
        for _ in range(20):
            tenant.launch(int(rate * 5000), WHOLE_CARD)
        tenant.wait()
        rate *= 0.1 / (time.perf_counter() - began)
    return rate


def until(moment: float) -> None:
    while time.monotonic() < moment:
        pass


def stream_of(
    tenant: Tenant, piece: Callable[[], None], lead: int, begin: float, end: float
) -> int:
    """Keeps `lead` pieces under way; how many ended between the two moments."""
    events = [tenant.event() for _ in range(lead)]
    until(begin - 0.3)  # under way when the time begins
    done = 0
    for e in events:
        piece()
        tenant.call("cuEventRecord", e, tenant.stream)
    place = 0
    while True:
        tenant.call("cuEventSynchronize", events[place])
        now = time.monotonic()
        if now >= end:
            break
        done += now >= begin
        piece()
        tenant.call("cuEventRecord", events[place], tenant.stream)
        place = (place + 1) % lead
    tenant.wait()
    return done


def answers(
    tenant: Tenant, piece: Callable[[], None], pause: Callable[[], float], begin: float, end: float
) -> list[float]:
    """Milliseconds from asking to having waited, one after the other."""
    took = []
    until(begin)
    while time.monotonic() < end:
        time.sleep(pause())
        asked = time.perf_counter()
        piece()
        tenant.wait()
        took.append((time.perf_counter() - asked) * 1e3)
    return took


def be(tenant: Tenant, task: dict[str, Any]) -> dict[str, Any]:
    """What a tenant has done in a window, in its own units."""
    rate, begin, end = task["rate"], task["begin"], task["end"]
    kind = task["kind"]
    n = max(1, int(rate * task.get("us", 100)))
    each = max(1, 1000 // task.get("us", 100))  # launches between two events: about a millisecond

    def kernels() -> None:
        for _ in range(each):
            tenant.launch(n, WHOLE_CARD)

    def to_device() -> None:
        tenant.call(
            "cuMemcpyHtoDAsync_v2", tenant.here, tenant.pinned, size(COPY_BYTES), tenant.stream
        )

    def to_host() -> None:
        tenant.call(
            "cuMemcpyDtoHAsync_v2", tenant.pinned, tenant.here, size(COPY_BYTES), tenant.stream
        )

    def on_device() -> None:
        tenant.call(
            "cuMemcpyDtoDAsync_v2", tenant.there, tenant.here, size(COPY_BYTES), tenant.stream
        )

    def set_memory() -> None:
        tenant.call("cuMemsetD8Async", tenant.here, 0, size(COPY_BYTES), tenant.stream)

    pieces = {
        "to device": to_device,
        "to host": to_host,
        "on device": on_device,
        "memset": set_memory,
    }
    if kind == "kernels":
        return {"ms": stream_of(tenant, kernels, 3, begin, end) * each * task["us"] / 1000}
    if kind in pieces:
        done = stream_of(tenant, pieces[kind], 3, begin, end)
        return {"gib_s": done * COPY_BYTES / 2**30 / (end - begin)}
    if kind == "endless":
        until(begin - 0.3)
        tenant.launch(int(rate * (end - begin + 0.5) * 1e6), WHOLE_CARD)
        tenant.wait()
        return {}
    # "asks": a small kernel at random times; "small": one after the other
    pause = (lambda: random.expovariate(20)) if kind == "asks" else (lambda: 0)
    blocks = WHOLE_CARD if kind == "asks" else CORNER
    took = answers(tenant, lambda: tenant.launch(n, blocks), pause, begin, end)
    took.sort()
    return {
        "count": len(took),
        "p50": statistics.median(took),
        "most": took[-5:],
        "p99": took[min(len(took) - 1, int(len(took) * 0.99))],
    }


def together(
    seconds: float,
    rate: float,
    *works: dict[str, Any],
    around: AbstractContextManager[object] | None = None,
) -> list[dict[str, Any]]:
    """Each one's tenant beside the others; `environment` is what its process has besides.

    `around` is entered when all of them are ready, before their time begins.
    """
    with tenants.Tenants() as running:
        started = []
        for work in map(dict, works):
            environment = {**os.environ, **work.pop("environment", {})}
            command = [sys.executable, __file__, "--be", json.dumps({"rate": rate, **work})]
            started.append(running.start(work["kind"], command, environment))
        running.wait_ready()
        with around or nullcontext():
            return tenants.window(started, seconds, lead=0.6)


def main(seconds: float) -> None:
    called = subprocess.run(
        [sys.executable, __file__, "--calibrate"], stdout=subprocess.PIPE, check=True
    )
    rate = float(called.stdout)

    def show(name: str, *tasks: dict[str, Any]) -> None:
        got = together(seconds, rate, *tasks)
        parts = [
            " ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in g.items())
            for g in got
        ]
        print(f"{name:44s} | " + " | ".join(parts), flush=True)

    print(f"{rate:.1f} iterations a microsecond; {seconds:g} s each; ms: of kernels done")
    work = {"kind": "kernels", "us": 100}
    show("kernels alone", work)
    show("kernels of 5 µs alone", {"kind": "kernels", "us": 5})
    show("two with kernels of 100 µs", work, work)
    show("100 µs and 1 ms", work, {"kind": "kernels", "us": 1000})
    for kind in ("to device", "to host", "on device", "memset"):
        show(f"{kind}, alone", {"kind": kind})
        show(f"kernels beside: {kind}", work, {"kind": kind})
    asks = {"kind": "asks", "us": 50}
    show("asks 50 µs, 20 a second, alone", asks)
    show("asks beside kernels of 100 µs", asks, work)
    show("asks beside kernels of 5 ms", asks, {"kind": "kernels", "us": 5000})
    show("asks beside two with kernels", asks, work, work)
    small = {"kind": "small", "us": 20}
    for number in (1, 2, 4, 8):
        show(f"{number} small", *([small] * number))
    show("kernels beside an endless kernel", work, {"kind": "endless"})
    show("asks beside an endless kernel", asks, {"kind": "endless"})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--calibrate"]:
        print(calibrate(Tenant()))
    elif sys.argv[1:2] == ["--be"]:
        made, work = Tenant(), json.loads(sys.argv[2])
        tenants.say({"ready": True})
        for when in tenants.tasks():
            tenants.say(be(made, {**work, **when}))
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 2)
