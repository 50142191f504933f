# SPDX-License-Identifier: Apache-2.0
"""Generate the ABI side of the registry: headers, name tables, linker maps, stubs, coverage.

Runs in every build (native/codegen/CMakeLists.txt) and by hand:

    python native/codegen/generate_abi.py --out build/generated
    python native/codegen/generate_abi.py --update-ids     # after annotating a new function

Reads native/api and templates/native; needs jinja2 and pyyaml, neither a CUDA toolkit nor its
headers. A file is rewritten only when its text changes, so that builds stay incremental.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import c_text
import jinja2
from coverage_table import coverage_sections, library_sections
from generate_majors import generate_major
from imported import ImportedFunction, ImportedLibrary, RegistryError, TypeDeclaration
from libraries import Library, load_libraries
from model import API, ROOT, Registry
from names import error_rows
from profiling import generate_profiling
from registry import FIRST_ID, load_registry, missing_ids
from variants import PerThreadVariant


class Writer:
    """Renders templates into the output folder."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(ROOT / "templates" / "native"),
            undefined=jinja2.StrictUndefined,
            keep_trailing_newline=True,
        )

    def render(self, template: str, target: str, **values: Any) -> None:
        """Write `target` unless it has that text already."""
        text = self.environment.get_template(template).render(**values)
        path = self.out / target
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def declared_names(types: tuple[TypeDeclaration, ...]) -> set[str]:
    """What a header already declares: "typedef X", "full X" (a complete tag), "forward X"."""
    names: set[str] = set()
    for t in types:
        if t.kind in ("typedef", "function_pointer"):
            names.add(f"typedef {t.name}")
        else:
            names.add(f"{'forward' if t.opaque else 'full'} {t.tag or t.name}")
    return names


def without(types: tuple[TypeDeclaration, ...], present: set[str]) -> list[TypeDeclaration]:
    """Drop what the driver's header declares too: the runtime's header includes it."""
    result = []
    for t in types:
        shadowed = t.opaque and f"full {t.tag}" in present
        if not declared_names((t,)) <= present and not shadowed:
            result.append(t)
    return result


def write_header(
    writer: Writer,
    library: ImportedLibrary,
    types: list[TypeDeclaration],
    target: str,
    **values: Any,
) -> None:
    """Write one ABI header."""
    writer.render(
        "abi_header.h.j2",
        target,
        types=[c_text.type_text(t) for t in types],
        constants=[c_text.constant_text(c) for c in library.constants],
        prototypes=[c_text.prototype(f) for f in library.functions.values()],
        checks=[check for t in types for check in c_text.layout_checks(t)],
        **values,
    )


def cuda_number(driver: ImportedLibrary) -> int:
    """CUDA_VERSION, 13000."""
    number = next(c.value for c in driver.constants if c.name == "CUDA_VERSION")
    assert number is not None
    return number


def cuda_version(driver: ImportedLibrary) -> str:
    """CUDA_VERSION as people write it, "13.0"."""
    number = cuda_number(driver)
    return f"{number // 1000}.{number % 1000 // 10}"


def generate_headers(writer: Writer, registry: Registry) -> None:
    """abi/cuda_driver.h and abi/cuda_runtime.h."""
    driver, runtime = registry.driver, registry.runtime
    write_header(
        writer,
        driver,
        list(driver.types),
        "abi/cuda_driver.h",
        title="The CUDA driver API (libcuda.so.1)",
        guard="SLUICE_ABI_CUDA_DRIVER_H",
        version=cuda_version(driver),
        includes=[
            *("<assert.h>", "<stdalign.h>", "<stddef.h>", "<stdint.h>"),
            '"abi/profiled_driver.h"',
        ],
    )
    write_header(
        writer,
        runtime,
        without(runtime.types, declared_names(driver.types)),
        "abi/cuda_runtime.h",
        title="The CUDA runtime API and the host ABI of nvcc (libcudart)",
        guard="SLUICE_ABI_CUDA_RUNTIME_H",
        version=cuda_version(driver),
        includes=[
            '"abi/cuda_driver.h"',
            '"abi/profiled_runtime.h"',
            '"abi/runtime_version.h"',
        ],
    )
    writer.render(
        "abi_runtime_version.h.j2",
        "abi/runtime_version.h",
        newest=cuda_number(driver),
        majors=registry.majors,
    )


