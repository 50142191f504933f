# SPDX-License-Identifier: Apache-2.0
"""Import the facts of the CUDA libraries' headers and export tables into the API registry.

A developer runs this once per release of a library; builds of Sluice only read what it wrote:

    python native/codegen/import_libraries.py --include DIR [--include ...] --lib DIR [--lib ...]
        --out native/api/imported/libraries

The include folders hold cublas_api.h, cudnn.h and so on and the CUDA headers that these include;
the lib folders hold the libraries of the same wheels, from which only the table of exported names
is read. One JSON file per library: functions with their parameters and sizes, enumerations, and
every exported name with its version node. No comment or line of a header is copied.

Libraries of an older CUDA version that have another SONAME are imported as differences, with the
headers and libraries of that version, behind those of the newest:

    python native/codegen/import_libraries.py --older 12 --include DIR12 --lib DIR12
        --out native/api/imported/libraries

writes native/api/imported/cuda12/libraries.json: what each lacks, and the functions that only it
declares.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clang.cindex import (  # type: ignore[import-untyped, unused-ignore]
    Cursor,
    CursorKind,
    Index,
    StorageClass,
    Type,
    TypeKind,
)
from header_parser import HeaderError, builtin_include, declarations

Json = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """Where one library's facts come from."""

    soname: str
    headers: tuple[str, ...]
    prefixes: tuple[str, ...]
    defines: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    """Headers that refuse to be included together with the others."""


SOURCES = {
    "cublas": Source(
        "libcublas.so.13",
        ("cublas_api.h", "cublasXt.h"),
        ("cublas",),
        ("-DCUBLASAPI=",),
        ("cublas.h",),
    ),
    "cublaslt": Source("libcublasLt.so.13", ("cublasLt.h",), ("cublasLt",)),
    "cudnn": Source(
        "libcudnn.so.9",
        (
            "cudnn_version.h",
            "cudnn_graph.h",
            "cudnn_ops.h",
            "cudnn_adv.h",
            "cudnn_cnn.h",
            "cudnn_backend.h",
            "cudnn.h",
        ),
        ("cudnn",),
    ),
    "cufft": Source("libcufft.so.12", ("cufft.h", "cufftXt.h"), ("cufft",)),
    "curand": Source("libcurand.so.10", ("curand.h",), ("curand",)),
    "cusparse": Source("libcusparse.so.12", ("cusparse.h",), ("cusparse",)),
    "cusolver": Source(
        "libcusolver.so.12",
        (
            "cusolver_common.h",
            "cusolverDn.h",
            "cusolverSp.h",
            "cusolverSp_LOWLEVEL_PREVIEW.h",
            "cusolverRf.h",
        ),
        ("cusolver",),
    ),
    "nccl": Source("libnccl.so.2", ("nccl.h",), ("nccl",)),
}


OLDER = {
    12: {
        "cublas": "libcublas.so.12",
        "cublaslt": "libcublasLt.so.12",
        "cufft": "libcufft.so.11",
        "cusolver": "libcusolver.so.11",
    },
}
"""SONAMEs by CUDA version and library, where they are not those of SOURCES."""


def find(folders: list[Path], name: str) -> Path:
    """Return the file in the first folder that has it."""
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    raise HeaderError(f"{name} is in none of {', '.join(map(str, folders))}")


def value_size(ctype: Type) -> int:
    """Bytes of one value; 0 for void and incomplete types."""
    return max(0, int(ctype.get_size()))


def is_float(ctype: Type) -> bool:
    """Tell whether a value travels in a floating point register."""
    return ctype.get_canonical().kind in (TypeKind.FLOAT, TypeKind.DOUBLE)


def param_row(argument: Cursor, index: int) -> Json:
    """Describe a parameter: its type as declared, its size, and the size of what it points to."""
    ctype = argument.type
    canonical = ctype.get_canonical()
    row: Json = {
        "name": argument.spelling or f"arg{index}",
        "type": ctype.spelling,
        "canonical": canonical.spelling,
        "size": value_size(ctype),
    }
    if canonical.kind in (TypeKind.POINTER, TypeKind.INCOMPLETEARRAY, TypeKind.CONSTANTARRAY):
        row["size"] = 8
        inner = (
            canonical.get_pointee()
            if canonical.kind == TypeKind.POINTER
            else canonical.element_type
        )
        row["pointee"] = 0 if inner.kind == TypeKind.FUNCTIONPROTO else value_size(inner)
        row["const"] = inner.is_const_qualified()
        if canonical.kind == TypeKind.CONSTANTARRAY:
            row["elements"] = canonical.element_count
    elif is_float(ctype):
        row["float"] = True
    return row


def function_row(cursor: Cursor) -> Json:
    """Describe a function's declaration."""
    return {
        "name": cursor.spelling,
        "returns": cursor.result_type.spelling,
        "returns_size": value_size(cursor.result_type),
        "params": [param_row(a, i) for i, a in enumerate(cursor.get_arguments())],
    }


