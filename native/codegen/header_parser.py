# SPDX-License-Identifier: Apache-2.0
"""Turn C headers into plain facts with libclang: functions, types with layout, constants.

Called by import_headers.py only. A Library holds what one parse of one set of macros saw in the
named headers, in source order; rows are JSON-ready dictionaries. Types are spelled in C so that
the generated headers serve C and C++ alike.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clang.cindex import (  # type: ignore[import-untyped, unused-ignore]
    Cursor,
    CursorKind,
    Diagnostic,
    Index,
    StorageClass,
    TranslationUnit,
    Type,
    TypeKind,
)

Json = dict[str, Any]

VARIANT = re.compile(r"^(?P<base>.+?)(?:_v(?P<version>\d+))?(?:_(?P<stream>ptsz|ptds))?$")
NUMBER = re.compile(r"^(0[xX][0-9a-fA-F]+|\d+)[uUlL]*$")


class HeaderError(Exception):
    """The headers are missing or not of the shape that the importer knows."""


@dataclass
class Library:
    """What one parse saw in the named headers."""

    functions: list[Json] = field(default_factory=list)
    types: list[Json] = field(default_factory=list)
    constants: list[Json] = field(default_factory=list)
    remapped: dict[str, str] = field(default_factory=dict)
    """Public name -> exported name, for the names that the header maps by macro."""


def builtin_include() -> str:
    """gcc's folder of stddef.h and friends: the libclang wheel brings none."""
    try:
        found = subprocess.run(
            ["gcc", "-print-file-name=include"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise HeaderError(f"gcc is needed for its stddef.h: {error}") from error
    return found


def parse_unit(
    include: Path,
    source: str,
    language: str,
    macros: Sequence[str],
    tolerant: bool = False,
) -> TranslationUnit:
    """Parse a source text; raise HeaderError on the first error.

    `tolerant` accepts errors in inline device code, which only nvcc can compile.
    """
    standard = "-std=c11" if language == "c" else "-std=c++17"
    name = "import.c" if language == "c" else "import.cpp"
    unit = Index.create().parse(
        name,
        args=[
            "-x",
            language,
            standard,
            "-w",
            f"-I{include}",
            "-isystem",
            builtin_include(),
            *macros,
        ],
        unsaved_files=[(name, source)],
        options=TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
    )
    worst = Diagnostic.Fatal if tolerant else Diagnostic.Error
    for diagnostic in unit.diagnostics:
        if diagnostic.severity >= worst:
            raise HeaderError(
                f"{diagnostic.location.file}:{diagnostic.location.line}: {diagnostic.spelling}"
            )
    return unit


def parse_library(
    include: Path,
    source: str,
    language: str,
    macros: Sequence[str],
    headers: Sequence[str],
    tolerant: bool = False,
) -> Library:
    """Collect everything that `headers` declare when `source` includes them."""
    for header in headers:
        if not any((include / d / header).exists() for d in ("", "crt")):
            raise HeaderError(
                f"{include} holds no {header}; unpack the wheel that carries it there"
            )
    unit = parse_unit(include, source, language, macros, tolerant)
    library = Library()
    bodies: dict[str, tuple[str, list[str]]] = {}
    for cursor in declarations(unit.cursor):
        location = cursor.location.file
        header = Path(location.name).name if location else ""
        if header not in headers:
            continue
        if cursor.kind == CursorKind.MACRO_DEFINITION:
            tokens = [t.spelling for t in cursor.get_tokens()]
            bodies[cursor.spelling] = (header, tokens[1:])
        elif cursor.kind == CursorKind.FUNCTION_DECL:
            if cursor.storage_class != StorageClass.STATIC and not cursor.is_definition():
                library.functions.append(function_row(cursor, header))
        elif tolerant:
            continue
        elif cursor.kind == CursorKind.ENUM_DECL:
            library.types.append(enum_row(cursor, header))
        elif cursor.kind in (CursorKind.STRUCT_DECL, CursorKind.UNION_DECL):
            library.types.append(record_row(cursor, header))
        elif cursor.kind == CursorKind.TYPEDEF_DECL:
            row = typedef_row(cursor, header)
            if row:
                library.types.append(row)
    library.types = without_repeats(library.types)
    names = {f["name"] for f in library.functions}
    enumerators = {v[0] for t in library.types if t["kind"] == "enum" for v in t["values"]}
    library.remapped = remapped_names(bodies, names)
    library.constants = constant_rows(bodies, names, enumerators)
    return library


def declarations(cursor: Cursor) -> Iterator[Cursor]:
    """Yield top-level cursors, those inside extern "C" too."""
    for child in cursor.get_children():
        if child.kind in (CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL):
            yield from declarations(child)
        else:
            yield child


def split_name(name: str) -> tuple[str, int, str]:
    """cuMemcpyHtoD_v2_ptds -> ("cuMemcpyHtoD", 2, "ptds")."""
    match = VARIANT.match(name)
    assert match
    return match["base"], int(match["version"] or 1), match["stream"] or ""


def function_row(cursor: Cursor, header: str) -> Json:
    """Describe a function's declaration."""
    base, version, stream = split_name(cursor.spelling)
    params = []
    for index, argument in enumerate(cursor.get_arguments()):
        name = argument.spelling or f"arg{index}"
        params.append([name, argument.type.spelling, argument.type.get_canonical().spelling])
    return {
        "name": cursor.spelling,
        "base": base,
        "version": version,
        "stream": stream,
        "header": header,
        "returns": cursor.result_type.spelling,
        "params": params,
    }


def is_nameless(cursor: Cursor) -> bool:
    """Tell whether a record or enum has neither tag nor typedef name."""
    return not cursor.spelling or "(" in cursor.spelling or cursor.is_anonymous()


def typedef_only(cursor: Cursor) -> bool:
    """`typedef struct {...} X;`: libclang names the record X although it has no tag."""
    if is_nameless(cursor):
        return True
    tokens = [t.spelling for _, t in zip(range(4), cursor.get_tokens(), strict=False)]
    return "{" in tokens[:2]


def enum_row(cursor: Cursor, header: str) -> Json:
    """Describe an enum."""
    values = [
        [c.spelling, c.enum_value]
        for c in cursor.get_children()
        if c.kind == CursorKind.ENUM_CONSTANT_DECL
    ]
    row: Json = {"kind": "enum", "tag": None if typedef_only(cursor) else cursor.spelling}
    if typedef_only(cursor) and not is_nameless(cursor):
        row["name"] = cursor.spelling
    return {**row, "header": header, "values": values}


def record_row(cursor: Cursor, header: str) -> Json:
    """Describe a struct or union with its layout, or its forward declaration."""
    kind = "union" if cursor.kind == CursorKind.UNION_DECL else "struct"
    row: Json = {"kind": kind, "tag": None if typedef_only(cursor) else cursor.spelling}
    if row["tag"] is None and not is_nameless(cursor):
        row["name"] = cursor.spelling
    row["header"] = header
    if not cursor.is_definition():
        return {**row, "opaque": True}
    size, align = cursor.type.get_size(), cursor.type.get_align()
    return {**row, "size": size, "align": align, "fields": fields_of(cursor, 0)}


def fields_of(cursor: Cursor, base: int) -> list[Json]:
    """Fields in order with absolute byte offsets; nested records carry their own fields."""
    nested: dict[int, Cursor] = {}
    rows: list[Json] = []
    named = {record_of(c).hash for c in cursor.get_children() if c.kind == CursorKind.FIELD_DECL}
    for child in cursor.get_children():
        if child.kind in (CursorKind.STRUCT_DECL, CursorKind.UNION_DECL):
            nested[child.hash] = child
            if is_nameless(child) and child.hash not in named:
                members = fields_of(child, base_of_anonymous(cursor, child, base))
                kind = "union" if child.kind == CursorKind.UNION_DECL else "struct"
                rows.append({"anonymous": kind, "fields": members})
        elif child.kind == CursorKind.FIELD_DECL:
            if child.is_bitfield():
                raise HeaderError(f"bit field {child.spelling} in {cursor.spelling}: not modelled")
            rows.append(field_row(child, nested, base))
    return rows


def record_of(field_cursor: Cursor) -> Cursor:
    """The declaration of a field's type, arrays taken off."""
    ctype = field_cursor.type
    while ctype.kind == TypeKind.CONSTANTARRAY:
        ctype = ctype.element_type
    return ctype.get_declaration()


def base_of_anonymous(parent: Cursor, child: Cursor, base: int) -> int:
    """Offset of an anonymous member: its first field's, asked of the parent by name."""
    for candidate in child.get_children():
        if candidate.kind == CursorKind.FIELD_DECL and candidate.spelling:
            outer = int(parent.type.get_offset(candidate.spelling))
            inner = int(child.type.get_offset(candidate.spelling))
            if outer >= 0:
                return base + (outer - inner) // 8
        if (
            candidate.kind in (CursorKind.STRUCT_DECL, CursorKind.UNION_DECL)
            and candidate.is_anonymous()
        ):
            return base_of_anonymous(parent, candidate, base)
    raise HeaderError(f"cannot place an anonymous member of {parent.spelling}")


def field_row(child: Cursor, nested: dict[int, Cursor], base: int) -> Json:
    """Describe one named field."""
    offset = base + child.get_field_offsetof() // 8
    ctype, dims = child.type, []
    while ctype.kind == TypeKind.CONSTANTARRAY:
        dims.append(ctype.element_count)
        ctype = ctype.element_type
    row: Json = {"name": child.spelling, "offset": offset, "size": child.type.get_size()}
    declaration = ctype.get_declaration()
    inline = nested.get(declaration.hash) if declaration.kind != CursorKind.NO_DECL_FOUND else None
    if inline is not None:
        row["inline"] = "union" if inline.kind == CursorKind.UNION_DECL else "struct"
        row["tag"] = None if is_nameless(inline) else inline.spelling
        row["fields"] = fields_of(inline, 0)
    else:
        row["type"] = ctype.spelling
    if dims:
        row["dims"] = dims
    return row


def typedef_row(cursor: Cursor, header: str) -> Json | None:
    """Describe a typedef; None when it only names an untagged record or enum."""
    underlying = cursor.underlying_typedef_type
    declaration = underlying.get_declaration()
    tagged = (CursorKind.STRUCT_DECL, CursorKind.UNION_DECL, CursorKind.ENUM_DECL)
    if (
        declaration.kind in tagged
        and underlying.kind != TypeKind.TYPEDEF
        and typedef_only(declaration)
    ):
        return None  # the declaration row carries the name
    row: Json = {"kind": "typedef", "name": cursor.spelling, "header": header}
    pointee = underlying.get_pointee() if underlying.kind == TypeKind.POINTER else None
    if pointee is not None and pointee.get_canonical().kind == TypeKind.FUNCTIONPROTO:
        parameters = [c for c in cursor.get_children() if c.kind == CursorKind.PARM_DECL]
        row["kind"] = "function_pointer"
        row["returns"] = pointee.get_result().spelling
        row["params"] = [
            [p.spelling or f"arg{i}", p.type.spelling] for i, p in enumerate(parameters)
        ]
        return row
    row["type"] = spell(underlying)
    return row


def spell(ctype: Type) -> str:
    """Return a type as the header spells it."""
    return str(ctype.spelling)


def without_repeats(types: list[Json]) -> list[Json]:
    """Headers repeat typedefs and forward declarations; the first of each is enough."""
    seen: set[str] = set()
    result: list[Json] = []
    for row in types:
        if row.get("opaque"):
            key = f"forward {row['tag']}"
            if f"full {row['tag']}" in seen:
                continue
        elif row["kind"] in ("typedef", "function_pointer"):
            key = f"typedef {row['name']}"
        else:
            key = f"full {row['tag'] or row.get('name') or row['values'][0][0]}"
        if key not in seen:
            seen.add(key)
            result.append(row)
    return result


def remapped_names(bodies: dict[str, tuple[str, list[str]]], functions: set[str]) -> dict[str, str]:
    """Find macros that give a function another exported name."""
    return {
        name: tokens[0]
        for name, (_, tokens) in sorted(bodies.items())
        if len(tokens) == 1 and tokens[0] in functions
    }


def constant_rows(
    bodies: dict[str, tuple[str, list[str]]], functions: set[str], enumerators: set[str]
) -> list[Json]:
    """Object-like macros that are integers, casts of integers, or other names of enumerators."""
    rows: list[Json] = []
    for name in bodies:
        header, tokens = bodies[name]
        if not re.match(r"^(cuda|CUDA|CU_|NVCL|CUDART|NVML_)", name) or name in functions:
            continue
        if len(tokens) == 1 and tokens[0] in enumerators:
            rows.append({"name": name, "header": header, "alias": tokens[0]})
            continue
        evaluated = evaluate(tokens, bodies)
        if evaluated:
            cast, value = evaluated
            row: Json = {"name": name, "header": header, "value": value}
            if cast:
                row["cast"] = cast
            rows.append(row)
    return rows


def evaluate(tokens: list[str], bodies: dict[str, tuple[str, list[str]]]) -> tuple[str, int] | None:
    """Return (cast, value) of an integer macro, or None when it is no integer."""
    while len(tokens) >= 2 and tokens[0] == "(" and closing(tokens, 0) == len(tokens) - 1:
        tokens = tokens[1:-1]
    if len(tokens) >= 3 and tokens[0] == "(":
        end = closing(tokens, 0)
        inside = tokens[1:end]
        if inside and all(re.match(r"^([A-Za-z_]\w*|\*)$", t) for t in inside):
            rest = evaluate(tokens[end + 1 :], bodies)
            return (" ".join(inside).replace(" *", "*"), rest[1]) if rest else None
    if len(tokens) == 2 and tokens[0] == "-" and NUMBER.match(tokens[1]):
        return "", -int(tokens[1].rstrip("uUlL"), 0)
    if len(tokens) != 1:
        return None
    if NUMBER.match(tokens[0]):
        return "", int(tokens[0].rstrip("uUlL"), 0)
    if tokens[0] in bodies and bodies[tokens[0]][1] != tokens:
        return evaluate(bodies[tokens[0]][1], bodies)
    return None


def closing(tokens: list[str], start: int) -> int:
    """Return the index of the parenthesis that closes the one at `start`, or -1."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[index], 0)
        if depth == 0:
            return index
    return -1
