# SPDX-License-Identifier: Apache-2.0
"""Spell imported facts as C: declarators, type declarations, layout checks, prototypes.

Used by generate_abi.py and usable by every other generator. The text compiles as C11 and C++20.
"""

from __future__ import annotations

from collections.abc import Iterator

from imported import Constant, Field, ImportedFunction, TypeDeclaration

LARGEST_NATURAL_ALIGNMENT = 8
"""On x86-64 without long double and vectors, which the API does not use."""


def declare(ctype: str, name: str, dims: tuple[int, ...] = ()) -> str:
    """declare("void (*)(int)", "f") -> "void (*f)(int)"."""
    suffix = "".join(f"[{n}]" for n in dims)
    if "(*)" in ctype:
        return ctype.replace("(*)", f"(*{name}{suffix})", 1)
    space = "" if ctype.endswith("*") else " "
    return f"{ctype}{space}{name}{suffix}"


def prototype(function: ImportedFunction, named: bool = True) -> str:
    """Return the prototype without its semicolon, so that a definition can use it too."""
    params = ", ".join(declare(p.ctype, p.name) if named else p.ctype for p in function.params)
    return f"{declare(function.returns, function.name)}({params or 'void'})"


def type_text(declaration: TypeDeclaration) -> str:
    """Return the declaration of a type, with its semicolon."""
    if declaration.opaque:
        return f"{declaration.spelling};"
    if declaration.kind == "typedef":
        return f"typedef {declare(declaration.ctype, str(declaration.name))};"
    if declaration.kind == "function_pointer":
        params = ", ".join(declare(ctype, name) for name, ctype in declaration.params) or "void"
        return f"typedef {declaration.returns} (*{declaration.name})({params});"
    head = (
        f"{declaration.kind} {declaration.tag}"
        if declaration.tag
        else f"typedef {declaration.kind}"
    )
    tail = ";" if declaration.tag else f" {declaration.name or ''};"
    if not declaration.tag and not declaration.name:
        head, tail = declaration.kind, ";"
    if declaration.kind == "enum":
        body = "".join(f"  {name} = {number(value)},\n" for name, value in declaration.values)
        return f"{head} {{\n{body}}}{tail}"
    if declaration.align > LARGEST_NATURAL_ALIGNMENT:
        attribute = f"{declaration.kind} __attribute__((aligned({declaration.align})))"
        head = head.replace(declaration.kind, attribute, 1)
    return f"{head} {{\n{''.join(field_lines(declaration.fields, 1))}}}{tail}"


def number(value: int) -> str:
    """Spell an enumerator so that C and C++ give it the same value."""
    if value > 0x7FFFFFFF:
        return f"{value:#x}u"
    return "(-2147483647 - 1)" if value == -(1 << 31) else str(value)


def field_lines(fields: tuple[Field, ...], depth: int) -> Iterator[str]:
    """Yield the lines of a record's fields."""
    pad = "  " * depth
    for field in fields:
        if field.inline is None:
            yield f"{pad}{declare(str(field.ctype), str(field.name), field.dims)};\n"
            continue
        tag = f" {field.tag}" if field.tag else ""
        yield f"{pad}{field.inline}{tag} {{\n"
        yield from field_lines(field.fields, depth + 1)
        dims = "".join(f"[{n}]" for n in field.dims)
        yield f"{pad}}}{' ' + field.name + dims if field.name else ''};\n"


def layout_checks(declaration: TypeDeclaration) -> Iterator[tuple[str, int]]:
    """(C constant expression, its value) for size, alignment and every named field's offset."""
    if declaration.kind not in ("struct", "union") or declaration.opaque:
        return
    name = declaration.spelling
    yield f"sizeof({name})", declaration.size
    yield f"alignof({name})", declaration.align
    for path, offset in offsets(declaration.fields, "", 0):
        yield f"offsetof({name}, {path})", offset


def offsets(fields: tuple[Field, ...], prefix: str, base: int) -> Iterator[tuple[str, int]]:
    """Yield every named field's path and absolute offset."""
    for field in fields:
        if field.name is None:
            yield from offsets(field.fields, prefix, base)
            continue
        yield f"{prefix}{field.name}", base + field.offset
        if field.inline and not field.dims:
            yield from offsets(field.fields, f"{prefix}{field.name}.", base + field.offset)


def constant_text(constant: Constant) -> str:
    """Return the `#define` of a constant."""
    if constant.alias:
        return f"#define {constant.name} {constant.alias}"
    value = number(constant.value or 0)
    text = (
        f"(({constant.cast}){value})"
        if constant.cast
        else (f"({value})" if value.startswith("-") else value)
    )
    return f"#define {constant.name} {text}"
