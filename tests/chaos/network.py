# SPDX-License-Identifier: Apache-2.0
"""A network of our own: a namespace for each process, all on one bridge, cables that can be pulled.

Used by cluster.py. It needs root and the right to make network namespaces; where there is none,
`make()` returns a Loopback, on which nothing can be cut, and says so. A pulled cable is silence: no
connection is closed by it, and what is on its way is lost.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from places import HERE, Place

PREFIX = "slc"


class Network(Protocol):
    """Where processes are put."""

    can_cut: bool

    def place(self, name: str) -> Place:
        """A place for one process, the same for the same name."""
        ...

    def cut(self, name: str) -> None:
        """Pulls its cable."""
        ...

    def join(self, name: str) -> None:
        """Puts it back."""
        ...

    def close(self) -> None:
        """Leaves nothing behind."""
        ...


class Loopback:
    """All on 127.0.0.1."""

    can_cut = False

    def place(self, name: str) -> Place:
        """This machine."""
        return HERE

    def cut(self, name: str) -> None:
        """Cannot be done."""
        raise NotImplementedError

    def join(self, name: str) -> None:
        """Nothing was cut."""

    def close(self) -> None:
        """Nothing was made."""


class Namespaces:
    """A bridge in the machine's own namespace, which has the first address, and cables from it."""

    can_cut = True

    def __init__(self) -> None:
        self._own = f"{PREFIX}{os.getpid()}"
        self._subnet = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 256}"
        self._places: dict[str, Place] = {}
        _ip("link", "add", self._own, "type", "bridge")
        _ip("addr", "add", f"{self._subnet}.1/24", "dev", self._own)
        _ip("link", "set", self._own, "up")

    def place(self, name: str) -> Place:
        """A namespace with an address."""
        if name not in self._places:
            number = len(self._places) + 2
            space, cable = f"{self._own}-{number}", self._cable(number)
            _ip("netns", "add", space)
            _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", cable, "master", self._own, "up")
            for words in (
                ("link", "set", "lo", "up"),
                ("addr", "add", f"{self._subnet}.{number}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
            ):
                _ip("-n", space, *words)
            enter = ("nsenter", f"--net=/run/netns/{space}")
            self._places[name] = Place(f"{self._subnet}.{number}", enter)
        return self._places[name]

    def cut(self, name: str) -> None:
        """Nothing passes from now on."""
        _ip("link", "set", self._cable_of(name), "nomaster")

    def join(self, name: str) -> None:
        """It passes again."""
        _ip("link", "set", self._cable_of(name), "master", self._own)

    def close(self) -> None:
        """Removes namespaces, cables and the bridge; what is gone already is left alone."""
        _remove(self._own)

    def _cable_of(self, name: str) -> str:
        return self._cable(int(self._places[name].address.rpartition(".")[2]))

    def _cable(self, number: int) -> str:
        return f"{self._own}v{number}"


def make() -> Network:
    """Namespaces where they can be made."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nsenter"):
        return Loopback()
    for left in _left_behind():
        _remove(left)
    try:
        return Namespaces()
    except OSError:
        return Loopback()


def _left_behind() -> Iterable[str]:
    """What runs that were killed have not removed."""
    shown = _ip("-o", "link", "show", "type", "bridge")
    for name in re.findall(rf"^\d+: ({PREFIX}\d+):", shown, re.MULTILINE):
        if not Path(f"/proc/{name.removeprefix(PREFIX)}").exists():
            yield name


def _remove(own: str) -> None:
    """Cables first: the kernel takes away those of a removed namespace when it has the time."""
    for cable in re.findall(rf"^\d+: ({own}v\d+)@", _ip("-o", "link", "show"), re.MULTILINE):
        _ip("link", "del", cable)
    for space in re.findall(rf"^({own}-\d+)", _ip("netns", "list"), re.MULTILINE):
        _ip("netns", "del", space)
    if re.search(rf"^\d+: {own}:", _ip("-o", "link", "show"), re.MULTILINE):
        _ip("link", "del", own)


def _ip(*words: str) -> str:
    """What `ip …` prints. Raises OSError with what it complains of."""
    done = subprocess.run(["ip", *words], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
