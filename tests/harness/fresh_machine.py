# SPDX-License-Identifier: Apache-2.0
"""This machine as one on which nothing of Sluice is: for tests that follow a page as it stands.

A FreshMachine is a mount namespace with an /etc of its own and with folders of its own where Sluice
is installed and keeps its state, so that commands of a page run with the paths that the page shows,
and leave nothing. The checkout and its Python can be reached by every user of it, wherever they
lie on this machine. With `alone` it has a network of its own, too, which is a loopback: nobody else
uses its ports. There is no systemd in it: start_units does what `systemctl start` does with a unit,
without the confinement. It owns its processes and ends them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
#: Folders of which a page writes entries: what others have there is seen, and left alone.
SHARED = ("/opt", "/run", "/usr/local/bin", "/var/lib", "/var/log")
#: systemd's folders of a service: setting → (where they lie, variable).
FOLDERS = {
    "RuntimeDirectory": ("/run", "RUNTIME_DIRECTORY"),
    "StateDirectory": ("/var/lib", "STATE_DIRECTORY"),
    "LogsDirectory": ("/var/log", "LOGS_DIRECTORY"),
}
_SHADOW = """
shadow() {  # a folder, a new one to be seen in its place, and which of its entries are not
  mkdir -p "${2%/*}"; mkdir "$2"
  for each in "$1"/* "$1"/.[!.]*; do
    name=${each##*/}
    case $name in $3) continue ;; esac
    if [ -L "$each" ]; then cp -P "$each" "$2/$name"
    elif [ -d "$each" ]; then mkdir "$2/$name"; mount --rbind "$each" "$2/$name"
    elif [ -e "$each" ]; then : >"$2/$name"; mount --bind "$each" "$2/$name"
    fi
  done
  mount --rbind "$2" "$1"
}
"""


def _closed() -> list[Path]:
    """The folders above the checkout and its Python that only their owner may pass."""
    below = {CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)}
    above = {folder for path in below for folder in (path, *path.parents)}
    return sorted(folder for folder in above if not folder.stat().st_mode & stat.S_IXOTH)


class FreshMachine:
    """One such machine; close() ends it."""

    def __init__(
        self,
        *,
        alone: bool = False,
        folders: Mapping[str, Path] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`folders` are more that it sees: path on it → folder of this machine."""
        for place in SHARED:
            if str(CHECKOUT).startswith(f"{place}/sluice"):
                raise RuntimeError(f"{place}/sluice* is not seen in it: move the checkout")
        # not below a test's folder: the sockets of services lie in it
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-machine-"))
        self._folder.chmod(0o755)
        self.home = self._folder / "home"
        self.home.mkdir()
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLUICE_", "PYTHON", "OS_"))
        } | {"HOME": str(self.home), **(environment or {})}
        self._flags = ["--mount", *(["--net"] if alone else [])]
        script = ["set -e", _SHADOW, f"cd {self._folder}", "cp -a /etc etc"]
        script += ["rm -rf etc/sluice etc/systemd/system/sluice*"]
        script += ["mount --bind etc /etc"]
        # each in a folder of its own: one may lie in another, where its place is the real one
        for number, closed in enumerate(_closed()):
            script.append(f"shadow {closed} {self._folder}/closed-{number} ''")
        script += [f"shadow {place} {self._folder}{place} 'sluice*'" for place in SHARED]
        for place, folder in (folders or {}).items():
            script.append(f"mkdir -p {place}; mount --rbind {shlex.quote(str(folder))} {place}")
        script += ["ip link set lo up"] if alone else []
        script += ["sed -i '/^sluice/d' /etc/passwd /etc/group /etc/shadow /etc/gshadow"]
        script += ["echo ready", "exec sleep infinity"]
        self._holder = subprocess.Popen(
            ["unshare", *self._flags, "--propagation", "private", "bash", "-c", "\n".join(script)],
            stdout=subprocess.PIPE,
            stderr=(self._folder / "holder.err").open("w"),
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout
        if self._holder.stdout.readline() != "ready\n":
            self._holder.wait()
            said = (self._folder / "holder.err").read_text()
            shutil.rmtree(self._folder)  # with the namespace its mounts are gone
            raise RuntimeError(f"no fresh machine: {said}")

    def _inside(self, *words: str) -> list[str]:
        target = ["nsenter", "--target", str(self._holder.pid), *self._flags]
        return [*target, f"--wd={self.home}", "--", *words]

    def run(self, command: str, variables: Mapping[str, str], *, seconds: float = 300) -> str:
        """Runs a command by bash in the home folder; what it printed, RuntimeError if it failed."""
        done = subprocess.run(
            self._inside("bash", "-o", "pipefail", "-c", command),
            env={**self._environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"exit status {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def path(self, name: str) -> Path:
        """A file of its /etc, /opt, /run, …, as this machine has it."""
        return self._folder / name.lstrip("/")

    def start_units(self, *names: str) -> str:
        """Starts the services of units that a page has written; "" as systemctl says nothing."""
        for name in names:
            settings, environment = self._unit(name)
            user, command = settings.get("User", "root"), f"exec {settings['ExecStart']}"
            with self.path(f"/var/log/{name}.out").open("ab") as out:
                subprocess.Popen(
                    self._inside("runuser", "-u", user, "--", "sh", "-c", command),
                    env={**self._environment, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
        return ""

    def journal(self, name: str) -> str:
        """What a service that was started has written."""
        return self.path(f"/var/log/{name}.out").read_text(errors="replace")

    def _unit(self, name: str) -> tuple[dict[str, str], dict[str, str]]:
        settings: dict[str, str] = {}
        environment: dict[str, str] = {}
        owned: list[str] = []
        for line in self.path(f"/etc/systemd/system/{name}.service").read_text().splitlines():
            key, found, value = line.partition("=")
            if not found or key.startswith("#"):
                continue
            if key == "Environment":
                environment |= dict([value.split("=", 1)])
            elif key == "LoadCredential":
                credential, _, source = value.partition(":")
                environment["CREDENTIALS_DIRECTORY"] = str(Path(source).parent)
                assert Path(source).name == credential, line
            elif key in FOLDERS:
                base, variable = FOLDERS[key]
                self.path(f"{base}/{value}").mkdir(parents=True, exist_ok=True)
                environment[variable] = f"{base}/{value}"
                owned.append(environment[variable])
            settings[key] = value
        for folder in owned:
            self.run(f"chown {settings.get('User', 'root')} {folder}", {})
        return settings, environment

    def close(self) -> None:
        """Ends everything that was started in it, and takes its folders away."""
        namespace = Path(f"/proc/{self._holder.pid}/ns/mnt").readlink()
        assert namespace != Path("/proc/self/ns/mnt").readlink()

        def living() -> list[int]:
            found = []
            for folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if (folder / "ns/mnt").readlink() == namespace:
                        found.append(int(folder.name))
            return [pid for pid in found if pid != self._holder.pid]

        for number, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 60)):
            for pid in living():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + seconds
            while living() and time.monotonic() < deadline:
                time.sleep(0.05)
        self._holder.kill()
        self._holder.wait()
        shutil.rmtree(self._folder)
