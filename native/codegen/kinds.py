# SPDX-License-Identifier: Apache-2.0
"""How each parameter crosses the wire: the kinds, and the rules that infer them from C types.

Used by registry. A rule infers only what no reader could take otherwise; the rest must be said in
the annotation, and the error says how.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from imported import Field, ImportedLibrary, ImportedParam, RegistryError, TypeDeclaration


class Kind(StrEnum):
    """How one parameter crosses the wire."""

    SCALAR = "scalar"
    """Integer, enum, float, or a pointer-free struct, by value."""
    DEVICE = "device"
    """CUdevice by value: an ordinal of the session, checked by the worker."""
    DEVICE_ADDRESS = "device_address"
    """CUdeviceptr by value: must lie in a window of the session."""
    HANDLE = "handle"
    """An object's id, mapped by the worker; 0 stays 0."""
    MINT = "mint"
    """Out: an id that the client makes; the worker binds the new object to it."""
    OUT_HANDLE = "out_handle"
    """Out: the worker answers with an id (of an object that may be known already)."""
    OUT = "out"
    """Out: one value (scalar, address or pointer-free struct)."""
    IN = "in"
    """In: one value behind a const pointer."""
    IN_OUT = "in_out"
    """One value, both ways."""
    IN_ARRAY = "in_array"
    """In: `count` elements; count names an integer parameter."""
    OUT_ARRAY = "out_array"
    """Out: as many elements as count says: a scalar is the capacity, an in_out pointer both."""
    IN_BYTES = "in_bytes"
    OUT_BYTES = "out_bytes"
    STRING = "string"
    """In: NUL-terminated."""
    OUT_STRING = "out_string"
    """Out: NUL-terminated, cut to count bytes."""
    IGNORED = "ignored"
    """Not sent; the worker passes zero."""


COUNTED = (Kind.IN_ARRAY, Kind.OUT_ARRAY, Kind.IN_BYTES, Kind.OUT_BYTES, Kind.OUT_STRING)

INTEGER_HANDLES = {
    "CUtexObject",
    "CUsurfObject",
    "CUmemGenericAllocationHandle",
    "CUgraphConditionalHandle",
}
INTEGERS = {
    "char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned int",
    "long", "unsigned long", "long long", "unsigned long long", "float", "double",
}  # fmt: skip


@dataclass(frozen=True)
class Param:
    """One parameter with its kind resolved."""

    name: str
    ctype: str
    """As declared, e.g. `CUevent *`."""
    canonical: str
    kind: Kind
    element: str
    """The C type of one value: pointee without const, or the type itself."""
    handle: str | None = None
    """The handle's type (`CUstream`) when one element is a handle."""
    count: str | None = None
    """The parameter that counts, for arrays and buffers."""
    nullable: bool = False
    """The application may pass NULL (for handles: 0 is always allowed to cross)."""


class TypeTable:
    """Answers questions about the driver's C types."""

    def __init__(self, library: ImportedLibrary) -> None:
        self.typedefs = {t.name: t.ctype for t in library.types if t.kind == "typedef"}
        self.callbacks = {t.name for t in library.types if t.kind == "function_pointer"}
        self.records: dict[str, TypeDeclaration] = {}
        self.enums: set[str] = set()
        self.opaque: set[str] = set()
        for t in library.types:
            if t.opaque:
                self.opaque.add(t.spelling)
            elif t.kind in ("struct", "union"):
                self.records[t.spelling] = t
            elif t.kind == "enum":
                self.enums.add(t.spelling)
        self.opaque -= self.records.keys()

    def canonical(self, ctype: str) -> str:
        """Resolve typedefs; `const T *` keeps its const and its stars."""
        match = re.fullmatch(r"(const )?(.+?)\s*(\**)", ctype)
        assert match
        name = match[2]
        while name in self.typedefs:
            name = self.typedefs[name]
        space = " " if match[3] and not name.endswith("*") else ""
        return f"{match[1] or ''}{name}{space}{match[3]}"

    def handle(self, ctype: str) -> str | None:
        """`CUstream` when ctype is a handle by value, in NVIDIA's current spelling."""
        if ctype in INTEGER_HANDLES or re.sub(r"_v\d+$", "", ctype) in INTEGER_HANDLES:
            return re.sub(r"_v\d+$", "", ctype)
        canonical = self.canonical(ctype)
        if canonical.endswith(" *") and canonical[:-2] in self.opaque:
            return ctype
        return None

    def plain(self, ctype: str) -> bool:
        """A value that means the same on both sides: no pointer anywhere inside."""
        canonical = self.canonical(ctype).removeprefix("const ")
        if (
            canonical in INTEGERS
            or canonical in self.enums
            or canonical in ("uint32_t", "uint64_t", "size_t")
        ):
            return True
        record = self.records.get(canonical)
        return record is not None and all(self.plain_field(f) for f in record.fields)

    def plain_field(self, field: Field) -> bool:
        """Tell whether a field holds neither pointer nor handle."""
        if field.inline:
            return all(self.plain_field(f) for f in field.fields)
        return self.plain(str(field.ctype)) and self.handle(str(field.ctype)) is None

    def struct(self, ctype: str) -> bool:
        """Tell whether a type is a complete struct or union."""
        return self.canonical(ctype).removeprefix("const ") in self.records


def pointee(ctype: str) -> tuple[str, bool] | None:
    """`const X *` -> ("X", True); None when it is no pointer (or a pointer to pointers)."""
    if not ctype.endswith("*"):
        return None
    inner = ctype[:-1].rstrip()
    is_const = inner.startswith("const ")
    return inner.removeprefix("const "), is_const


