# SPDX-License-Identifier: Apache-2.0
"""The bodies of the commands that are written by hand, as the files of native/api/bodies say them.

Read by generate_wire.py, which makes a header of each file (wire/bodies/NAME.h); the commands of
commands.yaml name them. What has been released is in body_layouts.lock: a layout that does not
begin as it stands there is refused. By hand, to append what is new:

    python native/codegen/bodies.py --update-layouts

Format: docs/api-registry.md.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import yaml
from imported import RegistryError, refuse_unknown

FOLDER = "bodies"
LOCK = "body_layouts.lock"
CTYPES = {
    "u8": "uint8_t",
    "u16": "uint16_t",
    "u32": "uint32_t",
    "u64": "uint64_t",
    "i32": "int32_t",
    "i64": "int64_t",
    "f32": "float",
    "f64": "double",
    "byte": "std::byte",
}
SIZES = {"u8": 1, "byte": 1, "u16": 2, "u32": 4, "i32": 4, "f32": 4, "u64": 8, "i64": 8, "f64": 8}
CONSTANT_TYPES = {"u32": "uint32_t", "u64": "uint64_t", "size": "size_t"}
ARRAY = re.compile(r"(\w+)\[(\w+)\]")
SHIFTED = re.compile(r"(\d+) << (\d+)")
TYPE_NAME = re.compile(r"[A-Z][A-Za-z0-9]*")
NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED = "reserved"
"""What fields are named that nobody reads; such a field may get a meaning, and with it a name."""
HEAD = """\
# What bodies of commands look like (native/api/bodies): sizes, offsets, numbers of enumerations.
# Append-only: fields are added behind what stands here, or where `reserved` is.
# New: python native/codegen/bodies.py --update-layouts
"""
UPDATE = "run python native/codegen/bodies.py --update-layouts and commit the file"


@dataclass(frozen=True)
class Constant:
    """A number that both ends know."""

    name: str
    type: str
    value: int
    about: str

    @property
    def ctype(self) -> str:
        """Its type in C++."""
        return CONSTANT_TYPES[self.type]


@dataclass(frozen=True)
class Choice:
    """One value of an enumeration."""

    name: str
    value: int
    about: str


@dataclass(frozen=True)
class Enumeration:
    """Numbers with names, as u32; `flags` are bits of one number."""

    name: str
    flags: bool
    about: str
    choices: tuple[Choice, ...]

    @property
    def lock(self) -> str:
        """Its line of the lock."""
        return " ".join(["enum", self.name, *(f"{c.name}={c.value}" for c in self.choices)])


@dataclass(frozen=True)
class Field:
    """One field of a struct."""

    name: str
    type: str
    """A number's, an enumeration's or a struct's name."""
    count: int
    """How many of them; 0: one that is no array."""
    offset: int
    about: str
    layout: str
    """What lies there: a number's type or a struct's name, with how many."""

    @property
    def ctype(self) -> str:
        """Its type in C++, without the count."""
        return CTYPES.get(self.type, self.type)

    @property
    def lock(self) -> str:
        """Its word of the lock."""
        return f"{self.name}:{self.layout}@{self.offset}"


@dataclass(frozen=True)
class Body:
    """A struct with a fixed layout and no padding but what stands there."""

    name: str
    bytes: int
    alignment: int
    about: str
    fields: tuple[Field, ...]
    ordered: bool
    """Values can be compared, field by field."""
    same_as: str
    """Another name for that struct, if not empty."""

    @property
    def lock(self) -> str:
        """Its line of the lock."""
        return " ".join(["struct", self.name, str(self.bytes), *(f.lock for f in self.fields)])


@dataclass(frozen=True)
class BodyFile:
    """One file, which becomes one header."""

    name: str
    about: str
    uses: tuple[str, ...]
    """Names of files whose types it has, sorted."""
    constants: tuple[Constant, ...]
    enumerations: tuple[Enumeration, ...]
    structs: tuple[Body, ...]

    @property
    def ordered(self) -> bool:
        """Whether any of its structs is."""
        return any(s.ordered for s in self.structs)


@dataclass(frozen=True)
class Bodies:
    """All files, each behind those whose types it has."""

    files: tuple[BodyFile, ...]

    @cached_property
    def structs(self) -> dict[str, Body]:
        """By name, of all files."""
        return {s.name: s for file in self.files for s in file.structs}

    @property
    def lock(self) -> list[str]:
        """The lock's lines, as they are to be."""
        enumerations = [e.lock for file in self.files for e in file.enumerations]
        structs = [s.lock for file in self.files for s in file.structs if not s.same_as]
        return sorted(enumerations) + sorted(structs)


def load_bodies(api: Path) -> Bodies:
    """Read `api`/bodies, held against the lock; raises RegistryError with the place and the fix."""
    bodies = read_bodies(api)
    lock = api / LOCK
    check_lock(bodies.lock, _lines(lock.read_text()) if lock.exists() else [])
    return bodies