def runtime_exports(registry: Registry) -> list[str]:
    """Every name that our libcudart exports."""
    return sorted({*registry.runtime.functions, *registry.runtime_undeclared})


def generate_tables(writer: Writer, registry: Registry) -> None:
    """Names, numbers, entry points and linker maps."""
    driver_names = registry.driver_exports()
    runtime_names = runtime_exports(registry)
    for library, stem, names in (
        ("libcuda.so.1", "driver", sorted(registry.driver.functions)),
        ("libcudart.so.13", "runtime", runtime_names),
    ):
        writer.render(
            "abi_functions.inc.j2",
            f"abi/{stem}_functions.inc",
            library=library,
            macro=f"SLUICE_{stem.upper()}_FUNCTION",
            names=names,
        )
    declared = registry.driver.proc_address
    for target, found in (
        ("abi/proc_address.inc", declared),
        ("client/proc_address.inc", (*declared, *registry.driver_undeclared)),
    ):
        rows = sorted(found, key=lambda r: (r.symbol, bool(r.stream), r.version))
        writer.render("abi_proc_address.inc.j2", target, rows=rows)
    writer.render(
        "unsupported_undeclared.inc.j2",
        "client/undeclared_driver.inc",
        names=[row.exported for row in registry.driver_undeclared],
    )
    results, errors = registry.driver.enum("CUresult"), registry.runtime.enum("cudaError")
    writer.render(
        "abi_names.h.j2",
        "abi/names.h",
        errors=[
            ("kDriverErrors", error_rows(results, "CUDA_ERROR_", registry.error_strings)),
            ("kRuntimeErrors", error_rows(errors, "cudaError", registry.error_strings)),
        ],
        functions=[("kDriverFunctions", driver_names), ("kRuntimeFunctions", runtime_names)],
    )
    ids = [(f.name, f.id) for f in registry.wire_functions()]
    writer.render("abi_function_ids.h.j2", "abi/function_ids.h", ids=ids)
    for target, library, node, names in (
        ("exports/libcuda.map", "libcuda.so.1", "", driver_names),
        ("exports/libcudart.map", "libcudart.so.13", "libcudart.so.13 ", runtime_names),
    ):
        internal = (
            [
                "sluice_library_*",
                "sluice_nvml_*",
                "sluice_job_*",
                "sluice_runtime_*",
                "sluice_profile_*",
            ]
            if library == "libcuda.so.1"
            else []
        )
        writer.render(
            "exports_library.map.j2", target, library=library, node=node, names=[*names, *internal]
        )


def answer(function: ImportedFunction) -> str:
    """How an unsupported function returns."""
    known = {
        "CUresult": "return CUDA_ERROR_NOT_SUPPORTED;",
        "cudaError_t": "return cudaErrorNotSupported;",
        "void": "return;",
    }
    return known.get(function.returns, "return {};")