def infer(param: ImportedParam, types: TypeTable, creates: bool, where: str) -> Kind:
    """Return the kind that the C type alone implies, or say what to write."""
    if types.handle(param.ctype):
        return Kind.HANDLE
    if param.ctype in ("CUdevice", "CUdevice_v1"):
        return Kind.DEVICE
    if param.ctype in ("CUdeviceptr", "CUdeviceptr_v2"):
        return Kind.DEVICE_ADDRESS
    if types.plain(param.ctype):
        return Kind.SCALAR
    if param.ctype == "const char *":
        return Kind.STRING
    target = pointee(param.ctype)
    if target is not None:
        inner, is_const = target
        if not is_const and types.handle(inner):
            return Kind.MINT if creates else Kind.OUT_HANDLE
        if not is_const and inner != "char" and types.plain(inner):
            return Kind.OUT
        if is_const and types.struct(inner) and types.plain(inner):
            return Kind.IN
    raise RegistryError(
        f"{where}: parameter {param.name}: its type {param.ctype!r} does not say how it "
        f"crosses the wire; add params: {{{param.name}: KIND}} with one of "
        f"{', '.join(sorted(Kind))}, or hand: all"
    )


def read_kind(spec: Any, where: str) -> tuple[Kind, str | None, bool]:
    """`out`, `out or null`, `{in_array: count}` -> kind, count, nullable."""
    count: str | None = None
    if isinstance(spec, dict):
        if len(spec) != 1:
            raise RegistryError(f"{where}: {spec!r} must have one key, e.g. {{in_array: count}}")
        spec, count = next(iter(spec.items()))
        count = str(count)
    word = str(spec)
    nullable = word.endswith(" or null")
    try:
        kind = Kind(word.removesuffix(" or null"))
    except ValueError as error:
        raise RegistryError(
            f"{where}: kind {word!r} is unknown; use one of {', '.join(sorted(Kind))}, "
            "with 'or null' behind it when NULL is allowed"
        ) from error
    if (kind in COUNTED) != (count is not None):
        need = f"write {{{kind}: COUNT_PARAMETER}}" if kind in COUNTED else "it takes no count"
        raise RegistryError(f"{where}: kind {kind}: {need}")
    return kind, count, nullable


def resolve_params(
    imported: tuple[ImportedParam, ...],
    annotated: dict[str, Any],
    types: TypeTable,
    creates: bool,
    generated: bool,
    where: str,
) -> tuple[Param, ...]:
    """Resolve every parameter; without a generated frame the kinds are informative only."""
    names = [p.name for p in imported]
    for name in annotated:
        if name not in names:
            raise RegistryError(
                f"{where}: parameter {name}: there is none; it has {', '.join(names)}"
            )
    result = []
    for param in imported:
        place = f"{where}: parameter {param.name}"
        if param.name in annotated:
            kind, count, nullable = read_kind(annotated[param.name], place)
        else:
            count, nullable = None, False
            try:
                kind = infer(param, types, creates, where)
            except RegistryError:
                if generated:
                    raise
                kind = Kind.IGNORED
        resolved = make_param(param, kind, count, nullable, types)
        if generated:
            check_param(resolved, imported, types, place)
        result.append(resolved)
    return tuple(result)


BY_VALUE = (Kind.SCALAR, Kind.DEVICE, Kind.DEVICE_ADDRESS, Kind.HANDLE)


def make_param(
    param: ImportedParam, kind: Kind, count: str | None, nullable: bool, types: TypeTable
) -> Param:
    """Join a parameter with its kind."""
    target = pointee(param.ctype)
    element = param.ctype if kind in BY_VALUE or target is None else target[0]
    return Param(
        param.name,
        param.ctype,
        param.canonical,
        kind,
        element,
        types.handle(element),
        count,
        nullable,
    )


def check_param(
    param: Param, imported: tuple[ImportedParam, ...], types: TypeTable, place: str
) -> None:
    """Refuse a kind that the C type cannot carry."""
    target = pointee(param.ctype)
    by_pointer = param.kind not in (*BY_VALUE, Kind.IGNORED)
    if by_pointer and target is None:
        raise RegistryError(
            f"{place}: kind {param.kind} needs a pointer, its type is {param.ctype!r}"
        )
    if (
        by_pointer
        and param.kind not in (Kind.IN, Kind.IN_ARRAY, Kind.IN_BYTES, Kind.STRING)
        and target
        and target[1]
    ):
        raise RegistryError(f"{place}: kind {param.kind} writes, but its type is {param.ctype!r}")
    if param.kind in (Kind.MINT, Kind.OUT_HANDLE) and not param.handle:
        raise RegistryError(
            f"{place}: kind {param.kind} needs a pointer to a handle, not {param.ctype!r}"
        )
    if param.kind == Kind.HANDLE and not param.handle:
        raise RegistryError(f"{place}: {param.ctype!r} is no handle type")
    valued = (Kind.SCALAR, Kind.OUT, Kind.IN, Kind.IN_OUT, Kind.IN_ARRAY, Kind.OUT_ARRAY)
    if param.kind in valued and not types.plain(param.element) and not param.handle:
        raise RegistryError(
            f"{place}: {param.element!r} holds pointers or is incomplete, so its bytes mean "
            "nothing on the other side; use hand: all"
        )
    if param.count is not None:
        counter = next((p for p in imported if p.name == param.count), None)
        if counter is None:
            raise RegistryError(
                f"{place}: counted by {param.count!r}, which is no parameter of the function"
            )
        pointed = pointee(counter.ctype)
        if not types.plain(pointed[0] if pointed else counter.ctype):
            raise RegistryError(
                f"{place}: counted by {param.count}, whose type {counter.ctype!r} is no integer"
            )
