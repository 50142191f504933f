# SPDX-License-Identifier: Apache-2.0
"""A process of a job that does one CUDA call per line of its standard input, and prints a line.

    alloc MIB · free · info · devices · export · open HEX
    read · write BYTE · fill MIB · child MIB · quit

It loads libcuda.so.1 as any program does. The first line that it prints is "ready", or "failed N".
`JobProcess` starts one and talks to it; it needs nothing of the project to run.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Mapping


class JobProcess:
    """Such a process, as a test sees it."""

    def __init__(self, environment: Mapping[str, str], *before: str, device: int = 0) -> None:
        command = [*before, sys.executable, __file__, str(device)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(environment),
        )
        assert self.process.stdout
        self.first = self.process.stdout.readline().strip()

    def do(self, line: str) -> str:
        """One command and its answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def free_mib(self) -> int:
        """What cuMemGetInfo says is free."""
        return int(self.do("info").split()[0])

    def errors(self) -> str:
        """Everything that it said on standard error, once it has ended."""
        return self.process.communicate(timeout=60)[1]

    def kill(self) -> None:
        """As by the kernel."""
        self.process.kill()
        self.process.wait()

    def quit(self) -> int:
        """In good order."""
        if self.process.poll() is None:
            self.do("quit")
        return self.process.wait(60)


def main() -> None:
    """Do as the lines say."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    device = ctypes.c_int(int(sys.argv[1]))
    for status in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        cuda.cuCtxSetCurrent(context),
    ):
        if status != 0:
            print(f"failed {status}", flush=True)
            sys.exit(1)
    print("ready", flush=True)
    held: list[ctypes.c_uint64] = []
    for line in sys.stdin:
        verb, _, argument = line.strip().partition(" ")
        answer = "?"
        if verb == "alloc":
            address = ctypes.c_uint64()
            status = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(argument) << 20))
            if status == 0:
                held.append(address)
            answer = str(status)
        elif verb == "free":
            answer = str(cuda.cuMemFree_v2(held.pop()))
        elif verb == "info":
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
            answer = f"{free.value >> 20} {total.value >> 20}"
        elif verb == "devices":
            count = ctypes.c_int()
            cuda.cuDeviceGetCount(ctypes.byref(count))
            names = []
            for index in range(count.value):
                uuid = (ctypes.c_ubyte * 16)()
                cuda.cuDeviceGetUuid_v2(uuid, index)
                names.append(bytes(uuid).hex())
            answer = " ".join(names)
        elif verb == "export":
            handle = (ctypes.c_ubyte * 64)()
            status = cuda.cuIpcGetMemHandle(handle, held[-1])
            answer = bytes(handle).hex() if status == 0 else f"failed {status}"
        elif verb == "open":
            raw = (ctypes.c_ubyte * 64).from_buffer_copy(bytes.fromhex(argument))

            class Handle(ctypes.Structure):
                _fields_ = (("reserved", ctypes.c_ubyte * 64),)

            address = ctypes.c_uint64()
            status = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(address), Handle(raw), 1)
            if status == 0:
                held.append(address)
            answer = str(status)
        elif verb == "write":
            status = cuda.cuMemsetD8_v2(held[-1], int(argument), ctypes.c_size_t(4096))
            answer = str(status or cuda.cuCtxSynchronize())
        elif verb == "fill":
            status = cuda.cuMemsetD8_v2(held[-1], 1, ctypes.c_size_t(int(argument) << 20))
            answer = str(status or cuda.cuCtxSynchronize())
        elif verb == "read":
            data = (ctypes.c_ubyte * 4)()
            status = cuda.cuMemcpyDtoH_v2(data, held[-1], ctypes.c_size_t(4))
            answer = bytes(data).hex() if status == 0 else f"failed {status}"
        elif verb == "child":  # a program started by this one, which inherits the job
            done = subprocess.run(
                [sys.executable, __file__, sys.argv[1]],
                input=f"alloc {argument}\ninfo\n",
                capture_output=True,
                text=True,
                check=False,
            )
            answer = done.stdout.replace("\n", ";")
        elif verb == "quit":
            print("bye", flush=True)
            break
        print(answer, flush=True)


if __name__ == "__main__":
    main()