def read_bodies(api: Path) -> Bodies:
    """The same without the lock."""
    paths = sorted((api / FOLDER).glob("*.yaml"))
    said = {path.stem: yaml.safe_load(path.read_text()) for path in paths}
    names = _Names(said)
    files: list[BodyFile] = []
    while waiting := [n for n in said if n not in {f.name for f in files}]:
        done = {f.name for f in files}
        ready = [n for n in waiting if names.uses(n) <= done]
        if not ready:
            stuck = ", ".join(waiting)
            raise RegistryError(f"{FOLDER}: {stuck}: each has types of another; merge them")
        files += [_file(n, said[n], names) for n in ready]
    return Bodies(tuple(files))


def check_lock(now: Iterable[str], locked: Iterable[str]) -> None:
    """Refuse what an old client or worker would read otherwise."""
    found = {tuple(line.split()[:2]): line.split()[2:] for line in now}
    for line in locked:
        key, was = tuple(line.split()[:2]), line.split()[2:]
        where = f"{LOCK}: {' '.join(key)}"
        if key not in found:
            raise RegistryError(f"{where}: it is gone, but on the wire of releases; put it back")
        is_now = found.pop(key)
        if key[0] == "struct" and int(is_now[0]) < int(was[0]):
            raise RegistryError(f"{where}: it has {is_now[0]} bytes, released were {was[0]}")
        skipped = 1 if key[0] == "struct" else 0
        for word, other in zip(was[skipped:], [*is_now[skipped:], *[""] * len(was)], strict=False):
            if word != other and not _takes_reserved(word, other):
                raise RegistryError(
                    f"{where}: released was {word}, found is {other or 'nothing'}: append instead"
                )
        if is_now != was:
            raise RegistryError(f"{where}: {' '.join(is_now)} is not locked; {UPDATE}")
    for kind, name in found:
        raise RegistryError(f"{LOCK}: {kind} {name} is not locked; {UPDATE}")


def update_lock(api: Path) -> None:
    """Append what is new; raises RegistryError for what is neither new nor as it was."""
    path = api / LOCK
    now = read_bodies(api).lock
    locked = _lines(path.read_text()) if path.exists() else []
    keys = {tuple(line.split()[:2]) for line in locked}
    grown = {tuple(line.split()[:2]): line for line in now}
    lines = [grown.get(tuple(line.split()[:2]), line) for line in locked]
    for line, was in zip(lines, locked, strict=True):
        try:
            check_lock([line], [was])
        except RegistryError as error:
            if UPDATE not in str(error):
                raise
    lines += [line for line in now if tuple(line.split()[:2]) not in keys]
    check_lock(now, lines)
    path.write_text(HEAD + "\n".join(lines) + "\n")


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def _takes_reserved(was: str, is_now: str) -> bool:
    name, _, place = was.partition(":")
    return name.startswith(RESERVED) and is_now.partition(":")[2] == place


