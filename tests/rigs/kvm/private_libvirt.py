# SPDX-License-Identifier: Apache-2.0
"""One libvirtd of our own: private /etc, /run, /var below a folder, in its own mount namespace.

Called by rig.py. Owns the daemon and the folder; several can run side by side with different
folders. No systemd, no virtlogd, no cgroups, QEMU as root. Clients connect from outside the
namespace by the socket's real path, so nobody needs nsenter.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid as uuids
from pathlib import Path

from tests.harness.short_folder import LONGEST_SOCKET_PATH, ShortFolder

_BINDS = (
    ("etc", "/etc/libvirt"),
    ("run", "/run/libvirt"),
    ("lib", "/var/lib/libvirt"),
    ("log", "/var/log/libvirt"),
    ("cache", "/var/cache/libvirt"),
)

_MARK = "SLUICE_RIG_ROOT"

_QEMU_CONF = """\
security_driver = "none"
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
cgroup_controllers = [ ]
namespaces = [ ]
stdio_handler = "file"
"""

# No keep-alive: a test process whose event loop has ended answers no ping.
_LIBVIRTD_CONF = """\
unix_sock_group = "root"
unix_sock_dir = "/run/libvirt"
auth_unix_ro = "none"
auth_unix_rw = "none"
keepalive_interval = -1
log_outputs = "3:file:/var/log/libvirt/libvirtd.log"
"""


class PrivateLibvirt:
    """A libvirtd below ``root``; start and stop may be called at any time, by any process."""

    def __init__(self, root: Path, *, own_shm: bool = False, host_name: str = "") -> None:
        """With `host_name` libvirt says that this is its host."""
        self.root = root
        self._host_name = host_name
        #: Where its /dev/shm lies outside: another host's, for who runs two of these.
        self.shm = root / "shm" if own_shm else Path("/dev/shm")
        self.socket = root / "run/libvirt-sock"
        self._pid_file = root / "libvirtd.pid"
        self._short: ShortFolder | None = None

    @property
    def uri(self) -> str:
        return f"qemu:///system?socket={self._reachable()}"

    def running(self) -> bool:
        pid = self._pid()
        return pid is not None and self._is_ours(pid) and self.socket.exists()

    def start(self, timeout: float = 20) -> None:
        """Starts the daemon unless it runs; returns when its socket answers."""
        if self.running():
            return
        _ensure_account()
        for folder, _ in _BINDS:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / "etc/qemu.conf").write_text(_QEMU_CONF)
        # Two hosts have two UUIDs, or libvirt takes a migration for one to itself.
        host = uuids.uuid5(uuids.NAMESPACE_URL, str(self.root))
        (self.root / "etc/libvirtd.conf").write_text(f'{_LIBVIRTD_CONF}host_uuid = "{host}"\n')
        self.socket.unlink(missing_ok=True)
        script = ["set -e"]
        for folder, target in _BINDS:
            script.append(f"mkdir -p {target}; mount --bind '{self.root / folder}' {target}")
        if self.shm != Path("/dev/shm"):
            self.shm.mkdir(exist_ok=True)
            script.append(f"mount --bind '{self.shm}' /dev/shm")
        namespaces = ["--mount", "--propagation", "private"]
        if self._host_name:
            namespaces.append("--uts")
            script.append(f"hostname {self._host_name}")
        script.append(f"exec libvirtd -f /etc/libvirt/libvirtd.conf -p '{self.root}/daemon.pid'")
        with (self.root / "libvirtd.out").open("ab") as out:
            process = subprocess.Popen(
                ["unshare", *namespaces, "sh", "-c", "\n".join(script)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=dict(os.environ, **{_MARK: str(self.root)}),
            )
        self._pid_file.write_text(str(process.pid))
        deadline = time.monotonic() + timeout
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                said = (self.root / "libvirtd.out").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"libvirtd below {self.root} did not start: {said}")
            time.sleep(0.02)

    def stop(self, timeout: float = 10) -> None:
        """Ends the daemon; guests that still run keep running, as on any host."""
        pid = self._pid()
        if pid is None or not self._is_ours(pid):
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout
        while self._is_ours(pid):
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _reap(pid)
            time.sleep(0.02)
        self._pid_file.unlink(missing_ok=True)

    def kill(self) -> None:
        """The daemon and its guests end at once, as if the host's plug were pulled out."""
        pid = self._pid()
        if pid is None or not self._is_ours(pid):
            return
        namespace = _namespace(str(pid))
        if namespace == _namespace("self"):
            raise RuntimeError(f"libvirtd below {self.root} has no namespace of its own")
        for folder in Path("/proc").glob("[0-9]*"):
            if _namespace(folder.name) == namespace:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(folder.name), signal.SIGKILL)
        self._pid_file.unlink(missing_ok=True)
        self.socket.unlink(missing_ok=True)
        for region in self.shm.iterdir() if self.shm != Path("/dev/shm") else ():
            region.unlink()

    def _answers(self) -> bool:
        """Whether somebody listens: between bind and listen the socket is there and refuses."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
            return asking.connect_ex(str(self._reachable())) == 0

    def _reachable(self) -> Path:
        """The socket by a path that is short enough for an address."""
        if len(os.fsencode(self.socket)) <= LONGEST_SOCKET_PATH:
            return self.socket
        if self._short is None:
            # until this process ends: a server may come back to a daemon that was started again
            self._short = ShortFolder(self.socket.parent)
            atexit.register(self._short.close)
        short: Path = self._short.path
        return short / self.socket.name

    def _is_ours(self, pid: int) -> bool:
        """Whether that process is the daemon of this folder, and no later one of its number."""
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False
        return f"{_MARK}={self.root}".encode() in environment  # empty for one that has ended

    def _pid(self) -> int | None:
        try:
            return int(self._pid_file.read_text())
        except (FileNotFoundError, ValueError):
            return None


def _namespace(pid: str) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return ""


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _ensure_account() -> None:
    """libvirtd looks its default account up even where the configuration names another."""
    if subprocess.run(["getent", "group", "kvm"], check=False, capture_output=True).returncode:
        subprocess.run(["groupadd", "-r", "kvm"], check=True)
    if subprocess.run(
        ["getent", "passwd", "libvirt-qemu"], check=False, capture_output=True
    ).returncode:
        subprocess.run(
            [
                "useradd",
                "-r",
                "-U",
                "-M",
                "-d",
                "/var/lib/libvirt",
                "-s",
                "/usr/sbin/nologin",
                "libvirt-qemu",
            ],
            check=True,
        )
