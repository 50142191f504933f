# SPDX-License-Identifier: Apache-2.0
"""How a structure differs between two CUDA versions, and what copies one into the other.

Used by majors.py. Two declarations are alike when a program that was compiled with the one may be
given the other: same size, and every field of the older one at its place with its size. A union is
one piece of bytes, as nothing says which of its members is meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from imported import Field, ImportedLibrary, RegistryError, TypeDeclaration

RESERVED = "reserved"
"""A field for later versions: zero, whatever its size."""
RECORD = re.compile(r"\b(?:struct|union) (\w+)")


@dataclass(frozen=True)
class Piece:
    """Bytes of a structure that go from one version to the other."""

    path: str
    """`res`, `maxGridSize`: a field, or a union as a whole."""
    size: int
    """Bytes that both have there."""


def records(library: ImportedLibrary) -> dict[str, TypeDeclaration]:
    """Return the complete structures and unions of a library by tag, or by name without one."""
    return {
        str(t.tag or t.name): t
        for t in library.types
        if t.kind in ("struct", "union") and not t.opaque
    }


def typedefs(library: ImportedLibrary) -> dict[str, str]:
    """Return what each typedef stands for."""
    return {str(t.name): t.ctype for t in library.types if t.kind == "typedef"}


def leaves(
    fields: tuple[Field, ...], prefix: str = "", base: int = 0
) -> Iterator[tuple[str, int, int]]:
    """Yield (path, offset, size) of every field that has a name."""
    for field in fields:
        if field.name is None:
            yield from leaves(field.fields, prefix, base)
            continue
        yield f"{prefix}{field.name}", base + field.offset, field.size
        if field.inline and not field.dims:
            yield from leaves(field.fields, f"{prefix}{field.name}.", base + field.offset)


def alike(old: TypeDeclaration, new: TypeDeclaration) -> bool:
    """Tell whether code that was compiled with `old` can be given a `new`."""
    if old.size != new.size or old.align != new.align:
        return False
    there = {path: (offset, size) for path, offset, size in leaves(new.fields)}
    return all(there.get(path) == (offset, size) for path, offset, size in leaves(old.fields))


def changed_records(old: ImportedLibrary, new: ImportedLibrary) -> dict[str, TypeDeclaration]:
    """Return what `old` declares and `new` lacks or lays out otherwise, in the headers' order.

    A structure that holds one of them by value or by address is among them.
    """
    theirs = records(new)
    known = records(old)
    changed = {
        name for name, t in known.items() if name not in theirs or not alike(t, theirs[name])
    }
    while True:
        more = {
            name
            for name, t in known.items()
            if name not in changed and changed & set(held(t.fields))
        }
        if not more:
            break
        changed |= more
    return {name: t for name, t in known.items() if name in changed}


def held(fields: tuple[Field, ...]) -> Iterator[str]:
    """Yield the tags of the structures that fields are, or point to."""
    for field in fields:
        yield from RECORD.findall(field.ctype or "")
        yield from held(field.fields)


def pieces(old: TypeDeclaration, new: TypeDeclaration, where: str) -> list[Piece]:
    """Return what the two have in common; RegistryError where copying it is unsafe."""
    theirs = {f.name: f for f in new.fields if f.name}
    result = []
    for field in old.fields:
        if field.name is None:
            raise RegistryError(
                f"{where}: an anonymous member cannot be converted; write it by hand"
            )
        other = theirs.get(field.name)
        if other is None or field.name == RESERVED:
            continue
        if field.inline:
            result.append(Piece(field.name, common_bytes(field, other, where)))
        elif field.size != other.size:
            raise RegistryError(
                f"{where}: {field.name} has {field.size} bytes in one version and {other.size} in "
                "the other; write the conversion by hand"
            )
        else:
            result.append(Piece(field.name, field.size))
    return result


def common_bytes(old: Field, new: Field, where: str) -> int:
    """How many bytes of an inline struct or union mean the same in both."""
    there = {path: (offset, size) for path, offset, size in leaves(new.fields)}
    for path, offset, size in leaves(old.fields):
        if there.get(path) != (offset, size):
            raise RegistryError(
                f"{where}: {old.name}.{path} lies elsewhere in the other version; "
                "write the conversion by hand"
            )
    return min(old.size, new.size)


def reaches(canonical: str, changed: Mapping[str, TypeDeclaration]) -> str:
    """Return the changed structure that a parameter is or points to, else an empty string."""
    for tag in RECORD.findall(canonical):
        if tag in changed:
            return str(tag)
    return ""
