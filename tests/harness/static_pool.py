# SPDX-License-Identifier: Apache-2.0
"""Sessions on the software GPU for one test, without a controller: static_server.py in a folder.

`with StaticPool(folder) as pool:` → `pool.environment()` is what a program needs to find it, and
our libraries. Each pool's server is a process that is forked off one which has imported everything:
importing takes longer than all else of a small test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from forks import be, forks
from free_ports import free_port
from session_logs import SessionLogs
from static_server import StaticOptions, serve

from sluice.config.native_files import find_native

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


def _serve(options: StaticOptions, environment: dict[str, str]) -> None:
    be(environment)
    serve(options)


class StaticPool:
    """A running static server; its socket, logs and home lie in `folder`.

    `gpus`: how many software GPUs the vGPUs lie on, in turn. `tcp`: its clients come by TCP;
    `relay`: by a server beside it, which has none. `way`: the address at which clients by TCP look
    for the data port, where somebody passes on what comes to it. `libraries`: the folder in which
    its workers find NVIDIA's.
    """

    def __init__(
        self,
        folder: Path,
        vgpus: int = 1,
        memory_mib: int = 1024,
        *,
        gpus: int = 1,
        tcp: bool = False,
        relay: bool = False,
        way: str = "",
        sandbox: str = "off",
        driver: Path | None = None,
        libraries: Path | None = None,
    ) -> None:
        self.folder = folder
        self.vgpus = vgpus
        self.socket = folder / "server.sock"
        self.log = SessionLogs(folder / "log")
        self.http_port = free_port() if tcp else 0
        self.data_port = free_port() if way else 0  # 0: any
        self.relay = relay
        options = StaticOptions(
            socket=self.socket,
            log_dir=folder / "log",
            driver=str(driver or find_native("libsluice-softgpu.so.1")),
            vgpus=vgpus,
            memory_mib=memory_mib,
            libraries=str(libraries or ""),
            visible_devices=",".join(map(gpu_uuid, range(gpus))),
            sandbox=sandbox,
            http_port=0 if way else self.http_port,
            ways=((self.http_port, way),) if way else (),
            data_port=self.data_port,
            relay=relay,
        )
        environment = {**os.environ, "SLUICE_SOFTGPU_COUNT": str(gpus)}
        self.process = forks().Process(target=_serve, args=(options, environment))
        self.process.start()

    def __enter__(self) -> StaticPool:
        deadline = time.monotonic() + 60
        while not self.socket.exists():
            if not self.process.is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f"the static server did not start; see {self.folder}/log")
            time.sleep(0.02)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.process.terminate()
        self.process.join(60)

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a program that is to find this server and our libraries."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SLUICE_", "CUDA_"))}
        return {
            **inherited,
            "HOME": str(self.folder),
            "SLUICE_SERVER_SOCKET": f"{self.socket}{'.relay' if self.relay else ''}",
            "SLUICE_VGPU": str(self.vgpus),
            "LD_LIBRARY_PATH": str(find_native("libcuda.so.1").parent),
            **(
                {"SLUICE_CHANNEL": "tcp", "SLUICE_CONTROLLER": f"127.0.0.1:{self.http_port}"}
                if self.http_port
                else {}
            ),
            **more,
        }

    def run(self, *command: str | Path, seconds: int = 120) -> subprocess.CompletedProcess[str]:
        """What a program does here, to its end."""
        return subprocess.run(
            command,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def sessions(self) -> int:
        """How many sessions were opened so far."""
        return len(self.log)
