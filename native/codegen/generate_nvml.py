# SPDX-License-Identifier: Apache-2.0
"""Generates what libnvidia-ml.so.1 (native/client/nvml) is made of.

Its header, the functions that are not supported, error texts and the linker's map. Runs in every
build, for one folder.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import c_text
import yaml
from generate_abi import Writer, write_header
from imported import RegistryError, load_library
from model import API
from names import error_rows

SONAME = "libnvidia-ml.so.1"


def generate(out: Path, api: Path) -> None:
    """Write everything under `out`; RegistryError where nvml.yaml names what is not exported."""
    library = load_library(api / "imported" / "cuda13", "nvml")
    rules = yaml.safe_load((api / "nvml.yaml").read_text())
    unknown = set(rules["hand"]) - library.functions.keys()
    if unknown:
        raise RegistryError(f"nvml.yaml: hand: NVML exports no {', '.join(sorted(unknown))}")
    writer = Writer(out)
    write_header(
        writer,
        library,
        list(library.types),
        "abi/nvml.h",
        title=f"The management library ({SONAME})",
        guard="SLUICE_ABI_NVML_H",
        version="13.0",
        includes=["<assert.h>", "<stdalign.h>", "<stddef.h>", "<stdint.h>"],
    )
    writer.render(
        "nvml_unsupported.inc.j2",
        "client/unsupported_nvml.inc",
        prototypes=[
            c_text.prototype(f, named=False)
            for f in library.functions.values()
            if f.name not in rules["hand"]
        ],
        errors=error_rows(
            library.enum("nvmlReturn_enum"), "NVML_ERROR_", dict(rules["error_strings"])
        ),
    )
    writer.render(
        "exports_library.map.j2",
        "exports/libnvidia-ml.map",
        library=SONAME,
        node="",
        names=sorted(library.functions),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Generate the parts of libnvidia-ml.so.1.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the generated files")
    parser.add_argument("--api", type=Path, default=API, help="folder of the registry")
    options = parser.parse_args(arguments)
    try:
        generate(options.out, options.api)
    except RegistryError as error:
        print(f"generate_nvml: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
