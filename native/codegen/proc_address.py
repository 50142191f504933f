# SPDX-License-Identifier: Apache-2.0
"""Import which exported symbol answers cuGetProcAddress for each requested CUDA version.

Called by import_headers.py. cudaTypedefs.h names one typedef per version of every driver function
(PFN_cuMemAlloc_v3020, PFN_cuMemcpyHtoD_v7000_ptds): this pairs each with the exported function, in
order of version, checks the pair by signature, and refuses what it cannot pair.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from clang.cindex import (  # type: ignore[import-untyped, unused-ignore]
    CursorKind,
    TypeKind,
)
from header_parser import HeaderError, declarations, parse_unit

Json = dict[str, Any]

PFN = re.compile(r"^PFN_(?P<symbol>cu\w+?)_v(?P<version>\d{4,5})(?:_(?P<stream>ptsz|ptds))?$")
TYPEDEF_HEADERS = ("cudaTypedefs.h", "cudaProfilerTypedefs.h")


def import_proc_address(
    include: Path, functions: list[Json], remapped: dict[str, str]
) -> list[Json]:
    """Return one row per symbol, version and kind of default stream."""
    source = "".join(f'#include "{h}"\n' for h in TYPEDEF_HEADERS if (include / h).exists())
    macros = ("-D__CUDA_API_VERSION_INTERNAL", "-D__CUDA_API_VERSION_INTERNAL_ODR")
    unit = parse_unit(include, source, "c", macros)
    wanted: dict[tuple[str, str], list[tuple[int, list[str]]]] = defaultdict(list)
    for cursor in declarations(unit.cursor):
        match = PFN.match(cursor.spelling) if cursor.kind == CursorKind.TYPEDEF_DECL else None
        if match:
            prototype = cursor.underlying_typedef_type.get_pointee().get_canonical()
            kinds = (TypeKind.FUNCTIONPROTO, TypeKind.FUNCTIONNOPROTO)
            arguments = (
                [a.spelling for a in prototype.argument_types()] if prototype.kind in kinds else []
            )
            key = (match["symbol"], match["stream"] or "")
            wanted[key].append((int(match["version"]), arguments))
    exported: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for function in functions:
        exported[(function["base"], function["stream"])].append(function)
    for public, target in remapped.items():
        # cuGraphInstantiate is today another function's name, not a version of itself.
        chosen = next((f for f in functions if f["name"] == target), None)
        if chosen and chosen["base"] != public:
            exported[(public, "")].append(chosen)
    rows: list[Json] = []
    for (symbol, stream), versions in sorted(wanted.items()):
        candidates = sorted(exported.get((symbol, stream), []), key=lambda f: f["version"])
        for version, name in pair(symbol, stream, sorted(versions), candidates):
            rows.append({"symbol": symbol, "version": version, "stream": stream, "exported": name})
    return rows


def pair(
    symbol: str, stream: str, versions: list[tuple[int, list[str]]], candidates: list[Json]
) -> list[tuple[int, str]]:
    """Newest version with newest function and so downwards; signatures must agree."""
    if not candidates:
        raise HeaderError(f"cudaTypedefs.h names {symbol} {stream}, which cuda.h does not declare")
    result: list[tuple[int, str]] = []
    left = list(candidates)
    for version, arguments in reversed(versions):
        while left and [p[2] for p in left[-1]["params"]] != arguments:
            left.pop()
        if not left:
            raise HeaderError(
                f"no exported function has the signature of {symbol} at version {version} "
                f"{stream}: ({', '.join(arguments)})"
            )
        result.append((version, left.pop()["name"]))
    return result[::-1]