class _Names:
    """What stands where, of all files."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.constants: dict[str, Constant] = {}
        self.enumerations: dict[str, Enumeration] = {}
        self.structs: dict[str, Body] = {}
        self._said = said
        self._homes: dict[str, str] = {}
        for file, content in said.items():
            where = f"{FOLDER}/{file}.yaml"
            refuse_unknown(where, content, {"about", "constants", "enumerations", "structs"})
            for section, rule in (
                ("constants", NAME),
                ("enumerations", TYPE_NAME),
                ("structs", TYPE_NAME),
            ):
                for name in content.get(section) or {}:
                    if not isinstance(name, str) or not rule.fullmatch(name):
                        raise RegistryError(
                            f"{where}: {section}: {name!r}: types LikeThis, constants like_this"
                        )
                    if name in self._homes:
                        raise RegistryError(
                            f"{where}: {section}: {name} stands in {self._homes[name]}.yaml already"
                        )
                    self._homes[name] = file

    def uses(self, file: str) -> set[str]:
        """Other files whose types or constants the fields of this one name."""
        used = set()
        for body in (self._said[file].get("structs") or {}).values():
            words = [str(body.get("same_as", ""))]
            for field in (body.get("fields") or {}).values():
                kind = field if isinstance(field, str) else str(field.get("type", ""))
                words += re.findall(r"\w+", kind)
            used |= {self._homes[word] for word in words if word in self._homes}
        return used - {file}


def _file(name: str, said: dict[str, Any], names: _Names) -> BodyFile:
    where = f"{FOLDER}/{name}.yaml"

    def section(key: str, read: Callable[[str, str, Any], Any], into: dict[str, Any]) -> Any:
        for entry, fields in (said.get(key) or {}).items():
            into[entry] = read(f"{where}: {key}: {entry}", entry, fields)
        return tuple(into[entry] for entry in said.get(key) or {})

    return BodyFile(
        name=name,
        about=str(said.get("about", "")),
        uses=tuple(sorted(names.uses(name))),
        constants=section("constants", _constant, names.constants),
        enumerations=section("enumerations", _enumeration, names.enumerations),
        structs=section("structs", partial(_struct, names), names.structs),
    )


def _constant(where: str, name: str, said: Any) -> Constant:
    refuse_unknown(where, said, {"type", "value", "about"})
    if said.get("type") not in CONSTANT_TYPES:
        raise RegistryError(
            f"{where}: type {said.get('type')!r} is none of {sorted(CONSTANT_TYPES)}"
        )
    value = said.get("value")
    if isinstance(value, str) and (shifted := SHIFTED.fullmatch(value)):
        value = int(shifted[1]) << int(shifted[2])
    if not isinstance(value, int):
        raise RegistryError(f"{where}: the value {value!r} is neither a number nor like 2 << 30")
    if not 0 <= value < 1 << (32 if said["type"] == "u32" else 64):
        raise RegistryError(f"{where}: the value {value} is none of a {said['type']}")
    return Constant(name, said["type"], value, str(said.get("about", "")))


def _enumeration(where: str, name: str, said: Any) -> Enumeration:
    refuse_unknown(where, said, {"about", "flags", "values"})
    choices = []
    for choice, what in (said.get("values") or {}).items():
        fields = what if isinstance(what, dict) else {"value": what}
        refuse_unknown(f"{where}: {choice}", fields, {"value", "about"})
        if not NAME.fullmatch(choice) or not isinstance(fields.get("value"), int):
            raise RegistryError(f"{where}: {choice}: a name like_this and a number are wanted")
        choices.append(Choice(choice, fields["value"], str(fields.get("about", ""))))
    values = [c.value for c in choices]
    if not values or len(set(values)) != len(values):
        raise RegistryError(f"{where}: values are given, and each number once")
    flags = bool(said.get("flags", False))
    if flags and any(v <= 0 or v & (v - 1) for v in values):
        raise RegistryError(f"{where}: a flag is one bit")
    return Enumeration(name, flags, str(said.get("about", "")), tuple(choices))


def _struct(names: _Names, where: str, name: str, said: Any) -> Body:
    refuse_unknown(where, said, {"about", "fields", "ordered", "same_as"})
    about, ordered = str(said.get("about", "")), bool(said.get("ordered", False))
    if same := said.get("same_as"):
        if same not in names.structs or "fields" in said or ordered:
            raise RegistryError(f"{where}: same_as {same!r}: no struct before it, or fields too")
        of = names.structs[same]
        return Body(name, of.bytes, of.alignment, about, of.fields, False, same)
    fields: list[Field] = []
    offset, largest = 0, 1
    for field, what in (said.get("fields") or {}).items():
        place = f"{where}: {field}"
        entry = {"type": what} if isinstance(what, str) else what
        refuse_unknown(place, entry, {"type", "about"})
        if not isinstance(field, str) or not NAME.fullmatch(field):
            raise RegistryError(f"{place}: a name has small letters, digits and underscores")
        kind, count, layout, size, alignment = _type(place, str(entry.get("type")), names)
        if offset % alignment:
            raise RegistryError(
                f"{place}: lies at {offset}, which is no multiple of {alignment}: put a reserved "
                "field before it"
            )
        fields.append(Field(field, kind, count, offset, str(entry.get("about", "")), layout))
        offset += size
        largest = max(largest, alignment)
    if not fields or offset % largest:
        raise RegistryError(
            f"{where}: {offset} bytes, a multiple of {largest} is wanted: put a reserved field at "
            "its end"
        )
    return Body(name, offset, largest, about, tuple(fields), ordered, "")


def _type(place: str, said: str, names: _Names) -> tuple[str, int, str, int, int]:
    """Name, count, what lies there, bytes and alignment."""
    kind, count = said, 0
    if array := ARRAY.fullmatch(said):
        kind = array[1]
        constant = names.constants.get(array[2])
        count = int(array[2]) if array[2].isdigit() else constant.value if constant else 0
        if count < 1:
            raise RegistryError(f"{place}: {array[2]!r} is neither a number nor a constant")
    if body := names.structs.get(kind):
        number, size, alignment = body.name, body.bytes, body.alignment
    else:
        number = "u32" if kind in names.enumerations else kind
        if number not in SIZES:
            raise RegistryError(
                f"{place}: the type {said!r} is neither enumeration, struct before it nor number: "
                f"{sorted(SIZES)}"
            )
        size = alignment = SIZES[number]
    return kind, count, f"{number}[{count}]" if count else number, size * (count or 1), alignment


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Append new layouts of bodies to the lock.")
    parser.add_argument("--update-layouts", action="store_true", required=True)
    parser.parse_args()
    api = Path(__file__).resolve().parent.parent / "api"
    try:
        update_lock(api)
    except RegistryError as error:
        print(f"bodies: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
