# SPDX-License-Identifier: Apache-2.0
"""A kernel's fault on a real card, natively and through Sluice: what NVML tells of it, and others.

    python tests/gpu/faults.py [--driver PATH]

Needs a checkout, an NVIDIA GPU, its driver and nvidia-ml-py; Sluice's libraries as run.py needs
them. NVML is watched as sluice-server watches it (server/gpus/nvml_watch.py) while a program writes
to an address that it does not have: the XID that the driver reports has to be one that the table of
server/gpus/xids.py calls an application's own, as the card must stay in the pool; a session beside
the faulty one has to go on; and a session after it has to find a card that works. Where the driver
tells containers and virtual machines of no XID, that is said, and the rest is still tried. Exit
status 1 where anything differs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

# the checkout as it lies: nothing is built or installed for this
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]

from run import Server, find_driver  # noqa: E402

from sluice.server.gpus.nvml_watch import NvmlWatch  # noqa: E402
from sluice.server.gpus.xids import Verdict, classify  # noqa: E402

TOLD_SECONDS = 5.0  # how long after a fault NVML is listened to

FAULTY = r"""
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
ptx = b'''.version 7.8
.target sm_70
.address_size 64
.visible .entry wild() { .reg .b64 %a; mov.b64 %a, 64; st.global.u32 [%a], 1; ret; }
'''
ref, pointer = ctypes.byref, ctypes.c_void_p
context, module, kernel = pointer(), pointer(), pointer()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuModuleLoadData(ref(module), ptx) == 0
assert cuda.cuModuleGetFunction(ref(kernel), module, b"wild") == 0
assert cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
print(cuda.cuCtxSynchronize(), cuda.cuCtxSynchronize())
"""

HEALTHY = r"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
ref = ctypes.byref
context, at, word = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ref(at), ctypes.c_size_t(1 << 20)) == 0
for number in range(2):
    assert cuda.cuMemsetD32_v2(at, 41 + number, ctypes.c_size_t(1 << 18)) == 0
    assert cuda.cuMemcpyDtoH_v2(ref(word), at, ctypes.c_size_t(4)) == 0
    print(word.value, flush=True)
    if len(sys.argv) > 1 and not number:
        sys.stdin.readline()
"""


@dataclass
class Heard:
    """What NVML told; a server.nvml_watch.Listener."""

    xids: list[int] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def saw_xid(self, uuid: str, number: int) -> None:
        """Keep it."""
        self.xids.append(number)

    def saw_double_bit_error(self, uuid: str) -> None:
        """It is none of this test's making."""
        self.others.append("an uncorrectable ECC error")

    def saw_lost(self, uuid: str, why: str) -> None:
        """It must not happen."""
        self.others.append(f"lost: {why}")


def python(program: str, environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """Start a program; what it prints comes by a pipe."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(program: subprocess.Popen[str]) -> str:
    """All it prints until its end, in a line."""
    out, _ = program.communicate("\n", timeout=60)
    return " ".join(out.split()) + ("" if program.returncode == 0 else f" [{program.returncode}]")


async def try_one(name: str, environment: dict[str, str], heard: Heard) -> bool:
    """A fault beside a healthy session; whether all was as it must be."""
    heard.xids.clear()
    beside = python(HEALTHY, environment, "wait")
    assert beside.stdout
    first = await asyncio.to_thread(beside.stdout.readline)
    fault = await asyncio.to_thread(said, python(FAULTY, environment))
    until = time.monotonic() + TOLD_SECONDS
    while not heard.xids and time.monotonic() < until:
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)  # a fault may be told as more than one XID
    rest = f"{first.strip()} {await asyncio.to_thread(said, beside)}"
    after = await asyncio.to_thread(said, python(HEALTHY, environment))
    told = [classify(number) for number in heard.xids]
    bad = [xid for xid in told if xid.verdict not in (Verdict.APPLICATION, Verdict.NOTED)]
    good = fault == "700 700" and rest == after == "41 42" and not bad and not heard.others
    xids = ", ".join(xid.text for xid in told) or "no XID is told here"
    print(f"{name:8} {'ok' if good else 'WRONG':6} fault {fault:8} beside {rest:8} after {after:8}")
    print(f"{'':8} NVML: {xids} {' '.join(heard.others)}", flush=True)
    return good


def uuids() -> list[str]:
    """The machine's GPUs."""
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


async def try_all(driver: str, server: Server) -> bool:
    """Natively, then over both channels."""
    heard = Heard()
    watch = NvmlWatch(Path(driver).parent / "libnvidia-ml.so.1", heard)
    watch.start(uuids())
    try:
        await asyncio.sleep(2)  # NVML is open, the worker that waits ready has its context
        good = [
            await try_one(channel, environment, heard)
            for channel, environment in {"native": {}, **server.environments}.items()
        ]
    finally:
        watch.stop()
    return all(good)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="A kernel's fault, and what the card makes of it.")
    parser.add_argument("--driver", default="", help="(default: NVIDIA's, as the loader finds it)")
    driver = parser.parse_args().driver or find_driver()
    if not driver:
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    with tempfile.TemporaryDirectory(prefix="sluice-faults-") as name:
        Path(name).chmod(0o755)
        server = Server(driver, Path(name), memory_mib=4096)
        try:
            return 0 if asyncio.run(try_all(driver, server)) else 1
        finally:
            server.close()


if __name__ == "__main__":
    sys.exit(main())
