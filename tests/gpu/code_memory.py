# SPDX-License-Identifier: Apache-2.0
"""What code takes of a GPU: variables, limits, local memory, charged, limited, given back.

    python tests/gpu/code_memory.py [--gmem MIB] [--channels shm tcp]

Starts a server of its own (as `make test-gpu` does) and a program with a small vGPU that asks for
far more by ways that are no allocation. Each line: what the step is, what the vGPU has left by
Sluice's account, what the driver has taken since there was no session by nvidia-smi's. That must
not exceed what is charged, the code beside it and what comes with a context, whatever was asked.
Exit status 0 when every step went as it must; without a GPU it says that it was skipped.
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

from library_memory import by_the_driver
from run import Server, find_driver

#: MiB that the driver takes once for a context with code that prints or allocates, beside the
#: context itself, which the worker that waits ready has already
#: (docs/decisions/0001-what-code-takes.md).
RUNTIME_MIB = 160

#: Without arguments. Prints a line of JSON for each step and waits for a line before the next.
#: tests/forwarded/test_code_memory.py runs it on the software GPU.
PROGRAM = r"""
import ctypes, json, struct, sys
cuda = ctypes.CDLL("libcuda.so.1")
size, pointer, ref = ctypes.c_size_t, ctypes.c_void_p, ctypes.byref
OUT_OF_MEMORY, INVALID_VALUE, UNSUPPORTED_LIMIT = 2, 1, 215
MIB = 1 << 20

def left():
    free, total = size(), size()
    status = cuda.cuMemGetInfo_v2(ref(free), ref(total))
    return status, free.value, total.value

def say(step, status=0, expected=(0,), **what):
    alive, free, total = left()
    print(json.dumps({"step": step, "left": free >> 20, "total": total >> 20, "status": status,
                      "expected": expected, "alive": alive == 0, **what}), flush=True)
    sys.stdin.readline()

HEAD = ".version 7.8\n.target sm_80\n.address_size 64\n"

def variable(mib):
    return HEAD + (f".visible .global .align 4 .b8 g[{mib * MIB}];\n.visible .entry k()\n{{\n"
                   ".reg .b64 %rd<2>;\nmov.u64 %rd1, g;\nst.global.u32 [%rd1], 5;\nret;\n}\n")

def local(amount):
    return HEAD + (".visible .entry k(\n.param .u64 p\n)\n{\n"
                   f".local .align 8 .b8 depot[{amount}];\n.reg .b64 %rd<5>;\n.reg .b32 %r<2>;\n"
                   "mov.u64 %rd1, depot;\nld.param.u64 %rd2, [p];\ncvta.local.u64 %rd3, %rd1;\n"
                   "add.s64 %rd4, %rd3, %rd2;\nst.volatile.u32 [%rd4], 5;\n"
                   "ld.volatile.u32 %r1, [%rd4];\nst.volatile.u32 [%rd4], %r1;\nret;\n}\n")

def fat(text):
    body = text.encode() + b"\0"
    body += b"\0" * (-len(body) % 8)
    part = struct.pack("<HHIQIIHHIIIQQQ", 1, 0x101, 64, len(body), 0, 0, 8, 7, 80, 0, 0, 0x11, 0, 0)
    return struct.pack("<IHHQ", 0xba55ed50, 1, 16, len(part) + len(body)) + part + body

def load(image):
    module = pointer()
    image = image if isinstance(image, bytes) else image.encode() + b"\0"
    return cuda.cuModuleLoadData(ref(module), image), module

def linked(text):
    state, image, count = pointer(), pointer(), size()
    assert cuda.cuLinkCreate_v2(0, None, None, ref(state)) == 0
    data = text.encode() + b"\0"
    status = cuda.cuLinkAddData_v2(state, 1, data, size(len(data)), None, 0, None, None)
    status = status or cuda.cuLinkComplete(state, ref(image), ref(count))
    made = ctypes.string_at(image, count.value) if status == 0 else b""
    cuda.cuLinkDestroy(state)
    assert status == 0, status
    return made

def function(module):
    f = pointer()
    assert cuda.cuModuleGetFunction(ref(f), module, b"k") == 0
    return f

def launch(f, grid=1):
    zero = ctypes.c_uint64()
    params = (ctypes.c_void_p * 1)(ctypes.addressof(zero))
    status = cuda.cuLaunchKernel(f, grid, 1, 1, 32, 1, 1, 0, None, params, None)
    return status or cuda.cuCtxSynchronize()

