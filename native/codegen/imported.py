# SPDX-License-Identifier: Apache-2.0
"""The facts imported from NVIDIA's headers, as typed objects.

Read by registry and by the generators; written (as JSON) by import_headers.py and by nobody else.
Rows keep the order of the headers for types and are sorted by name for functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class RegistryError(Exception):
    """Something in native/api is wrong; the message names the file, the place and the fix."""


def refuse_unknown(where: str, entry: Json, known: Iterable[str]) -> None:
    """Raise RegistryError for a key of a YAML mapping that nobody reads."""
    unknown = sorted(set(entry) - set(known))
    if unknown:
        raise RegistryError(f"{where}: unknown key {unknown[0]!r}; use one of {sorted(set(known))}")


@dataclass(frozen=True)
class ImportedParam:
    """One parameter of an imported function."""

    name: str
    ctype: str
    """As the header spells it, `CUstream`."""
    canonical: str
    """With typedefs resolved, `struct CUstream_st *`."""


@dataclass(frozen=True)
class ImportedFunction:
    """One exported function."""

    name: str
    base: str
    version: int
    stream: str
    """"" for the legacy default stream, "ptsz" or "ptds" for the per-thread one."""
    header: str
    returns: str
    params: tuple[ImportedParam, ...]
    current: bool
    """Reachable from today's header; False for versions kept for old binaries."""


@dataclass(frozen=True)
class Field:
    """One field of a record; without a name it is an anonymous member."""

    name: str | None
    offset: int
    size: int
    ctype: str | None
    dims: tuple[int, ...]
    inline: str | None
    """"struct" or "union" when the field's type is declared in place."""
    tag: str | None
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class TypeDeclaration:
    """One type, in the order of the headers."""

    kind: str
    """enum, struct, union, typedef or function_pointer."""
    name: str | None
    tag: str | None
    header: str
    opaque: bool = False
    values: tuple[tuple[str, int], ...] = ()
    size: int = 0
    align: int = 0
    fields: tuple[Field, ...] = ()
    ctype: str = ""
    returns: str = ""
    params: tuple[tuple[str, str], ...] = ()

    @property
    def spelling(self) -> str:
        """How C refers to an enum, struct or union."""
        return f"{self.kind} {self.tag}" if self.tag else str(self.name)


@dataclass(frozen=True)
class Constant:
    """An object-like macro: an integer, maybe cast, or another name of an enumerator."""

    name: str
    value: int | None
    cast: str
    alias: str


@dataclass(frozen=True)
class ProcAddress:
    """The exported function that answers for a symbol from a CUDA version on."""

    symbol: str
    version: int
    stream: str
    exported: str


@dataclass(frozen=True)
class ImportedLibrary:
    """What the headers say about one library: "driver" (libcuda) or "runtime" (libcudart)."""

    library: str
    functions: dict[str, ImportedFunction]
    types: tuple[TypeDeclaration, ...]
    constants: tuple[Constant, ...]
    proc_address: tuple[ProcAddress, ...]

    def enum(self, name: str) -> tuple[tuple[str, int], ...]:
        """Return the enumerators of an enum, by its tag or by a typedef of it."""
        tags = {f"enum {name}", name}
        tags.update(t.ctype for t in self.types if t.kind == "typedef" and t.name == name)
        for declaration in self.types:
            if declaration.kind == "enum" and declaration.spelling in tags:
                return declaration.values
        raise RegistryError(f"{self.library}: no enum {name} was imported")


def read_json(path: Path) -> Any:
    """Read one imported file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise RegistryError(f"{path} is missing; run native/codegen/import_headers.py") from error
    except json.JSONDecodeError as error:
        raise RegistryError(
            f"{path}:{error.lineno}: not JSON ({error.msg}); import again"
        ) from error


def load_library(folder: Path, library: str) -> ImportedLibrary:
    """Load everything imported about "driver" or "runtime"."""
    rows = {
        part: read_json(folder / f"{library}_{part}.json")
        for part in ("functions", "types", "constants")
    }
    proc_path = folder / f"{library}_proc_address.json"
    proc_rows = read_json(proc_path) if proc_path.exists() else []
    return ImportedLibrary(
        library=library,
        functions={row["name"]: load_function(row) for row in rows["functions"]},
        types=tuple(load_type(row) for row in rows["types"]),
        constants=tuple(
            Constant(r["name"], r.get("value"), r.get("cast", ""), r.get("alias", ""))
            for r in rows["constants"]
        ),
        proc_address=tuple(ProcAddress(**row) for row in proc_rows),
    )


def load_function(row: Json) -> ImportedFunction:
    """Build a function of its row."""
    params = tuple(ImportedParam(*param) for param in row["params"])
    return ImportedFunction(**{**row, "params": params})


def load_type(row: Json) -> TypeDeclaration:
    """Build a type of its row."""
    known = {
        "kind": row["kind"],
        "name": row.get("name"),
        "tag": row.get("tag"),
        "header": row["header"],
        "opaque": row.get("opaque", False),
        "values": tuple((name, value) for name, value in row.get("values", [])),
        "size": row.get("size", 0),
        "align": row.get("align", 0),
        "fields": tuple(load_field(f) for f in row.get("fields", [])),
        "ctype": row.get("type", ""),
        "returns": row.get("returns", ""),
        "params": tuple((name, ctype) for name, ctype in row.get("params", [])),
    }
    return TypeDeclaration(**known)


def load_field(row: Json) -> Field:
    """Build a field, and those inside it, of its row."""
    nested = tuple(load_field(f) for f in row.get("fields", []))
    if "anonymous" in row:
        return Field(None, -1, 0, None, (), row["anonymous"], None, nested)
    return Field(
        name=row["name"],
        offset=row["offset"],
        size=row["size"],
        ctype=row.get("type"),
        dims=tuple(row.get("dims", [])),
        inline=row.get("inline"),
        tag=row.get("tag"),
        fields=nested,
    )
