# SPDX-License-Identifier: Apache-2.0
"""A host of a pool in a distribution's root that systemd has booted: it is PID 1 of namespaces.

Used by test_systemd.py. Its processes are in a part of their own of the machine's unified cgroups,
which need not have the controllers of memory and of processes: what a scope groups and what a
unit's end kills is as on a host, its limits are not. Commands run among the root's processes. Ends
all of them, and takes the cgroups away.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from control_plane import wait_for

from .host_root import HostRoot

#: What the shell that becomes systemd does: a cgroup of its own, then what a container engine does.
OUTSIDE = """
set -e
mount -t cgroup2 cgroup2 "$2"
mkdir "$2/$1"
echo $$ > "$2/$1/cgroup.procs"
umount "$2"
exec unshare --cgroup --pid --fork --kill-child --mount --uts --ipc sh -c "$3"
"""
INSIDE = """
set -e
mount --bind . .
cd "$PWD"
mkdir -p proc sys dev run
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do
  touch dev/$name
  mount --bind /dev/$name dev/$name
done
for name in pts shm mqueue; do mkdir dev/$name; done
mount -t devpts -o newinstance,ptmxmode=666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
exec chroot . /lib/systemd/systemd
"""


class SystemdRoot(HostRoot):
    """One host."""

    def __init__(self, folder: Path, base: Path) -> None:
        self._cgroup = f"sluice-tests-{os.getpid()}-{folder.name}"
        self._engine: subprocess.Popen[bytes] | None = None
        self._init = 0
        super().__init__(folder, base)

    def boot(self) -> None:
        """Starts systemd, and waits until it has started what is enabled."""
        with tempfile.TemporaryDirectory() as place:
            script = ["unshare", "--mount", "sh", "-c", OUTSIDE, "sh", self._cgroup, place, INSIDE]
            with self.output("systemd").open("ab") as out:
                self._engine = subprocess.Popen(
                    [*self.enter, *script],
                    cwd=self.folder,
                    env={"PATH": os.environ["PATH"], "container": "sluice-tests"},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
            wait_for(self._is_up, message=lambda: self.output("systemd").read_text())

    def _is_up(self) -> bool:
        assert self._engine
        assert self._engine.poll() is None, self.output("systemd").read_text()
        pid = self._engine.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not children:
            return False
        self._init = int(children[0])
        comm = Path(f"/proc/{self._init}/comm").read_text().strip()
        state = self.run("systemctl is-system-running") if comm == "systemd" else None
        return state is not None and state.stdout.strip() in ("running", "degraded")

    def _words(self, command: str) -> list[str]:
        if not self._init:
            return super()._words(command)
        namespaces = ["mount", "uts", "ipc", "net", "pid", "cgroup"]
        target = [f"--target={self._init}", *(f"--{name}" for name in namespaces)]
        return ["nsenter", *target, "--root", "--wd", "/bin/sh", "-c", command]

    def power_off(self) -> None:
        """As somebody who pulls the plug."""
        if self._engine is None:
            return
        self._engine.send_signal(signal.SIGKILL)
        self._engine.wait()
        self._engine, self._init = None, 0
        with tempfile.TemporaryDirectory() as place:
            subprocess.run(["mount", "-t", "cgroup2", "cgroup2", place], check=True)
            try:
                wait_for(lambda: self._rid_of(Path(place, self._cgroup)))
            finally:
                subprocess.run(["umount", place], check=True)

    @staticmethod
    def _rid_of(top: Path) -> bool:
        """Removes cgroups whose processes have ended."""
        try:
            for folder, _, _ in os.walk(top, topdown=False):
                Path(folder).rmdir()
        except OSError:
            return False
        return True

    def main_pid(self, unit: str) -> int:
        """The process that systemd watches for a service; 0: none."""
        return int(self.check(f"systemctl show --property MainPID --value {unit}"))

    def said(self) -> str:
        """What all services wrote into the journal, for messages of tests."""
        return self.run("journalctl --no-pager -o cat -u 'sluice*' | tail -n 60").stdout

    def close(self) -> None:
        """Ends it, and takes it away."""
        self.power_off()
        super().close()
        shutil.rmtree(self.folder, ignore_errors=True)
