# SPDX-License-Identifier: Apache-2.0
r"""Import the facts of NVIDIA's public CUDA headers into the API registry.

A developer runs this once per CUDA version; builds of Sluice only read what it wrote:

    python native/codegen/import_headers.py --include DIR --out native/api/imported/cuda13
    python native/codegen/import_headers.py --include DIR --diff native/api/imported/cuda13
    python native/codegen/import_headers.py --include DIR12 --only runtime \
        --out native/api/imported/cuda12

`--only runtime` is for an older major version: the driver is one library for all of them. DIR
holds cuda.h, cuda_runtime_api.h and friends (PyPI: nvidia-cuda-runtime, nvidia-cuda-nvcc,
nvidia-cuda-crt, nvidia-cuda-profiler-api, nvidia-nvml-dev). It writes names, types, values, offsets
and sizes; no comment or line of a header is copied. The same headers give byte-identical files.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from header_parser import HeaderError, Library, parse_library
from proc_address import import_proc_address

Json = dict[str, Any]

DRIVER_HEADERS = ("cuda.h", "cudaProfiler.h")
RUNTIME_HEADERS = (
    "vector_types.h",
    "driver_types.h",
    "surface_types.h",
    "texture_types.h",
    "library_types.h",
    "cuda_runtime_api.h",
    "cuda_profiler_api.h",
)
HOST_ABI_HEADERS = ("device_functions.h", "host_runtime.h")
# Declared for nvcc's own use, but no part of the library: the device linker defines the first, the
# other two left libcudart with texture references in CUDA 12.
HOST_ABI_OUT = ("__cudaRegisterLinkedBinary", "__cudaRegisterTexture", "__cudaRegisterSurface")
# vector_types.h declares some fifty vectors; only these appear in the runtime's own signatures.
RUNTIME_VECTOR_TYPES = ("dim3", "uint3")

# Everything but the maxima that NVIDIA keeps for its own builds.
INTERNAL = ("-D__CUDA_API_VERSION_INTERNAL", "-D__CUDA_API_VERSION_INTERNAL_ODR")
PER_THREAD = ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",)


def import_driver(include: Path) -> dict[str, list[Json]]:
    """Import cuda.h, cudaProfiler.h and the tables of cuGetProcAddress."""
    source = "".join(f'#include "{h}"\n' for h in DRIVER_HEADERS)
    plain = parse_library(include, source, "c", (), DRIVER_HEADERS)
    per_thread = parse_library(include, source, "c", PER_THREAD, DRIVER_HEADERS)
    internal = parse_library(include, source, "c", INTERNAL, DRIVER_HEADERS)
    functions = merge_functions([internal, per_thread, plain], "cu")
    mark_current(functions, plain)
    return {
        "functions": functions,
        "types": public_enums(internal, plain),
        "constants": plain.constants,
        "proc_address": import_proc_address(include, functions, plain.remapped),
    }


def import_runtime(include: Path) -> dict[str, list[Json]]:
    """Import cuda_runtime_api.h and the host ABI of nvcc."""
    source = "".join(f'#include "{h}"\n' for h in RUNTIME_HEADERS)
    plain = parse_library(include, source, "c", (), RUNTIME_HEADERS)
    per_thread = parse_library(include, source, "c", PER_THREAD, RUNTIME_HEADERS)
    internal = parse_library(include, source, "c", INTERNAL, RUNTIME_HEADERS)
    # nvcc includes host_runtime.h twice: once in front of the device code, once behind it.
    host_source = (
        "#define __CUDACC__ 1\n#define __CUDACC_VER_MAJOR__ 13\n#define __CUDACC_VER_MINOR__ 0\n"
        "#define __NV_MODULE_ID sluice\n#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__\n"
        '#include "cuda_runtime_api.h"\n#include "crt/device_functions.h"\n'
        '#include "crt/host_runtime.h"\n#include "crt/host_runtime.h"\n'
    )
    host = parse_library(
        include, host_source, "c++", ("-ferror-limit=0",), HOST_ABI_HEADERS, tolerant=True
    )
    functions = merge_functions([internal, per_thread, plain], "cuda")
    mark_current(functions, plain)
    host_functions = merge_functions([host], "__cuda")
    required = {"__cudaRegisterFatBinary", "__cudaRegisterFunction", "__cudaPushCallConfiguration"}
    missing = required - {f["name"] for f in host_functions}
    if missing:
        raise HeaderError(
            f"the host ABI headers under {include}/crt declare no {', '.join(sorted(missing))}; "
            "look at how crt/host_runtime.h is included now and adapt import_runtime()"
        )
    host_functions = [f for f in host_functions if not f["name"].startswith(HOST_ABI_OUT)]
    for function in host_functions:
        function["current"] = True
    types = [
        t
        for t in public_enums(internal, plain)
        if t["header"] != "vector_types.h"
        or t.get("tag") in RUNTIME_VECTOR_TYPES
        or t.get("name") in RUNTIME_VECTOR_TYPES
    ]
    return {
        "functions": functions + host_functions,
        "types": types,
        "constants": [c for c in plain.constants if c["header"] != "vector_types.h"],
    }


def import_nvml(include: Path) -> dict[str, list[Json]]:
    """Import nvml.h, with the first versions of functions, which libraries still export."""
    source = '#include "nvml.h"\n'
    plain = parse_library(include, source, "c", (), ("nvml.h",))
    versions = ("-DNVML_NO_UNVERSIONED_FUNC_DEFS",)
    all_versions = parse_library(include, source, "c", versions, ("nvml.h",))
    functions = merge_functions([all_versions, plain], "nvml")
    mark_current(functions, plain)
    return {"functions": functions, "types": all_versions.types, "constants": plain.constants}


IMPORTERS = {"driver": import_driver, "runtime": import_runtime, "nvml": import_nvml}


def merge_functions(parses: list[Library], prefix: str) -> list[Json]:
    """Union by exported name, first parse wins, sorted by name."""
    found: dict[str, Json] = {}
    for library in parses:
        for function in library.functions:
            name = function["name"]
            if name.startswith(prefix) and "CDP" not in name:
                found.setdefault(name, function)
    return [found[name] for name in sorted(found)]


def mark_current(functions: list[Json], plain: Library) -> None:
    """A function is current when a program compiled today by plain cuda.h can reach it."""
    reachable = {f["name"] for f in plain.functions}
    for function in functions:
        function["current"] = function["name"] in reachable


def public_enums(internal: Library, plain: Library) -> list[Json]:
    """Types of the internal parse (it has the old layouts too) with the public enumerators."""
    by_key = {type_key(t): t for t in plain.types}
    result: list[Json] = []
    for declaration in internal.types:
        public = by_key.get(type_key(declaration))
        result.append(public if public and public["kind"] == "enum" else declaration)
    return result


def type_key(declaration: Json) -> str:
    """Name a type so that old and new imports can be compared."""
    name = declaration.get("tag") or declaration.get("name") or declaration["values"][0][0]
    suffix = " forward" if declaration.get("opaque") else ""
    kind = "typedef" if declaration["kind"] in ("typedef", "function_pointer") else "tag"
    return f"{kind} {name}{suffix}"


def write(out: Path, data: dict[str, dict[str, list[Json]]], version: int) -> None:
    """Write one file per library and part, one fact a line."""
    out.mkdir(parents=True, exist_ok=True)
    for library, parts in data.items():
        for part, rows in parts.items():
            path = out / f"{library}_{part}.json"
            lines = ",\n".join(json.dumps(r, separators=(", ", ": ")) for r in rows)
            path.write_text(f"[\n{lines}\n]\n")
    (out / "source.json").write_text(json.dumps({"cuda_version": version}) + "\n")


def diff(old_folder: Path, data: dict[str, dict[str, list[Json]]]) -> int:
    """Print what a new set of headers adds, changes and removes; returns the count."""
    count = 0
    for library, parts in data.items():
        for part, rows in parts.items():
            old_path = old_folder / f"{library}_{part}.json"
            old_rows = json.loads(old_path.read_text()) if old_path.exists() else []
            old, new = keyed(part, old_rows), keyed(part, rows)
            for key in sorted(old.keys() | new.keys()):
                if key not in old:
                    verb = "added"
                elif key not in new:
                    verb = "removed"
                elif old[key] != new[key]:
                    verb = "changed"
                else:
                    continue
                count += 1
                print(f"{verb:8} {library} {part}: {key}")
                if verb == "changed":
                    print(f"           was {json.dumps(old[key])}")
                    print(f"           now {json.dumps(new[key])}")
    print(f"{count} differences")
    return count


def keyed(part: str, rows: list[Json]) -> dict[str, Json]:
    """Index rows by what identifies them."""
    if part == "types":
        return {type_key(r): r for r in rows}
    if part == "proc_address":
        return {f"{r['symbol']} {r['version']} {r['stream']}": r for r in rows}
    return {r["name"]: r for r in rows}


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--include", type=Path, required=True, help="folder of the CUDA headers")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--out", type=Path, help="folder to write the JSON files to")
    target.add_argument("--diff", type=Path, help="folder to compare with; nothing is written")
    parser.add_argument("--only", choices=sorted(IMPORTERS), help="import this library only")
    options = parser.parse_args(arguments)
    try:
        data = {
            library: importer(options.include)
            for library, importer in IMPORTERS.items()
            if options.only in (None, library)
        }
    except HeaderError as error:
        print(f"import_headers: {error}", file=sys.stderr)
        return 1
    version = re.search(r"#define CUDA_VERSION +(\d+)", (options.include / "cuda.h").read_text())
    assert version, "cuda.h was parsed above"
    if options.diff:
        diff(options.diff, data)
    else:
        write(options.out, data, int(version[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
