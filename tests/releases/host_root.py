# SPDX-License-Identifier: Apache-2.0
"""A host of a pool in a distribution's root: its services run there, in a network of their own.

Used by conftest.py. There is no systemd in a root, so that the services are started as their units
would start them. Ends everything that runs in the root, workers and standing processes among it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import cuda_holder
from control_plane import wait_for

from tests.guest_images.root import Root

NATIVE = "/opt/sluice-host/lib/python3.11/site-packages/sluice/native"
ADMIN = "--token-file /etc/sluice/accounts/admin.token"
INIT = "sluice init --node-name host-1 --driver softgpu --tls --project alpha"
BY_TCP = (
    "SLUICE_CHANNEL=tcp SLUICE_CONTROLLER=https://127.0.0.1:9123 SLUICE_CA=/etc/sluice/ca/ca.crt "
    'SLUICE_TOKEN="$(cat /etc/sluice/accounts/alpha.token)"'
)


class HostRoot(Root):
    """One host."""

    def __init__(self, folder: Path, base: Path) -> None:
        super().__init__(folder, base)
        self._network = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        ours = Path("/proc/self/ns/net").readlink()
        theirs = Path(f"/proc/{self._network.pid}/ns/net")
        wait_for(lambda: theirs.readlink() != ours, message="a network of the root's own")
        self.enter = ("nsenter", f"--net={theirs}")
        self.check("ip link set lo up")
        self.services: dict[str, subprocess.Popen[bytes]] = {}

    def start_service(self, name: str) -> None:
        """The controller or the server, as its unit starts it."""
        command = f"/usr/bin/sluice-{name} --config /etc/sluice/{name}.conf"
        self.services[name] = self.start(command, self.output(name))

    def output(self, name: str) -> Path:
        """What a service said."""
        return self.folder.with_name(f"{self.folder.name}-{name}.out")

    def said(self) -> str:
        """What all services said, for messages of tests."""
        names = [name for name in ("controller", "server") if self.output(name).exists()]
        return "\n".join(f"{name}:\n{self.output(name).read_text()[-3000:]}" for name in names)

    def stop_service(self, name: str) -> None:
        """As systemd does: the main process alone."""
        process = self.services.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(60)

    def serve(self) -> None:
        """Starts what `sluice init` made of the root, and waits until it is up."""
        self.start_service("controller")
        self.start_service("server")
        self.wait_until_up()

    def wait_until_up(self) -> None:
        """Until the controller has heard of this node."""
        wait_for(
            lambda: "1 of 1 nodes up" in self.run(f"sluice {ADMIN} status").stdout,
            message=lambda: self.run(f"sluice {ADMIN} status").stderr + self.said(),
        )

    def holder(self) -> HeldProgram:
        """A CUDA program that works when it is told to."""
        self.put(Path(cuda_holder.__file__), "/holder.py")
        return HeldProgram(self)

    def close(self) -> None:
        """Ends what runs in the root, and takes it away."""
        for name in list(self.services):
            self.stop_service(name)
        for _ in range(100):
            running = self._processes()
            for pid in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not running:
                break
            time.sleep(0.05)
        self._network.kill()
        self._network.wait()
        super().close()

    def _processes(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/root"):
            with contextlib.suppress(OSError):
                if path.readlink() == self.folder:
                    found.append(int(path.parent.name))
        return found


class HeldProgram:
    """The program; `work` returns the CUresult of what it did."""

    def __init__(self, root: HostRoot) -> None:
        self._root = root
        self._out = root.folder.with_name(f"{root.folder.name}-holder.out")
        variables = {"LD_LIBRARY_PATH": NATIVE, "SLUICE_GMEM": "64", "SLUICE_CHANNEL": "shm"}
        self.process = root.start("python3 /holder.py", self._out, **variables)
        self._lines = 0
        self._next("ready")

    def work(self) -> int:
        """Has it allocate, set and synchronise."""
        assert self.process.stdin
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()
        return int(self._next())

    def _next(self, wanted: str = "") -> str:
        def lines() -> list[str]:
            return self._out.read_text().splitlines()

        def is_there() -> bool:
            return len(lines()) > self._lines or self.process.poll() is not None

        wait_for(is_there, message=lambda: f"{lines()}\n{self._root.said()}")
        assert len(lines()) > self._lines, f"it ended: {lines()}\n{self._root.said()}"
        line = lines()[self._lines]
        self._lines += 1
        assert wanted in line, lines()
        return line


def python_of(root: Root) -> str:
    """The version of the Python that the root's package uses, such as 3.11."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return root.check(f'python3 -c "{code}"').strip()


def install_deb(root: HostRoot, deb: Path) -> str:
    root.put(deb, f"/tmp/{deb.name}")
    return root.check(f"apt-get install -y --no-install-recommends /tmp/{deb.name} 2>&1")