def generate_stubs(writer: Writer, registry: Registry) -> None:
    """client/unsupported_*.inc and client/variants_*.inc."""
    undeclared = [n for n in registry.runtime_undeclared if n not in registry.runtime_hand]
    for stem, library, header, functions, extra, refusal in (
        (
            "driver",
            "libcuda.so.1",
            "abi/cuda_driver.h",
            registry.unsupported_driver(),
            [row.exported for row in registry.driver_undeclared],
            "CUDA_ERROR_NOT_SUPPORTED",
        ),
        (
            "runtime",
            "libcudart.so.13",
            "abi/cuda_runtime.h",
            registry.unsupported_runtime(),
            undeclared,
            "cudaErrorNotSupported",
        ),
    ):
        writer.render(
            "unsupported_library.inc.j2",
            f"client/unsupported_{stem}.inc",
            library=library,
            header=header,
            undeclared=extra,
            refusal=refusal,
            functions=[
                {"name": f.name, "prototype": c_text.prototype(f, named=False), "answer": answer(f)}
                for f in functions
            ],
        )
    refusals = [f for f in registry.functions.values() if f.refusal_generated]
    writer.render(
        "refused_driver.inc.j2",
        "client/refused_driver.inc",
        functions=[
            {
                "prototype": c_text.prototype(registry.driver.functions[f.name], named=False),
                "status": f.annotation.answers,
            }
            for f in refusals
        ],
    )
    aliases = [
        {
            "prototype": c_text.prototype(registry.driver.functions[old]),
            "target": target,
            "arguments": ", ".join(p.name for p in registry.driver.functions[old].params),
        }
        for old, target in sorted(registry.aliases.items())
    ]
    writer.render(
        "abi_variants.inc.j2",
        "client/variants_driver.inc",
        library="libcuda.so.1",
        header="abi/cuda_driver.h",
        aliases=aliases,
        variants=[variant_values(v) for v in registry.variants.values()],
        per_thread="CU_STREAM_PER_THREAD",
        result="CUresult",
        success="CUDA_SUCCESS",
        synchronize="cuStreamSynchronize",
    )
    writer.render(
        "abi_variants.inc.j2",
        "client/variants_runtime.inc",
        library="libcudart.so.13",
        header="abi/cuda_runtime.h",
        aliases=[],
        variants=[variant_values(v) for v in registry.runtime_variants.values()],
        per_thread="cudaStreamPerThread",
        result="cudaError_t",
        success="cudaSuccess",
        synchronize="cudaStreamSynchronize",
    )


def variant_values(variant: PerThreadVariant) -> dict[str, Any]:
    """Prepare what the template needs of a variant."""
    return {
        "prototype": c_text.prototype(variant.function),
        "target": variant.target,
        "arguments": ", ".join(variant.arguments),
        "plain_arguments": ", ".join(p.name for p in variant.function.params),
        "waits": variant.waits,
        "record": variant.record,
    }


def generate(out: Path, registry: Registry, libraries: list[Library], api: Path = API) -> None:
    """Write everything under `out`."""
    writer = Writer(out)
    generate_headers(writer, registry)
    generate_tables(writer, registry)
    generate_stubs(writer, registry)
    for major in registry.majors:
        generate_major(writer, major)
    generate_profiling(writer, api, registry)
    writer.render(
        "coverage_table.md.j2",
        "docs/api-coverage.md",
        version=cuda_version(registry.driver),
        sections=coverage_sections(registry),
        libraries=library_sections(libraries),
    )


def update_ids(path: Path, registry: Registry) -> list[str]:
    """Append an id for every function that crosses the wire and has none."""
    new = missing_ids(registry)
    first = max(registry.ids.values(), default=FIRST_ID - 1) + 1
    with path.open("a") as file:
        for number, name in enumerate(new, first):
            file.write(f"{number} {name}\n")
    return new


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Generate the ABI headers, tables and stubs.")
    parser.add_argument("--out", type=Path, help="folder for the generated files")
    parser.add_argument("--api", type=Path, default=API, help="folder of the registry")
    parser.add_argument("--update-ids", action="store_true", help="append missing ids to ids.lock")
    options = parser.parse_args(arguments)
    try:
        registry = load_registry(options.api)
        if options.update_ids:
            for name in update_ids(options.api / "ids.lock", registry):
                print(f"new id: {name}")
            registry = load_registry(options.api)
        missing = missing_ids(registry)
        if missing:
            raise RegistryError(
                f"ids.lock: no id for {', '.join(missing)}; run "
                "python native/codegen/generate_abi.py --update-ids and commit ids.lock"
            )
        if options.out:
            generate(options.out, registry, load_libraries(options.api), options.api)
    except RegistryError as error:
        print(f"generate_abi: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
