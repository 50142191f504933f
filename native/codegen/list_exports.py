# SPDX-License-Identifier: Apache-2.0
"""Lists what the libraries of absent.yaml export, with the type that each function returns.

A developer runs this once per version of those libraries; builds only read what it wrote:

    pip download --no-deps -d wheels nvidia-cuda-cupti==13.0.85 …    # the `wheel` of each entry
    for w in wheels/*.whl; do python -m zipfile -e "$w" toolkit; done
    python native/codegen/list_exports.py --root toolkit

Names and versions come from the dynamic symbol table, return types from the headers beside it
(nvidia-cuda-runtime, -crt and -cusparse lie in the same folder). Libraries of an older CUDA version
are listed by `--only libcupti.so.12` from that version's wheels, unpacked elsewhere. Only facts
are written. Needs pyelftools, the libclang wheel, and g++ for its standard headers.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from clang.cindex import (  # type: ignore[import-untyped, unused-ignore]
    CursorKind,
    Diagnostic,
    Index,
    TranslationUnit,
)
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection
from elftools.elf.sections import SymbolTableSection
from header_parser import HeaderError, builtin_include, declarations

API = Path(__file__).resolve().parent.parent / "api"
Json = dict[str, Any]


def exports(path: Path) -> tuple[dict[str, str], set[str]]:
    """({name: "FUNC" or "OBJECT"}, version nodes) of a library's dynamic symbol table."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        symbols = elf.get_section_by_name(".dynsym")
        assert isinstance(symbols, SymbolTableSection)
        found = {
            symbol.name: symbol["st_info"]["type"].removeprefix("STT_")
            for symbol in symbols.iter_symbols()
            if symbol.name
            and symbol["st_shndx"] not in ("SHN_UNDEF", "SHN_ABS")
            and symbol["st_info"]["bind"] != "STB_LOCAL"
        }
        section = elf.get_section_by_name(".gnu.version_d")
        nodes = [
            (definition["vd_flags"], next(iter(names)).name)
            for definition, names in (
                section.iter_versions() if isinstance(section, GNUVerDefSection) else ()
            )
        ]
    return found, {name for flags, name in nodes if not flags & 1}


def parse(root: Path, headers: list[str]) -> TranslationUnit:
    """Parse headers as C++; device code inside them may be wrong, a missing file may not."""
    shown = subprocess.run(
        ["g++", "-E", "-x", "c++", "-", "-v"], input="", capture_output=True, text=True, check=True
    ).stderr
    system = re.search(r"search starts here:\n((?: /.*\n)+)", shown)
    folders = [*map(str.strip, system[1].splitlines())] if system else []
    own = [str(folder) for folder in sorted(root.glob("nvidia/*/include"))]
    unit = Index.create().parse(
        "list.cpp",
        args=[
            *("-x", "c++", "-std=c++17", "-w", "-ferror-limit=0", "-isystem", builtin_include()),
            *(f"-I{folder}" for folder in own),
            *(word for folder in folders for word in ("-isystem", folder)),
        ],
        unsaved_files=[("list.cpp", "".join(f'#include "{h}"\n' for h in headers))],
    )
    for diagnostic in unit.diagnostics:
        if diagnostic.severity >= Diagnostic.Fatal:
            raise HeaderError(f"{diagnostic.location}: {diagnostic.spelling}")
    return unit


def declared(unit: TranslationUnit, enums: list[str]) -> tuple[dict[str, str], Json]:
    """({function: type that it returns}, {enum: [[enumerator, value]]})."""
    functions: dict[str, str] = {}
    values: Json = {}
    for cursor in declarations(unit.cursor):
        if cursor.kind == CursorKind.FUNCTION_DECL:
            functions.setdefault(cursor.spelling, cursor.result_type.spelling)
        elif cursor.kind == CursorKind.TYPEDEF_DECL or cursor.kind == CursorKind.ENUM_DECL:
            enum = cursor
            if cursor.kind == CursorKind.TYPEDEF_DECL:
                enum = cursor.underlying_typedef_type.get_declaration()
            if cursor.spelling in enums and enum.kind == CursorKind.ENUM_DECL:
                values[cursor.spelling] = [
                    [child.spelling, child.enum_value]
                    for child in enum.get_children()
                    if child.kind == CursorKind.ENUM_CONSTANT_DECL
                ]
    return functions, values


def describe(root: Path, library: str, entry: Json) -> Json:
    """Everything that absent/<library>.json holds."""
    names, nodes = exports(root / entry["file"])
    returned, enums = declared(parse(root, entry["headers"]), entry["enums"])
    wanted = re.compile(entry["names"])
    kept = sorted(name for name in names if wanted.fullmatch(name))
    objects = [name for name in kept if names[name] != "FUNC"]
    if objects and not entry.get("objects_left_out"):
        raise HeaderError(f"{library} exports variables: {', '.join(objects)}")
    missing = set(entry["enums"]) - enums.keys()
    if missing or len(nodes) > 1:
        raise HeaderError(f"{library}: no enum {missing or ''}, or several versions: {nodes}")
    functions = [[name, returned.get(name)] for name in kept if name not in objects]
    return {"node": next(iter(nodes), ""), "enums": enums, "functions": functions}


def text_of(found: Json) -> str:
    """The file's text: one function a line, so that a new version reads as a difference."""
    rows = ",\n".join(json.dumps(row) for row in found["functions"])
    return (
        f'{{"node": {json.dumps(found["node"])},\n"enums": {json.dumps(found["enums"])},\n'
        f'"functions": [\n{rows}\n]}}\n'
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, required=True, help="folder of the unpacked wheels")
    parser.add_argument("--out", type=Path, default=API / "absent", help="folder to write to")
    parser.add_argument("--only", action="append", help="a library of absent.yaml, not all")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        for library, entry in yaml.safe_load((API / "absent.yaml").read_text()).items():
            if options.only and library not in options.only:
                continue
            found = describe(options.root, library, entry)
            (options.out / f"{library}.json").write_text(text_of(found))
            print(f"{library}: {len(found['functions'])} functions")
    except (HeaderError, OSError) as error:
        print(f"list_exports: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