assert cuda.cuInit(0) == 0
context = pointer()
assert cuda.cuDevicePrimaryCtxRetain(ref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
begun = left()[1]
gmem = left()[2] >> 20
beyond = 16 * gmem
say("session")
say("PTX with a variable beyond the vGPU", load(variable(beyond))[0], [OUT_OF_MEMORY])
say("the same in a fat binary", load(fat(variable(beyond)))[0], [OUT_OF_MEMORY])
say("the same, linked first", load(linked(variable(beyond)))[0], [OUT_OF_MEMORY])
library, text = pointer(), variable(beyond).encode() + b"\0"
say("the same, as a library", cuda.cuLibraryLoadData(ref(library), text, None, None, 0, None, None,
                                                     0), [OUT_OF_MEMORY])
status, module = load(variable(gmem // 2))
say("a variable of half the vGPU", status, [0], uses=gmem // 2)
say("and its kernel", launch(function(module)), [0], uses=gmem // 2)
p = ctypes.c_uint64()
say("an allocation beyond the rest", cuda.cuMemAlloc_v2(ref(p), size(gmem * MIB * 3 // 4)),
    [OUT_OF_MEMORY])
say("unloaded", cuda.cuModuleUnload(module) or cuda.cuCtxSynchronize(), [0], uses=0)

STACK, FIFO, HEAP, PENDING = 0, 1, 2, 4
def limit(which, value):
    return cuda.cuCtxSetLimit(which, size(value))
say("a stack of 64 GiB", limit(STACK, 64 << 30), [INVALID_VALUE])
say("a stack of 256 KiB", limit(STACK, 256 << 10), [OUT_OF_MEMORY])
say("a heap of 64 GiB", limit(HEAP, 64 << 30), [OUT_OF_MEMORY])
say("64 GiB for printf", limit(FIFO, 64 << 30), [OUT_OF_MEMORY])
say("2^31 pending launches", limit(PENDING, 1 << 31), [OUT_OF_MEMORY, UNSUPPORTED_LIMIT])
say("a heap of a quarter", limit(HEAP, (8 + gmem // 4) * MIB), [0], uses=gmem // 4)
say("and the standard again", limit(HEAP, 8 * MIB), [0], uses=0)

status, module = load(local(256 << 10))
large = function(module)
say("a kernel with 256 KiB of local memory", status or launch(large), [OUT_OF_MEMORY])
say("the same, again", launch(large), [OUT_OF_MEMORY])
graph = pointer()
assert cuda.cuGraphCreate(ref(graph), 0) == 0
class Kernel(ctypes.Structure):
    _fields_ = [("func", pointer), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("shared", ctypes.c_uint), ("params", pointer), ("extra", pointer),
                ("kern", pointer), ("ctx", pointer)]
zero = ctypes.c_uint64()
params = (ctypes.c_void_p * 1)(ctypes.addressof(zero))
node, one = pointer(), (1, 1, 1)
kernel = Kernel(large, one, one, 0, ctypes.addressof(params), None, None, None)
say("the same, in a graph", cuda.cuGraphAddKernelNode_v2(ref(node), graph, None, size(0),
                                                         ref(kernel)), [OUT_OF_MEMORY])
status, module = load(local(512))
say("a kernel with what every thread has", status or launch(function(module), 4000), [0], uses=0)

made = 0
while made < 30000:
    status, module = load(HEAD + "// " + "x" * 65536 + "\n.visible .entry k()\n{\nret;\n}\n")
    if status:
        break
    made += 1
say("modules of 64 KiB, until they are refused", status, [OUT_OF_MEMORY], code=gmem, made=made)
"""


def judge(said: dict[str, object], start: int) -> str:
    """What is wrong with a step by the account; empty when nothing is."""
    if not said["alive"]:
        return "the session has ended"
    expected = said["expected"]
    assert isinstance(expected, list)
    if said["status"] not in expected:
        return f"it answered {said['status']} in place of {expected}"
    if "uses" in said:
        used = start - int(str(said["left"]))
        if abs(used - int(str(said["uses"]))) > 2:
            return f"{used} MiB are charged in place of {said['uses']}"
    return ""


def run(server: Server, channel: str) -> bool:
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
    good, start, steps, base = True, 0, 0, 0
    print(f"{'step (' + channel + ')':48} {'left':>7} {'charged':>8} {'driver':>8}")
    for line in child.stdout:
        said = json.loads(line)
        if steps == 0:
            # Another worker has come to wait ready meanwhile: what it took is no session's.
            time.sleep(3)
            start, base = said["left"], by_the_driver() or 0
        steps += 1
        wrong = judge(said, start)
        now = by_the_driver()
        held = None if now is None or empty is None else now - base
        most = start - said["left"] + RUNTIME_MIB + said.get("code", 0)
        if held is not None and held > most:
            wrong = wrong or f"the driver has taken {held} MiB, more than {most}"
        print(
            f"{said['step']:48} {said['left']:7} {said['total'] - said['left']:8} "
            f"{'-' if held is None else held:>8} {'WRONG: ' + wrong if wrong else 'ok'} "
            f"{'made=' + str(said['made']) if 'made' in said else ''}",
            flush=True,
        )
        good = good and not wrong
        child.stdin.write("\n")
        child.stdin.flush()
    return good and child.wait() == 0 and steps > 20


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Memory that code takes.")
    parser.add_argument("--gmem", type=int, default=64, help="MiB of the vGPU")
    parser.add_argument("--channels", nargs="*", default=["shm", "tcp"])
    parser.add_argument("--driver", default="", help="(default: NVIDIA's, as the loader finds it)")
    options = parser.parse_args()
    driver = options.driver or find_driver()
    if not driver:
        print("skipped: this machine shows no NVIDIA GPU")
        return 0
    with tempfile.TemporaryDirectory(prefix="sluice-gpu-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = Server(driver, folder, memory_mib=options.gmem)
        try:
            results = [run(server, channel) for channel in options.channels]
        finally:
            server.close()
            log = server.log.read_text().splitlines()
            print("\n".join(log[-30:]))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
