# SPDX-License-Identifier: Apache-2.0
"""The commands that are Sluice's own, as commands.yaml says them (docs/api-registry.md).

Read by generate_wire.py, which makes their ids, names and rules for the client and the worker of
it. Numbers from 64 on are CUDA's functions' (ids.lock), from 1024 on the libraries'
(library_ids.lock), so these have the ones below and from 4032 on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from imported import RegistryError

FILE = "commands.yaml"
RANGES = (range(0, 64), range(4032, 4096))
CLASSES = ("answered", "async", "either", "session")
ALLOCATES = ("device", "host")
KEYS = {"id", "class", "may_block", "allocates", "creates", "changes", "destroys"}


@dataclass(frozen=True)
class ObjectKind:
    """What a handle may stand for."""

    name: str
    kind: int
    most: int
    """How many a session may have on the worker; 0: the worker keeps none."""


@dataclass(frozen=True)
class Command:
    """One command."""

    name: str
    id: int
    class_: str
    may_block: bool
    allocates: str
    """"device", "host", or "" where it takes no memory that outlives it."""
    creates: tuple[str, ...]
    changes: tuple[str, ...]
    destroys: tuple[str, ...]


@dataclass(frozen=True)
class Commands:
    """commands.yaml."""

    objects: tuple[ObjectKind, ...]
    state: tuple[str, ...]
    """Names of all that a command may create, change or destroy."""
    commands: tuple[Command, ...]


def load_own_commands(api: Path) -> Commands:
    """Read `api`/commands.yaml; raises RegistryError with the place and the fix."""
    said = yaml.safe_load((api / FILE).read_text())
    objects = tuple(
        ObjectKind(name, fields["kind"], fields.get("most", 0))
        for name, fields in said["objects"].items()
    )
    kinds = [o.kind for o in objects]
    if len(set(kinds)) != len(kinds) or not all(0 < k < 256 for k in kinds):
        raise RegistryError(
            f"{FILE}: objects: kinds are numbers from 1 to 255, each for one object"
        )
    state = tuple(o.name for o in objects) + tuple(said["state"])
    if len(set(state)) != len(state) or len(state) > 64:
        raise RegistryError(f"{FILE}: objects and state: at most 64 names, each once")
    taken: dict[int, str] = dict.fromkeys(said["retired"], "retired")
    commands = []
    for name, fields in said["commands"].items():
        command = _command(name, fields, state)
        if command.id in taken:
            raise RegistryError(
                f"{FILE}: {name}: the id {command.id} is {taken[command.id]}'s; numbers are never "
                "given twice: take one that is free and not among `retired`"
            )
        taken[command.id] = name
        commands.append(command)
    return Commands(objects, state, tuple(sorted(commands, key=lambda c: c.id)))


def _command(name: str, fields: dict[str, Any], state: tuple[str, ...]) -> Command:
    where = f"{FILE}: {name}"
    unknown = sorted(set(fields) - KEYS)
    if unknown:
        raise RegistryError(f"{where}: unknown key {unknown[0]!r}; use one of {sorted(KEYS)}")
    number = fields.get("id")
    if not isinstance(number, int) or not any(number in numbers for numbers in RANGES):
        raise RegistryError(f"{where}: the id {number!r} is not from 0 to 63 or from 4032 to 4095")
    if fields.get("class") not in CLASSES:
        raise RegistryError(f"{where}: class {fields.get('class')!r} is none of {CLASSES}")
    if fields.get("allocates", "device") not in ALLOCATES:
        raise RegistryError(f"{where}: allocates {fields['allocates']!r} is none of {ALLOCATES}")
    if fields.get("may_block") and fields["class"] in ("async", "session"):
        raise RegistryError(f"{where}: may_block: nobody waits for it, as its class says")
    lists = {}
    for key in ("creates", "changes", "destroys"):
        lists[key] = tuple(fields.get(key, ()))
        for thing in lists[key]:
            if thing not in state:
                raise RegistryError(f"{where}: {key}: {thing!r} is neither an object nor state")
    return Command(
        name=name,
        id=number,
        class_=fields["class"],
        may_block=bool(fields.get("may_block", False)),
        allocates=fields.get("allocates", ""),
        **lists,
    )
