# SPDX-License-Identifier: Apache-2.0
"""Generate the ABI side of the registry: headers, name tables, linker maps, stubs, coverage.

Runs in every build (native/codegen/CMakeLists.txt) and by hand:

    python native/codegen/generate_abi.py --out build/generated

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
from imported import ImportedLibrary, RegistryError, TypeDeclaration, load_library

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = ROOT / "native" / "api" / "imported" / "cuda13"


class Writer:
    """Renders templates into the output folder and remembers what it wrote."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.written: list[Path] = []
        self.environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(ROOT / "templates" / "native"),
            undefined=jinja2.StrictUndefined,
            keep_trailing_newline=True,
            trim_blocks=False,
        )

    def render(self, template: str, target: str, **values: Any) -> None:
        text = self.environment.get_template(template).render(**values)
        path = self.out / target
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        self.written.append(path)


def declared_names(types: tuple[TypeDeclaration, ...]) -> set[str]:
    """What a header already declares: "typedef X", "struct X" (complete), "forward X"."""
    names: set[str] = set()
    for t in types:
        if t.kind in ("typedef", "function_pointer"):
            names.add(f"typedef {t.name}")
        else:
            names.add(f"{'forward' if t.opaque else 'full'} {t.tag or t.name}")
    return names


def without(types: tuple[TypeDeclaration, ...], present: set[str]) -> list[TypeDeclaration]:
    """The runtime's header includes the driver's: what both declare is declared once."""
    result = []
    for t in types:
        names = declared_names((t,))
        shadowed = t.opaque and f"full {t.tag}" in present
        if not names <= present and not shadowed:
            result.append(t)
    return result


def write_header(
    writer: Writer, library: ImportedLibrary, types: list[TypeDeclaration], **values: Any
) -> None:
    writer.render(
        "abi_header.h.j2",
        values.pop("target"),
        types=[c_text.type_text(t) for t in types],
        constants=[c_text.constant_text(c) for c in library.constants],
        prototypes=[c_text.prototype(f) for f in library.functions.values()],
        checks=[check for t in types for check in c_text.layout_checks(t)],
        **values,
    )


def cuda_version(driver: ImportedLibrary) -> str:
    number = next(c.value for c in driver.constants if c.name == "CUDA_VERSION")
    assert number is not None
    return f"{number // 1000}.{number % 1000 // 10}"


def generate_headers(writer: Writer, driver: ImportedLibrary, runtime: ImportedLibrary) -> None:
    version = cuda_version(driver)
    write_header(
        writer,
        driver,
        list(driver.types),
        target="abi/cuda_driver.h",
        title="The CUDA driver API (libcuda.so.1)",
        guard="SLUICE_ABI_CUDA_DRIVER_H",
        version=version,
        includes=["<assert.h>", "<stdalign.h>", "<stddef.h>", "<stdint.h>"],
    )
    write_header(
        writer,
        runtime,
        without(runtime.types, declared_names(driver.types)),
        target="abi/cuda_runtime.h",
        title="The CUDA runtime API and the host ABI of nvcc (libcudart)",
        guard="SLUICE_ABI_CUDA_RUNTIME_H",
        version=version,
        includes=['"abi/cuda_driver.h"'],
    )


def generate(out: Path) -> list[Path]:
    writer = Writer(out)
    driver = load_library(IMPORTED, "driver")
    runtime = load_library(IMPORTED, "runtime")
    generate_headers(writer, driver, runtime)
    return writer.written


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Generate the ABI headers, tables and stubs.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the generated files")
    options = parser.parse_args(arguments)
    try:
        generate(options.out)
    except RegistryError as error:
        print(f"generate_abi: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
