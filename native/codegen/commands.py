# SPDX-License-Identifier: Apache-2.0
"""What commands are to the session: the rules of all that the worker has handlers for.

Sluice's own commands stand in commands.yaml, in `commands` of driver.yaml where their body is
generated from a signature, and in `commands` of a library's file (docs/api-registry.md). Read by
generate_wire.py, which makes ids, names and rules of it for client and worker. Numbers from 64 on
are ids.lock's, from 1024 on library_ids.lock's, so those of commands.yaml are below and from 4032
on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from bodies import Bodies
from imported import RegistryError, refuse_unknown

FILE = "commands.yaml"
RANGES = (range(64), range(4032, 4096))
CLASSES = ("answered", "async", "either", "session")
ALLOCATES = ("device", "host")
EFFECTS = frozenset({"allocates", "creates", "changes", "destroys"})
KEYS = {"id", "class", "may_block", *EFFECTS}
NO_BODY = "none"
OWN = "sluice"
"""What the names of commands with a signature, or of a library, begin with."""


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
    """One of CLASSES."""
    may_block: bool
    allocates: str
    """"device", "host", or "" where it takes no memory that outlives it."""
    creates: tuple[str, ...]
    changes: tuple[str, ...]
    destroys: tuple[str, ...]
    body: str
    """The struct that it begins with; "": none, or one that is generated from a signature."""


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


def load_signed_commands(
    api: Path, state: tuple[str, ...], ids: dict[str, int]
) -> dict[str, Command]:
    """Read `commands` of driver.yaml and of the libraries' files, by their whole names.

    `ids`: those of both locks; a command that is not in them yet has 0. Raises RegistryError.
    """
    found: dict[str, Command] = {}
    for path in (api / "driver.yaml", *sorted((api / "libraries").glob("*.yaml"))):
        for name, fields in (yaml.safe_load(path.read_text()).get("commands") or {}).items():
            where = f"{path.name}: commands: {name}"
            if not name.startswith(OWN):
                raise RegistryError(f"{where}: a command of our own must begin with {OWN!r}")
            rules = {key: value for key, value in fields.items() if key in KEYS}
            number = ids.get(name, 0)
            found[name] = _rules(name.removeprefix(OWN), number, rules, state, where)
    return found


def check_bodies(own: Commands, bodies: Bodies) -> None:
    """Each command of our own has a body that is somewhere; raises RegistryError."""
    for command in own.commands:
        if command.body and command.body not in bodies.structs:
            raise RegistryError(
                f"{FILE}: {command.name}: no file of native/api/bodies has a struct "
                f"{command.body}: add it, name another (body: NAME), or none (body: {NO_BODY})"
            )


def _command(name: str, fields: dict[str, Any], state: tuple[str, ...]) -> Command:
    where = f"{FILE}: {name}"
    refuse_unknown(where, fields, KEYS | {"body"})
    number = fields.get("id")
    if not isinstance(number, int) or not any(number in numbers for numbers in RANGES):
        raise RegistryError(f"{where}: the id {number!r} is not from 0 to 63 or from 4032 to 4095")
    body = fields.get("body", NO_BODY if fields.get("class") == "session" else name)
    rules = _rules(name, number, fields, state, where)
    return replace(rules, body="" if body == NO_BODY else body)


def _rules(
    name: str, number: int, fields: dict[str, Any], state: tuple[str, ...], where: str
) -> Command:
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
        body="",
        **lists,
    )
