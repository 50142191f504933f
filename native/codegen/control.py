# SPDX-License-Identifier: Apache-2.0
"""The messages between the server and its processes, as control.yaml says them.

Read by generate_wire.py (wire/control_messages.h) and generate_protocol.py
(sluice.protocol.control). Format: docs/api-registry.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from imported import RegistryError, refuse_unknown
from protocol import Protocol, load_protocol

FILE = "control.yaml"
TYPES = ("text", "hex", "flag", "number")
LAST = (1 << 63) - 1
"""The largest number that a message carries."""
MOST_LISTED = 64
"""Of a list whose fields a receiver looks for."""
BOUND = re.compile(r"(\w+) - (\d+)")
MESSAGE_KEYS = {"about", "answer", "descriptors", "fields", "list"}
FIELD_KEYS = {"type", "needed", "one_of", "from", "to", "about"}


@dataclass(frozen=True)
class MessageField:
    """One key of a message."""

    name: str
    type: str
    """One of TYPES."""
    needed: bool
    least: int
    most: int
    """Of a number."""
    choices: tuple[str, ...]
    """Of a text; none: any."""
    about: str


@dataclass(frozen=True)
class ControlMessage:
    """One message."""

    verb: str
    about: str
    answer: str
    """The verb of its answer; "": it has none."""
    descriptors: tuple[str, ...]
    """What may come beside it."""
    fields: tuple[MessageField, ...]
    list: str
    """What the keys of `each` begin with, as in `vgpu.0.device`; "": there are none."""
    count: str
    """The field that says how many of them there are; "": as many as come."""
    each: tuple[MessageField, ...]


@dataclass(frozen=True)
class Link:
    """What a process and the server say to each other."""

    name: str
    about: str
    received: tuple[ControlMessage, ...]
    """By the process."""
    sent: tuple[ControlMessage, ...]
    """By the process."""


def load_control(api: Path) -> tuple[Link, ...]:
    """Read `api`/control.yaml; raises RegistryError with the place and the fix."""
    said, shared = yaml.safe_load((api / FILE).read_text()), load_protocol(api)
    return tuple(
        Link(
            name,
            str(link.get("about", "")),
            _messages(f"{FILE}: {name}: received", link["received"], link["sent"], shared),
            _messages(f"{FILE}: {name}: sent", link["sent"], {}, shared),
        )
        for name, link in said.items()
    )


def _messages(
    where: str, said: dict[str, Any], answers: dict[str, Any], shared: Protocol
) -> tuple[ControlMessage, ...]:
    found = []
    for verb, entry in said.items():
        place = f"{where}: {verb}"
        _keys(place, entry, MESSAGE_KEYS)
        answer = entry.get("answer", "")
        if answer and answer not in answers:
            raise RegistryError(f"{place}: answer: {answer!r} is no message that the process sends")
        fields = _fields(place, entry.get("fields", {}), shared)
        listed = entry.get("list", {})
        _keys(f"{place}: list", listed, {"name", "count", "fields"})
        count = listed.get("count", "")
        if count and not any(f.name == count and f.most <= MOST_LISTED for f in fields):
            raise RegistryError(
                f"{place}: list: count: {count!r} is no number of the message that ends at "
                f"{MOST_LISTED} or before"
            )
        found.append(
            ControlMessage(
                verb,
                str(entry.get("about", "")),
                answer,
                tuple(entry.get("descriptors", ())),
                fields,
                listed.get("name", ""),
                count,
                _fields(f"{place}: list", listed.get("fields", {}), shared),
            )
        )
    return tuple(found)


def _fields(where: str, said: dict[str, Any], shared: Protocol) -> tuple[MessageField, ...]:
    found = []
    for name, entry in said.items():
        place = f"{where}: {name}"
        _keys(place, entry, FIELD_KEYS)
        kind = entry.get("type")
        if kind not in TYPES:
            raise RegistryError(f"{place}: type {kind!r} is none of {TYPES}")
        if kind != "number" and {"from", "to"} & set(entry):
            raise RegistryError(f"{place}: from and to are for numbers")
        if kind != "text" and "one_of" in entry:
            raise RegistryError(f"{place}: one_of is for text")
        least = _bound(place, entry.get("from", 0), shared)
        most = _bound(place, entry.get("to", LAST), shared)
        if least > most:
            raise RegistryError(f"{place}: nothing is from {least} to {most}")
        choices = tuple(entry.get("one_of", ()))
        needed, about = bool(entry.get("needed", False)), str(entry.get("about", ""))
        found.append(MessageField(name, kind, needed, least, most, choices, about))
    return tuple(found)


def _bound(where: str, said: Any, shared: Protocol) -> int:
    """A number, a limit's name, or `NAME - 1`."""
    if isinstance(said, int):
        return said
    parts = BOUND.fullmatch(said)
    name, less = (parts[1], int(parts[2])) if parts else (said, 0)
    for limit in shared.limits:
        if limit.name == name:
            return limit.value - less
    raise RegistryError(f"{where}: {said!r} is neither a number nor a limit of protocol.yaml")


def _keys(where: str, entry: Any, allowed: set[str]) -> None:
    if not isinstance(entry, dict):
        raise RegistryError(f"{where}: {entry!r} is no mapping, e.g. {{type: text}}")
    refuse_unknown(where, entry, allowed)