def exported(library: Path) -> list[Json]:
    """Every dynamic symbol that the library defines, with its version node."""
    text = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True
    ).stdout
    rows = []
    for line in text.splitlines():
        kind, symbol = line.split()[-2:]
        name, _, node = symbol.partition("@@") if "@@" in symbol else symbol.partition("@")
        if kind != "A" and re.match(r"^[A-Za-z_]\w*$", name):
            rows.append({"name": name, "node": node})
    return sorted(rows, key=lambda r: r["name"])


def parse(headers: tuple[str, ...], source: Source, include: list[Path]) -> Cursor:
    """Parse headers together."""
    text = '#include "cuda_runtime_api.h"\n'
    text += "".join(f'#include "{header}"\n' for header in headers)
    arguments = ["-x", "c++", "-std=c++17", "-w", *source.defines]
    arguments += [f"-I{folder}" for folder in include] + ["-isystem", builtin_include()]
    unit = Index.create().parse("import.cpp", args=arguments, unsaved_files=[("import.cpp", text)])
    errors = [d for d in unit.diagnostics if d.severity >= 3]
    if errors:
        raise HeaderError(f"{errors[0].location.file}:{errors[0].location.line}: {errors[0]}")
    return unit.cursor


def import_library(source: Source, include: list[Path], lib: list[Path]) -> Json:
    """Parse one library's headers and read its export table."""
    functions: dict[str, Json] = {}
    enums: dict[str, list[tuple[str, int]]] = {}
    units = [parse(source.headers, source, include)]
    units += [parse((header,), source, include) for header in source.alone]
    for cursor in (c for unit in units for c in declarations(unit)):
        location = Path(cursor.location.file.name).name if cursor.location.file else ""
        ours = location.startswith(source.prefixes) or location in source.headers
        if cursor.kind == CursorKind.FUNCTION_DECL:
            static = cursor.storage_class == StorageClass.STATIC or cursor.is_definition()
            if cursor.spelling.startswith(source.prefixes) and not static:
                functions.setdefault(cursor.spelling, function_row(cursor))
        elif cursor.kind == CursorKind.ENUM_DECL and (ours or location == "library_types.h"):
            values = [
                (c.spelling, c.enum_value)
                for c in cursor.get_children()
                if c.kind == CursorKind.ENUM_CONSTANT_DECL
            ]
            if values:
                name = cursor.spelling if "(" not in cursor.spelling else values[0][0]
                enums[name] = values
    names = exported(find(lib, source.soname))
    known = {row["name"] for row in names}
    return {
        "soname": source.soname,
        "functions": [functions[name] for name in sorted(functions) if name in known],
        "enums": [{"name": name, "values": enums[name]} for name in sorted(enums)],
        "exports": names,
    }


def write(path: Path, data: Json) -> None:
    """Write one fact a line."""
    parts = [f'"soname": {json.dumps(data["soname"])}']
    for key in ("functions", "enums", "exports"):
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in data[key])
        parts.append(f'"{key}": [\n{lines}\n]')
    path.write_text("{" + ",\n".join(parts) + "}\n")


def difference(name: str, newest: Json, older: Json) -> Json:
    """Say what an older library lacks and what only it declares; no signature may differ."""
    declared = {row["name"]: row for row in newest["functions"]}
    exports = {row["name"] for row in newest["exports"]}
    theirs = {row["name"] for row in older["exports"]}
    for row in older["functions"]:
        other = declared.get(row["name"])
        if other and [p["size"] for p in row["params"]] != [p["size"] for p in other["params"]]:
            raise HeaderError(f"{name}: {row['name']} has other parameters in the older version")
    nodes = {row["node"] for row in older["exports"]}
    return {
        "library": name,
        "soname": older["soname"],
        "node": nodes.pop() if len(nodes) == 1 else "",
        "lacks": sorted(exports - theirs),
        "functions": [row for row in older["functions"] if row["name"] not in exports],
    }


def import_older(major: int, options: argparse.Namespace) -> None:
    """Write the differences of an older CUDA version's libraries."""
    rows = []
    for name, soname in OLDER[major].items():
        newest = json.loads((options.out / f"{name}.json").read_text())
        source = replace(SOURCES[name], soname=soname)
        row = difference(name, newest, import_library(source, options.include, options.lib))
        rows.append(row)
        print(f"{name}: lacks {len(row['lacks'])}, has {len(row['functions'])} of its own")
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    (options.out.parent / f"cuda{major}" / "libraries.json").write_text(f"[\n{lines}\n]\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Import the CUDA libraries' headers.")
    parser.add_argument("--include", type=Path, action="append", required=True)
    parser.add_argument("--lib", type=Path, action="append", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=sorted(SOURCES))
    parser.add_argument("--older", type=int, choices=sorted(OLDER), help="a CUDA version")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        if options.older:
            import_older(options.older, options)
            return 0
        for name in options.only or SOURCES:
            data = import_library(SOURCES[name], options.include, options.lib)
            write(options.out / f"{name}.json", data)
            undeclared = len(data["exports"]) - len(data["functions"])
            print(f"{name}: {len(data['functions'])} functions, {undeclared} names undeclared")
    except HeaderError as error:
        print(f"import_libraries: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
