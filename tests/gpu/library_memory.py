# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's libraries take on the node: charged, limited, given back.

    python tests/gpu/library_memory.py [--gmem MIB] [--channels shm tcp]

Starts a server of its own (as `make test-gpu` does) and a program with a small vGPU that makes
cuBLAS handles, a cuDNN handle and cuFFT plans until it is refused. Each line: what the step is,
what the vGPU has left by Sluice's account, what the worker's process holds by nvidia-smi's. Exit
status 0 when every step went as it must. A library that the node lacks is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from run import Server, find_driver

PROGRAM = r"""
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
size, pointer, ref = ctypes.c_size_t, ctypes.c_void_p, ctypes.byref

def say(step, **what):
    free, total = size(), size()
    status = cuda.cuMemGetInfo_v2(ref(free), ref(total))
    print(json.dumps({"step": step, "left": free.value >> 20, "total": total.value >> 20,
                      "alive": status == 0, **what}), flush=True)
    sys.stdin.readline()

def settle():
    return cuda.cuCtxSynchronize()

def library(name):
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        say(f"skipped {name}", why=str(error))
        return None

def many(make, most):
    made = []
    while len(made) < most:
        handle = pointer()
        status = make(handle, len(made))
        if status:
            return made, status
        made.append(handle)
    return made, 0

def until_full(name, make, destroy, most=4096, must=True):
    first = pointer()
    status = make(first, 0)
    if status:
        return say(f"skipped {name}", why=f"status {status}")
    settle()
    say(f"{name}: one")
    made, status = many(make, most)
    settle()
    say(f"{name}: until it was refused", made=len(made) + 1, status=status,
        refused=status != 0 or not must)
    for handle in made:
        destroy(handle)
    settle()
    say(f"{name}: all but one destroyed")
    again = pointer()
    status = make(again, 0)
    say(f"{name}: one more", ok=status == 0)
    destroy(again)
    destroy(first)
    settle()
    say(f"{name}: none", none=True)

assert cuda.cuInit(0) == 0
context = pointer()
assert cuda.cuDevicePrimaryCtxRetain(ref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
say("session")
blas = library("libcublas.so.13")
if blas:
    until_full("cuBLAS handles", lambda h, i: blas.cublasCreate_v2(ref(h)), blas.cublasDestroy_v2)
dnn = library("libcudnn.so.9")
if dnn:
    until_full("cuDNN handles", lambda h, i: dnn.cudnnCreate(ref(h)), dnn.cudnnDestroy, 200,
               must=False)
fft = library("libcufft.so.12")
if fft:
    # 64 Mi points of 8 bytes in a batch: a work area of 512 MiB or so; another length each time
    def plan(h, i):
        number = ctypes.c_int()
        status = fft.cufftPlan1d(ref(number), 1 << 20, 0x29, 16 + i)
        h.value = number.value + 1
        return status
    until_full("cuFFT plans", plan, lambda h: fft.cufftDestroy(h.value - 1), 200)
if blas:
    # The program takes the rest: a library finds nothing. Then it gives it back.
    held = []
    for mib in (256, 32, 2):
        while True:
            p = ctypes.c_uint64()
            if cuda.cuMemAlloc_v2(ref(p), size(mib << 20)):
                break
            held.append(p)
    handle = pointer()
    status = blas.cublasCreate_v2(ref(handle))
    say("the program holds everything: a handle", refused=status != 0, status=status)
    for p in held:
        cuda.cuMemFree_v2(p)
    settle()
    status = blas.cublasCreate_v2(ref(handle))
    say("it gave it back: a handle", ok=status == 0)
    n, one, zero = 256, ctypes.c_float(1), ctypes.c_float(0)
    a = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ref(a), size(3 * 4 * n * n)) == 0
    b, c = pointer(a.value + 4 * n * n), pointer(a.value + 8 * n * n)
    status = blas.cublasSgemm_v2(handle, 0, 0, n, n, n, ref(one), pointer(a.value), n, b, n,
                                 ref(zero), c, n)
    say("and multiplies", ok=status == 0 and settle() == 0)
"""


def by_the_driver() -> int | None:
    """MiB of the first GPU in use; None without nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return int(done.stdout.split()[0])


def judge(said: dict[str, object], held: int | None) -> str:
    """What is wrong with a step; empty when nothing is. `held`: MiB that the driver has taken."""
    if not said["alive"]:
        return "the session has ended"
    if said.get("refused") is False:
        return "nothing refused it"
    if said.get("ok") is False:
        return "it failed"
    if said.get("none") and said["left"] < said["start"]:  # type: ignore[operator]
        # A library may keep what it set up once, and the driver the streams that there have been,
        # for the next ones (docs/performance.md).
        kept = int(said["start"]) - int(said["left"])  # type: ignore[call-overload]
        return "" if kept <= max(128, held or 0) else f"{kept} MiB did not come back"
    return ""


def run(server: Server, channel: str, gmem: int) -> bool:
    """One program over one channel; whether all went well."""
    time.sleep(2)  # the worker that waits ready has its context
    empty = by_the_driver()
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **server.environments[channel]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin
    assert child.stdout
    good, start, steps = True, 0, 0
    print(f"{'step (' + channel + ')':48} {'left':>7} {'charged':>8} {'driver':>8}")
    for line in child.stdout:
        said = json.loads(line)
        steps += 1
        start = start or said["left"]
        now = by_the_driver()
        held = None if now is None or empty is None else now - empty
        wrong = judge({**said, "start": start}, held)
        if held is not None and held > gmem + 1024:  # code and the context's own beside it
            wrong = wrong or f"the driver says {held} MiB, far beyond the vGPU"
        notes = [f"{k}={said[k]}" for k in ("made", "status", "why") if k in said]
        print(
            f"{said['step']:48} {said['left']:7} {said['total'] - said['left']:8} "
            f"{'-' if held is None else held:>8} {'WRONG: ' + wrong if wrong else 'ok'} "
            f"{' '.join(notes)}",
            flush=True,
        )
        good = good and not wrong
        child.stdin.write("\n")
        child.stdin.flush()
    code = child.wait()
    return good and code == 0 and steps > 1


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Memory that libraries take on the node.")
    parser.add_argument("--gmem", type=int, default=2048, help="MiB of the vGPU")
    parser.add_argument("--channels", nargs="*", default=["shm", "tcp"])
    parser.add_argument("--driver", default="", help="(default: NVIDIA's, as the loader finds it)")
    parser.add_argument("--libraries", help="folders, with colons (default: as the server looks)")
    options = parser.parse_args()
    driver = options.driver or find_driver()
    if not driver:
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = Server(driver, folder, libraries=options.libraries, memory_mib=options.gmem)
        try:
            results = [run(server, channel, options.gmem) for channel in options.channels]
        finally:
            server.close()
            log = server.log.read_text().splitlines()
            print("\n".join([x for x in log if " ERROR " in x or "refused" in x][-20:]))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
