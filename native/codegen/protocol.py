# SPDX-License-Identifier: Apache-2.0
"""Limits, enumerations and structs that C++ and Python share, as protocol.yaml says them.

Read by generate_wire.py, which makes C++'s side (wire/protocol.h), and by generate_protocol.py,
which makes Python's (sluice.protocol.frames). Format: docs/api-registry.md.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from imported import RegistryError, refuse_unknown

FILE = "protocol.yaml"
CODES = {"char": "s", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q"}
"""Types of numbers, by struct's letters."""
SIZES = {name: struct.calcsize(f"={code}") for name, code in CODES.items()}
CTYPES = {
    "char": "char",
    "u8": "uint8_t",
    "u16": "uint16_t",
    "u32": "uint32_t",
    "u64": "uint64_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "size": "size_t",
}
ARRAY = re.compile(r"(\w+)\[(\w+)\]")
NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Limit:
    """A number that both ends hold each other to."""

    name: str
    type: str
    value: int
    about: str

    @property
    def ctype(self) -> str:
        """Its type in C++."""
        return CTYPES[self.type]


@dataclass(frozen=True)
class Choice:
    """One value of an enumeration."""

    name: str
    value: int
    about: str


@dataclass(frozen=True)
class Enumeration:
    """Numbers with names; `flags` are bits of one number."""

    name: str
    type: str
    flags: bool
    about: str
    choices: tuple[Choice, ...]

    @property
    def ctype(self) -> str:
        """The type beneath it in C++."""
        return CTYPES[self.type]


@dataclass(frozen=True)
class Field:
    """One field of a struct."""

    name: str
    type: str
    """A number's, an enumeration's or a struct's name."""
    count: int
    """How many of them; 0: one that is no array."""
    offset: int
    bytes: int
    about: str
    struct: Struct | None = None
    """What it is, where it is a struct."""
    number: str = ""
    """The type of its numbers, where it is not."""

    @property
    def format(self) -> str:
        """As Python's struct writes it; bytes for what is characters or an array of bytes."""
        if self.struct:
            return self.struct.format
        if self.text:
            return f"{self.count}s"
        return f"{self.count or ''}{CODES[self.number]}"

    @property
    def text(self) -> bool:
        """Whether Python has bytes for it."""
        return self.count > 0 and self.number in ("char", "u8")

    @property
    def values(self) -> int:
        """How many values of Python's struct it is."""
        if self.struct:
            return sum(f.values for f in self.struct.fields)
        return 1 if self.text else self.count or 1


@dataclass(frozen=True)
class Struct:
    """Bytes with a fixed layout and no padding."""

    name: str
    bytes: int
    about: str
    fields: tuple[Field, ...]

    @property
    def format(self) -> str:
        """As Python's struct writes it, without the byte order."""
        return "".join(f.format for f in self.fields)


@dataclass(frozen=True)
class Protocol:
    """protocol.yaml."""

    limits: tuple[Limit, ...]
    enumerations: tuple[Enumeration, ...]
    structs: tuple[Struct, ...]


def load_protocol(api: Path) -> Protocol:
    """Read `api`/protocol.yaml; raises RegistryError with the place and the fix."""
    said = yaml.safe_load((api / FILE).read_text())
    limits = tuple(_limit(name, fields) for name, fields in said["limits"].items())
    enumerations = tuple(
        _enumeration(name, fields) for name, fields in said["enumerations"].items()
    )
    structs: dict[str, Struct] = {}
    for name, fields in said["structs"].items():
        structs[name] = _struct(name, fields, limits, enumerations, structs)
    return Protocol(limits, enumerations, tuple(structs.values()))


def _keys(where: str, name: Any, fields: Any, needed: set[str], allowed: set[str]) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise RegistryError(f"{where}: a name has small letters, digits and underscores")
    missing = sorted(needed - set(fields))
    if missing:
        raise RegistryError(f"{where}: {missing[0]} is missing")
    refuse_unknown(where, fields, needed | allowed)


def _limit(name: str, fields: dict[str, Any]) -> Limit:
    where = f"{FILE}: limits: {name}"
    _keys(where, name, fields, {"type", "value"}, {"about"})
    if fields["type"] not in CTYPES or fields["type"] == "char":
        raise RegistryError(f"{where}: type {fields['type']!r} is none of {sorted(CTYPES)}")
    if not isinstance(fields["value"], int):
        raise RegistryError(f"{where}: the value {fields['value']!r} is no number")
    return Limit(name, fields["type"], fields["value"], str(fields.get("about", "")))


def _enumeration(name: str, fields: dict[str, Any]) -> Enumeration:
    where = f"{FILE}: enumerations: {name}"
    _keys(where, name, fields, {"type", "values"}, {"about", "flags"})
    flags = bool(fields.get("flags", False))
    choices = []
    for choice, what in fields["values"].items():
        said = what if isinstance(what, dict) else {"value": what}
        _keys(f"{where}: {choice}", choice, said, {"value"}, {"about"})
        choices.append(Choice(choice, said["value"], str(said.get("about", ""))))
    values = [c.value for c in choices]
    if len(set(values)) != len(values):
        raise RegistryError(f"{where}: two values are the same; numbers are never given twice")
    if flags and any(v <= 0 or v & (v - 1) for v in values):
        raise RegistryError(f"{where}: a flag is one bit")
    return Enumeration(name, fields["type"], flags, str(fields.get("about", "")), tuple(choices))


def _struct(
    name: str,
    fields: dict[str, Any],
    limits: tuple[Limit, ...],
    enumerations: tuple[Enumeration, ...],
    structs: dict[str, Struct],
) -> Struct:
    where = f"{FILE}: structs: {name}"
    _keys(where, name, fields, {"bytes", "fields"}, {"about"})
    enums = {e.name: e.type for e in enumerations}
    lengths = {limit.name: limit.value for limit in limits}
    laid: list[Field] = []
    offset = largest = 0
    for field, what in fields["fields"].items():
        place = f"{where}: {field}"
        _keys(place, field, what, {"type"}, {"about"})
        kind, count = what["type"], 0
        if array := ARRAY.fullmatch(kind):
            kind = array[1]
            count = int(array[2]) if array[2].isdigit() else lengths.get(array[2], 0)
            if count < 1:
                raise RegistryError(f"{place}: {array[2]!r} is neither a number nor a limit")
        nested = structs.get(kind)
        number = enums.get(kind, kind)
        if nested and not count:
            size, alignment = nested.bytes, 8
        elif number in SIZES and not nested:
            alignment = SIZES[number]
            size = alignment * (count or 1)
        else:
            raise RegistryError(
                f"{place}: the type {what['type']!r} is no number, enumeration or struct before it"
            )
        if offset % alignment:
            raise RegistryError(
                f"{place}: lies at {offset}, which is no multiple of {alignment}: put a reserved "
                "field before it"
            )
        about = str(what.get("about", ""))
        laid.append(
            Field(field, kind, count, offset, size, about, nested, "" if nested else number)
        )
        offset += size
        largest = max(largest, alignment)
    if offset != fields["bytes"] or offset % largest:
        raise RegistryError(
            f"{where}: the fields come to {offset} bytes, `bytes` says {fields['bytes']}, a "
            f"multiple of {largest} is wanted"
        )
    return Struct(name, offset, str(fields.get("about", "")), tuple(laid))
