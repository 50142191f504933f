# SPDX-License-Identifier: Apache-2.0
"""Who proved each pointer that reaches one of CUDA's libraries, by class.

The worker hands NVIDIA's libraries pointers, and sizes that belong to them. Whatever the guest said
of either must have been proved by somebody before the call; which check that is follows from how
the parameter crosses the wire, and `proof_of` says it. A pointer for which no rule of the registry
says whether it is host or device memory has no class, and is refused when the registry is loaded
(tests/codegen/test_library_proofs.py lists them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imported import RegistryError

PROOFS = {
    "": "kNone",
    "number": "kNumber",
    "object": "kObject",
    "window": "kWindow",
    "indices": "kIndices",
    "place": "kPlace",
    "one": "kOne",
    "counted": "kCounted",
    "text": "kText",
    "attribute": "kAttribute",
    "opaque": "kOpaque",
    "asked": "kAsked",
    "nothing": "kNothing",
}
"""wire::Proof; native/wire/library_spec.h says what each promises."""

HAND_PROOFS = {
    **{name: "" for name in PROOFS if name},
    "queried": "the library on the node was asked for the size",
    "fields": "a struct of the worker's, filled field by field",
}
"""What commands written by hand may say of what they carry, beside the classes of the tables."""

BY_KIND = {
    "value": "number",
    "handle": "object",
    "stream": "object",
    "event": "object",
    "mint": "one",
    "scalar": "place",
    "result": "place",
    "string": "text",
    "in_handles": "counted",
    "in_addresses": "counted",
    "out_address": "one",
    "out_handle": "one",
    "attribute": "attribute",
    "nothing": "nothing",
}


def proof_of(kind: str, *, said: bool, counted: bool, opaque: bool, asked: bool) -> str:
    """Return the class of one parameter; "" when nobody proved it.

    `said`: a rule names the parameter, so that it is not taken for device memory by default.
    """
    if kind == "address":
        return "window" if said else ""
    if kind == "host_workspace":
        return "asked" if asked else ""
    if kind in ("in", "out", "in_out"):
        if opaque and kind != "out":
            return "opaque"
        return "counted" if counted else "one"
    return BY_KIND.get(kind, "")


@dataclass(frozen=True)
class Attribute:
    """One attribute that may be set, and its size."""

    name: int
    bytes: int
    address: bool


@dataclass(frozen=True)
class Workspace:
    """The function that says how large a host workspace must be, and its arguments."""

    query: str
    arguments: tuple[int, ...]
    """Parameters of the function itself, -1 where the worker has memory of its own."""
    answer: int
    """The argument that the size is written to."""
    function: int = -1
    """Its place in the table."""


def read_attributes(
    said: dict[str, Any], refused: dict[str, str], known: dict[str, int], where: str
) -> tuple[Attribute, ...]:
    """Read `values: {ENUMERATOR: bytes | address}`; each enumerator must be listed or refused."""
    result = []
    for name, size in said.items():
        if name not in known:
            raise RegistryError(f"{where}: {name} is no enumerator of the attribute's type")
        if size != "address" and size not in (1, 2, 4, 8, 16, 64):
            raise RegistryError(f"{where}: {name}: {size!r} is neither a size nor `address`")
        address = size == "address"
        result.append(Attribute(known[name], 8 if address else int(size), address))
    listed = {known[n] for n in said} | {known[n] for n in refused if n in known}
    missing = sorted(n for n, v in known.items() if v not in listed)
    if missing:
        raise RegistryError(
            f"{where}: nothing is said of {', '.join(missing)}; give the size of the value, "
            "`address` for a device address, or a reason under `refused`"
        )
    return tuple(sorted(result, key=lambda a: a.name))


def index_arrays(said: Any, names: list[str], where: str) -> tuple[tuple[int, ...], ...]:
    """Read `indices: [{rows, columns, count, offsets, indices, descriptor}]` or permutations."""
    result = []
    for one in said:
        for key in one.keys() - {"rows", "columns", "count", "offsets", "indices", "descriptor"}:
            raise RegistryError(f"{where}: indices: key {key!r} is unknown")

        def place(key: str, one: dict[str, str] = one) -> int:
            if key not in one:
                return -1
            if one[key] not in names:
                raise RegistryError(f"{where}: indices: there is no parameter {one[key]}")
            return names.index(one[key])

        if place("rows") < 0 or place("indices") < 0:
            raise RegistryError(f"{where}: indices: say at least `rows` and `indices`")
        if place("offsets") >= 0 and place("count") < 0:
            raise RegistryError(f"{where}: indices: `offsets` need a `count`")
        columns = place("columns") if "columns" in one else place("rows")
        result.append(
            (
                place("rows"),
                columns,
                place("count"),
                place("offsets"),
                place("indices"),
                place("descriptor"),
            )
        )
    return tuple(result)


def sizes_in(indices: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return the parameters that say rows, columns and count of the first matrix."""
    return indices[0][:3] if indices and indices[0][3] >= 0 else ()
