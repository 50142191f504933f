# SPDX-License-Identifier: Apache-2.0
"""A process that uses a vGPU until it is told to end, for tests of what others see of it.

`with VgpuUser(environment) as holder:` → `holder.uuid`, `holder.pid`; it has 64 MiB of its vGPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

CODE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address, raw = ctypes.c_void_p(), ctypes.c_uint64(), (ctypes.c_ubyte * 16)()
for e in (
    cuda.cuInit(0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
    cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64 << 20)),
    cuda.cuMemsetD8_v2(address, 1, ctypes.c_size_t(64 << 20)),
    cuda.cuCtxSynchronize(),
    cuda.cuDeviceGetUuid_v2(raw, 0),
):
    if e:
        sys.exit(f"CUDA error {e}")
print(bytes(raw).hex(), flush=True)
sys.stdin.readline()
"""


class VgpuUser:
    """Python that holds 64 MiB of a vGPU's memory."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        user: int | None = None,
        program: Path | None = None,
    ) -> None:
        """`user`: whom it runs as, where that is somebody else; `program`: another Python."""
        self._process = subprocess.Popen(
            [program or (sys.executable if user is None else "/usr/bin/python3"), "-c", CODE],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=user,
        )
        assert self._process.stdout is not None
        digits = self._process.stdout.readline().strip()
        if len(digits) != 32:
            raise RuntimeError(f"it did not start: status {self._process.wait(60)}")
        parts = digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]
        self.uuid = "GPU-" + "-".join(parts)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._process.wait(60)

    def __enter__(self) -> VgpuUser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.communicate(os.linesep, timeout=60)
