# SPDX-License-Identifier: Apache-2.0
"""Libraries under the SONAME that they have in an older CUDA version, and what only they declare.

Read by libraries.py from native/api/imported/cudaN/libraries.json, used by generate_libraries.py.
A function that only the older version declares is one of the newest that asks for workspaces on the
host and the device where the older asked for one: it finds out the host's size and brings it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from imported import RegistryError, read_json

DEVICE, DEVICE_BYTES = "bufferOnDevice", "workspaceInBytesOnDevice"
HOST, HOST_BYTES = "bufferOnHost", "workspaceInBytesOnHost"
OWN_NAMES = {DEVICE: "pBuffer", DEVICE_BYTES: "workspaceInBytes"}


class Param(Protocol):
    """A parameter of a generated function."""

    @property
    def name(self) -> str:
        """As the header has it."""

    @property
    def ctype(self) -> str:
        """As the generated code declares it."""


class Function(Protocol):
    """A generated function of the newest version."""

    @property
    def name(self) -> str:
        """Exported name."""

    @property
    def params(self) -> tuple[Any, ...]:
        """Param, in order."""


@dataclass(frozen=True)
class OwnFunction:
    """A function that only the older version declares."""

    name: str
    params: tuple[tuple[str, str], ...]
    """(type, name)."""
    target: str
    arguments: tuple[str, ...]
    asks: str
    """The function that says how much workspace the target needs on the host, or empty."""
    questions: tuple[str, ...]
    answers_size: bool
    """It is itself the question."""


@dataclass(frozen=True)
class OlderLibrary:
    """A library as an older CUDA version has it."""

    major: int
    soname: str
    node: str
    lacks: frozenset[str]
    """Exports of the newest that it has not."""
    own: tuple[OwnFunction, ...]


def load_older(api: Path, name: str, functions: Mapping[str, Function]) -> tuple[OlderLibrary, ...]:
    """Return what was imported of a library in older CUDA versions."""
    found = []
    for path in sorted((api / "imported").glob("cuda*/libraries.json")):
        major = int(path.parent.name.removeprefix("cuda"))
        for row in read_json(path):
            if row["library"] == name:
                own = tuple(
                    pair(f, functions, f"{path.parent.name}/{path.name}") for f in row["functions"]
                )
                lacks = frozenset(row["lacks"])
                found.append(OlderLibrary(major, row["soname"], row["node"], lacks, own))
    return tuple(found)


def newest_name(name: str) -> str:
    """cusolverDnGetrf -> cusolverDnXgetrf."""
    head, rest = name[:10], name[10:]
    return f"{head}X{rest[:1].lower()}{rest[1:]}"


def pair(row: Any, functions: Mapping[str, Function], where: str) -> OwnFunction:
    """Find the newest's function of an older one, and hold the parameters against one another."""
    name = row["name"]
    given = [p["name"] for p in row["params"]]
    target = functions.get(newest_name(name))
    if target is None:
        raise RegistryError(f"{where}: {name}: the newest version has no {newest_name(name)}")
    types = {p.name: p.ctype for p in target.params}
    answers_size = name.endswith("_bufferSize")
    arguments = tuple(
        "&host_bytes"
        if answers_size and p.name == HOST_BYTES
        else {HOST: "host.get()", HOST_BYTES: "host_bytes"}.get(
            p.name, OWN_NAMES.get(p.name, p.name)
        )
        for p in target.params
    )
    needed = {OWN_NAMES.get(p.name, p.name) for p in target.params} - {HOST, HOST_BYTES}
    if needed != set(given):
        raise RegistryError(
            f"{where}: {name}: its parameters are not those of {target.name}: "
            f"{', '.join(sorted(needed ^ set(given)))}"
        )
    back = {own: newest for newest, own in OWN_NAMES.items()}
    params = tuple((types[back.get(n, n)], n) for n in given)
    asks = ""
    questions: list[str] = []
    if HOST in types:
        asks = f"{target.name}_bufferSize"
        by_place = {"h_meig": "meig64"}
        sizes = {DEVICE_BYTES: "&device_bytes", HOST_BYTES: "&host_bytes"}
        question = functions[asks].params
        questions = [sizes.get(p.name, by_place.get(p.name, p.name)) for p in question]
    return OwnFunction(name, params, target.name, arguments, asks, tuple(questions), answers_size)
