# SPDX-License-Identifier: Apache-2.0
"""A distribution's root in a folder, in which commands run as they would in a guest.

Used by conftest.py. Each command has mounts of its own (/proc, /dev, /sys and what it is given),
which are gone with it, and the network of this machine.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}


class Root:
    """One root; what is done in it stays in it."""

    def __init__(self, folder: Path, base: Path) -> None:
        self.folder = folder
        layers = {name: folder.with_name(f"{folder.name}-{name}") for name in ("upper", "work")}
        for layer in (folder, *layers.values()):
            layer.mkdir()
        options = f"lowerdir={base},upperdir={layers['upper']},workdir={layers['work']}"
        mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(folder)]
        self._mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
        if not self._mounted:  # below another overlay there may be none
            subprocess.run(["cp", "-a", f"{base}/.", folder], check=True)
        #: Folders of this machine that commands see: place in the root → folder.
        self.mounts: dict[str, Path] = {}
        #: What commands are started by, such as a network of their own.
        self.enter: tuple[str, ...] = ()

    def close(self) -> None:
        """Takes the root away."""
        if self._mounted and subprocess.run(["umount", self.folder], check=False).returncode:
            subprocess.run(["umount", "--lazy", self.folder], check=True)
        for folder in self.folder.parent.glob(f"{self.folder.name}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def path(self, name: str) -> Path:
        """A file of the root, as this machine has it."""
        return self.folder / name.lstrip("/")

    def put(self, source: Path, name: str) -> None:
        """Copies a file into the root."""
        target = self.path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--no-preserve=ownership", source, target], check=True)

    def run(
        self, command: str, *, timeout: float = 300, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a line of shell in the root."""
        return subprocess.run(
            self._words(command),
            cwd=self.folder,
            env={**ENVIRONMENT, **variables},
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )

    def start(self, command: str, output: Path, **variables: str) -> subprocess.Popen[bytes]:
        """Starts a line of shell in the root, which says what it says into a file."""
        with output.open("ab") as out:
            return subprocess.Popen(
                self._words(f"exec {command}"),
                cwd=self.folder,
                env={**ENVIRONMENT, **variables},
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
            )

    def _words(self, command: str) -> list[str]:
        lines = ["set -e"]
        for place in ("proc", "dev", "sys"):
            lines += [f"mkdir -p {place}", f"mount --rbind /{place} {place}"]
        for place, folder in self.mounts.items():
            inside = shlex.quote(place.lstrip("/"))
            lines += [f"mkdir -p {inside}", f"mount --bind {shlex.quote(str(folder))} {inside}"]
        lines.append('exec chroot . /bin/sh -c "$1"')
        shell = ["unshare", "--mount", "--uts", "sh", "-c", "\n".join(lines), "sh", command]
        return [*self.enter, *shell]

    def check(self, command: str, *, stdin: str = "", **variables: str) -> str:
        """Runs a line of shell that must succeed; returns what it printed."""
        done = self.run(command, stdin=stdin, **variables)
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def files(self) -> dict[str, str]:
        """Every file and link of the root, with its mode, owner and where it leads; not what the
        package managers write down for themselves."""
        found: dict[str, str] = {}
        own = ("var/lib/dpkg", "var/lib/apt", "var/log", "var/cache", "var/lib/systemd", "tmp")
        for folder, folders, names in os.walk(self.folder):
            at = os.path.relpath(folder, self.folder)
            if at.startswith((*own, "proc", "sys", "dev", "run")):
                folders.clear()
                continue
            for name in (*folders, *names):
                path = Path(folder, name)
                info = path.lstat()
                what = f"{info.st_mode:o} {info.st_uid} {info.st_gid}"
                if path.is_symlink():
                    what += f" {path.readlink()}"
                found[str(path.relative_to(self.folder))] = what
        return found


AnyRoot = TypeVar("AnyRoot", bound=Root)


@contextmanager
def fresh_roots(
    kind: type[AnyRoot],
    folder: Path,
    bases: Path,
    program: Path,
    elsewhere: Mapping[str, Callable[[], Path]],
) -> Iterator[Callable[[str], AnyRoot]]:
    """make(suite) → a fresh root of it with the program at /add; closed at the end.

    What it is made of lies in `bases`, or where `elsewhere` says. A suite that is not there skips.
    """
    made: list[AnyRoot] = []

    def make(suite: str) -> AnyRoot:
        base = elsewhere[suite]() if suite in elsewhere else bases / suite
        if not base.is_dir():
            pytest.skip(f"{base} was not made: the mirror has no {suite} (dev/make_roots.sh)")
        root = kind(folder / suite, base)
        made.append(root)
        root.put(program, "/add")
        return root

    try:
        yield make
    finally:
        for root in made:
            root.close()
