# SPDX-License-Identifier: Apache-2.0
"""The fixed structs that a function's request and reply cross the wire in.

Used by generate_wire.py. Fields are ordered by alignment, with explicit reserved bytes, so that the
compiler has nothing to pad: what is sent was written. A function that the generators cannot carry
safely is a RegistryError that says what to write by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from imported import ImportedLibrary, RegistryError
from kinds import Kind, Param, TypeTable
from model import Function, State

LANE_BODY_BYTES = 8176
"""The body of one reply on shared memory; more has nowhere to go."""

SIZES = {
    "char": 1, "signed char": 1, "unsigned char": 1, "short": 2, "unsigned short": 2,
    "int": 4, "unsigned int": 4, "long": 8, "unsigned long": 8, "long long": 8,
    "unsigned long long": 8, "float": 4, "double": 8, "uint32_t": 4, "uint64_t": 8, "size_t": 8,
}  # fmt: skip

HANDLE_TABLES = {
    "CUstream": "streams",
    "CUevent": "events",
    "CUmodule": "modules",
    "CUlibrary": "libraries",
    "CUfunction": "functions",
    "CUkernel": "kernels",
}
"""Handle types with a table on both sides (client/core/session.h, worker/session_objects.h)."""

REQUEST = (Kind.SCALAR, Kind.DEVICE, Kind.DEVICE_ADDRESS, Kind.HANDLE, Kind.IN, Kind.IN_OUT)
REPLY = (Kind.OUT, Kind.IN_OUT)

OWN_NAMES = {"s", "d", "e", "c", "body", "request", "reply", "got", "question", "epoch"}
"""What the generated bodies call their own variables."""


@dataclass(frozen=True)
class Field:
    """One field of a wire struct."""

    name: str
    ctype: str
    size: int
    align: int
    count: int = 1


@dataclass(frozen=True)
class Struct:
    """A fixed struct without padding."""

    name: str
    fields: tuple[Field, ...]
    size: int


@dataclass(frozen=True)
class WireFunction:
    """A function with the structs of its two directions."""

    function: Function
    request: Struct
    reply: Struct | None


class Layout:
    """Lays out the functions of one library."""

    def __init__(self, library: ImportedLibrary) -> None:
        self.types = TypeTable(library)
        self.enums = {t.spelling: t for t in library.types if t.kind == "enum"}

    def enum(self, ctype: str) -> str | None:
        """`enum CUlimit_enum` when the type is an enumeration."""
        canonical = self.types.canonical(ctype).removeprefix("const ")
        return canonical if canonical in self.enums else None

    def field(self, param: Param) -> Field:
        """How one parameter's value is carried."""
        if param.kind == Kind.DEVICE:
            return Field(param.name, "uint32_t", 4, 4)
        if param.kind in (Kind.DEVICE_ADDRESS, Kind.HANDLE):
            return Field(param.name, "uint64_t", 8, 8)
        if self.enum(param.element):
            # As a number: a value that the enumeration lacks must be refused before it is one.
            return Field(param.name, "uint32_t", 4, 4)
        canonical = self.types.canonical(param.element)
        if canonical in SIZES:
            return Field(param.name, param.element, SIZES[canonical], SIZES[canonical])
        record = self.types.records[canonical]
        return Field(param.name, param.element, record.size, record.align)

    def struct(self, name: str, params: tuple[Param, ...]) -> Struct:
        """Order the fields and fill up to a multiple of 8."""
        fields = sorted((self.field(p) for p in params), key=lambda f: -f.align)
        laid: list[Field] = []
        at = fillers = 0
        for field in fields:
            gap = -at % field.align
            if gap:
                laid.append(filler(fillers, gap))
                fillers += 1
            laid.append(field)
            at += gap + field.size
        gap = 8 if at == 0 else -at % 8
        if gap:
            laid.append(filler(fillers, gap))
        return Struct(name, tuple(laid), at + gap)

    def lay_out(self, function: Function) -> WireFunction:
        """Lay out both directions, or say what cannot be generated."""
        check(function, self.enum)
        stem = camel_case(function.name)
        outputs = function.of_kind(*REPLY)
        reply = self.struct(f"{stem}Reply", outputs) if outputs else None
        if reply and reply.size > LANE_BODY_BYTES:
            raise RegistryError(
                f"driver.yaml: {function.name}: its answer has {reply.size} bytes, a lane holds "
                f"{LANE_BODY_BYTES}; use hand: both"
            )
        return WireFunction(function, self.struct(stem, function.of_kind(*REQUEST)), reply)


def filler(number: int, count: int) -> Field:
    """Reserved bytes."""
    return Field(f"reserved{number or ''}", "uint8_t", 1, 1, count)


def camel_case(name: str) -> str:
    """cuMemAlloc_v2 -> CuMemAllocV2."""
    return re.sub(r"(?:^|_)([a-z])", lambda m: m[1].upper(), name)


def check(function: Function, enum: Callable[[str], str | None]) -> None:
    """Refuse what no generated body carries."""
    where = f"driver.yaml: {function.name}"
    if function.annotation.state in (State.CREATES, State.DESTROYS):
        raise RegistryError(
            f"{where}: generated bodies neither mint nor end objects; use hand: all"
        )
    for param in function.params:
        place = f"{where}: parameter {param.name}"
        if param.kind not in (*REQUEST, *REPLY, Kind.IGNORED):
            raise RegistryError(
                f"{place}: generated bodies carry no kind {param.kind}; use hand: all"
            )
        if param.name in OWN_NAMES:
            raise RegistryError(f"{place}: the generated bodies use that name; add it to them")
        if param.kind == Kind.HANDLE and param.handle not in HANDLE_TABLES:
            raise RegistryError(
                f"{place}: there is no table of {param.handle} on the two sides; use hand: all"
            )
        if param.kind == Kind.DEVICE_ADDRESS and param.name not in function.annotation.reach:
            raise RegistryError(
                f"{place}: say how many bytes the GPU touches there: reach: {{{param.name}: 4}}"
            )
        if param.nullable and param.kind != Kind.OUT:
            raise RegistryError(f"{place}: only kind out may be null in a generated body")
        if param.kind == Kind.IN_OUT and enum(param.element):
            raise RegistryError(f"{place}: an enumeration both ways is not generated; hand: all")
