# SPDX-License-Identifier: Apache-2.0
"""Sessions on the software GPU for one test, without a control plane: static_server.py in a folder.

`with StaticPool(folder) as pool:` → `pool.environment()` is what a program needs to find it, and
our libraries.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from free_ports import free_port

from sluice.config.native_files import find_native

SERVER = Path(__file__).with_name("static_server.py")
ROOT = Path(__file__).resolve().parents[2]


def build_programs(*names: str) -> Path:
    """Build these of tests/programs; the folder that they are in."""
    out = ROOT / "build" / "programs"
    build = ROOT / "tests" / "programs" / "build.py"
    subprocess.run([sys.executable, build, "--out", out, *names], check=True, timeout=300)
    return out


def gpu_uuid(index: int) -> str:
    """The name of a software GPU (native/softgpu/runtime/device.cc makes it)."""
    return f"GPU-536c7569-6365-4000-8073-6f66746770{index:02x}"


class StaticPool:
    """A running static server; its socket, log and home lie in `folder`.

    `gpus`: how many software GPUs the vGPUs lie on, in turn. `tcp`: its clients come by TCP.
    """

    def __init__(
        self,
        folder: Path,
        vgpus: int = 1,
        memory_mib: int = 1024,
        *,
        gpus: int = 1,
        tcp: bool = False,
        sandbox: str = "off",
        driver: Path | None = None,
    ) -> None:
        self.folder = folder
        self.vgpus = vgpus
        self.socket = folder / "server.sock"
        self.log = folder / "worker.log"
        command = [sys.executable, str(SERVER), "--socket", str(self.socket)]
        command += ["--worker", str(find_native("sluice-worker"))]
        command += ["--driver", str(driver or find_native("libsluice-softgpu.so.1"))]
        command += ["--vgpus", str(vgpus), "--memory-mib", str(memory_mib)]
        command += ["--sandbox", sandbox, "--log", str(self.log)]
        command += ["--visible-devices", ",".join(map(gpu_uuid, range(gpus)))]
        self.http_port = 0
        if tcp:
            self.http_port = free_port()
            command += ["--http-port", str(self.http_port), "--tcp-port", str(free_port())]
        self.process = subprocess.Popen(
            command, env={**os.environ, "SLUICE_SOFTGPU_COUNT": str(gpus)}
        )

    def __enter__(self) -> StaticPool:
        deadline = time.monotonic() + 60
        while not self.socket.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the static server did not start; see {self.log}")
            time.sleep(0.02)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.process.terminate()
        self.process.wait(60)

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a program that is to find this server and our libraries."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "CUDA_"))}
        return {
            **inherited,
            "HOME": str(self.folder),
            "SLUICE_SERVER_SOCKET": str(self.socket),
            "SLUICE_VGPU": str(self.vgpus),
            "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
            **(
                {"SLUICE_CHANNEL": "tcp", "SLUICE_CONTROLLER": f"127.0.0.1:{self.http_port}"}
                if self.http_port
                else {}
            ),
            **more,
        }

    def sessions(self) -> int:
        """How many sessions were opened so far."""
        return self.log.read_text().count("session started") if self.log.exists() else 0
