# SPDX-License-Identifier: Apache-2.0
"""Debian's podman with runc, its storage and its CDI folder a test's own, as root or as a user.

Used by test_podman.py. Commands run in one mount namespace, in which the folder lies over /etc/cdi;
nothing of the machine's own containers is touched. What the machine cannot do here (rlimits, a
systemd) is set off in containers.conf.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
#: As a user's own shell has it.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Running:
    """A container in the foreground."""

    name: str
    process: subprocess.Popen[str]

    def line(self) -> str:
        """The next line that it prints; that it waits in the pool's queue is none."""
        assert self.process.stdout
        while (line := self.process.stdout.readline()).startswith("sluice: waiting"):
            pass
        return line.strip()


@dataclass
class Podman:
    """One engine; `user` is of the host, "" root's."""

    folder: Path
    specifications: Path
    user: str = ""
    _names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "containers.conf").write_text(CONFIGURATION)
        if self.user:
            for name in ("home", "run"):
                (self.folder / name).mkdir()
            subprocess.run(["chown", "-R", self.user, self.folder], check=True)
        script = (
            'mkdir -p /etc/cdi && mount --bind "$1" /etc/cdi && echo ready && exec sleep 100000'
        )
        self._namespace = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", script, "sh", str(self.specifications)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._namespace.stdout
        assert self._namespace.stdout.readline() == "ready\n"

    def end_all(self) -> None:
        """Ends the containers that still run."""
        if self._names:
            self("rm", "--force", "--ignore", "--time", "0", *self._names, check=False)
        self._names.clear()

    def close(self) -> None:
        """Ends its containers and the namespace."""
        self.end_all()
        self._namespace.kill()
        self._namespace.wait()

    def _command(self, *words: str) -> list[str]:
        enter = ["nsenter", "--mount", f"--target={self._namespace.pid}"]
        if self.user:
            enter += ["setpriv", "--reuid", self.user, "--regid", self.user, "--init-groups"]
        variables = [
            f"PATH={PATH}",
            f"CONTAINERS_CONF={self.folder / 'containers.conf'}",
            f"HOME={self.folder / 'home'}",
        ]
        if self.user:
            variables.append(f"XDG_RUNTIME_DIR={self.folder / 'run'}")
        own = ["--root", str(self.folder / "storage"), "--runroot", str(self.folder / "runroot")]
        own += ["--tmpdir", str(self.folder / "tmp"), "--runtime", "runc"]
        return [*enter, "env", "-i", *variables, "podman", *own, *words]

    def __call__(self, *words: str, check: bool = True) -> str:
        """Runs a podman command; returns what it printed."""
        done = subprocess.run(
            self._command(*words),
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.folder,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(
        self, root: Path, *program: str, device: str = "", options: tuple[str, ...] = ()
    ) -> Running:
        """A container of a root, with a device.

        It does not change the root, unless that is a copy of the engine's own (`copy_of`).
        """
        name = f"sluice-test-{uuid.uuid4().hex[:12]}"
        self._names.append(name)
        given = [f"--device=sluice.io/vgpu={device}"] if device else []
        # no overlay: its folders are closed to users of another user namespace
        rootfs = str(root) if root.is_relative_to(self.folder) else f"{root}:O"
        words = ["run", "--rm", "--name", name, "--network=none", "--interactive", *given]
        process = subprocess.Popen(
            self._command(*words, *options, "--rootfs", rootfs, *program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )
        return Running(name, process)

    def run(
        self, root: Path, *program: str, device: str = "", options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """The same, waited for; both outputs are in `stdout`."""
        running = self.start(root, *program, device=device, options=options)
        out, _ = running.process.communicate(timeout=120)
        self._names.remove(running.name)
        return subprocess.CompletedProcess(program, running.process.returncode, out)

    def copy_of(self, root: Path, owner: str = "") -> Path:
        """A copy that containers may change, of the engine's user, or of who is root in them."""
        owner = owner or self.user
        copy = self.folder / f"{root.name}-{owner}"
        if not copy.exists():
            subprocess.run(["cp", "-a", "--reflink=auto", root, copy], check=True)
            if owner:
                subprocess.run(["chown", "-R", owner, copy], check=True)
        return copy

    def execute(self, name: str, *words: str) -> subprocess.Popen[str]:
        """A program more in a container that runs: options and the program."""
        options = [word for word in words if word.startswith("--")]
        program = words[len(options) :]
        return subprocess.Popen(
            self._command("exec", *options, name, *program),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
        )

    def inspect(self, name: str) -> dict[str, Any]:
        """What podman knows of a container."""
        (found,) = json.loads(self("inspect", name))
        result: dict[str, Any] = found
        return result
