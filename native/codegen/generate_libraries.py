# SPDX-License-Identifier: Apache-2.0
"""Generate the forwarding libraries and the worker's half of them from native/api/libraries.

Runs in every build (native/codegen/CMakeLists.txt) and by hand:

    python native/codegen/generate_libraries.py --out build/generated
    python native/codegen/generate_libraries.py --update-ids     # after adding functions
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import libraries
import proofs
from generate_abi import Writer
from imported import RegistryError
from libraries import FIRST_ID, LAST_ID, Library, load_libraries, objects_of
from library_params import KINDS
from model import API
from older_libraries import OlderLibrary


def generate(out: Path, all_libraries: list[Library]) -> None:
    """Write everything under `out`."""
    writer = Writer(out)
    objects = objects_of(all_libraries)
    shared = {
        "objects": objects,
        "kinds": KINDS,
        "proofs": proofs.PROOFS,
        "classes": libraries.CLASSES,
        "states": libraries.STATES,
    }
    for lib in all_libraries:
        for template, target in (
            ("library_table.inc.j2", f"library/{lib.name}_table.inc"),
            ("library_client.cc.j2", f"library/{lib.name}_client.cc"),
            ("library_worker.cc.j2", f"library/{lib.name}_worker.cc"),
            ("library_fake.cc.j2", f"library/{lib.name}_fake.cc"),
        ):
            writer.render(template, target, lib=lib, **shared)
        writer.render(
            "exports_library.map.j2",
            f"exports/lib{lib.name}.map",
            library=lib.soname,
            node=f"{lib.node} " if lib.node else "",
            names=lib.exports,
        )
        for older in lib.older:
            writer.render(
                "exports_library.map.j2",
                f"exports/lib{lib.name}_cuda{older.major}.map",
                library=older.soname,
                node=f"{older.node} " if older.node else "",
                names=sorted({*lib.exports, *(f.name for f in older.own)} - older.lacks),
            )
            if older.own:
                writer.render(
                    "library_older.cc.j2",
                    f"library/{lib.name}_cuda{older.major}.cc",
                    lib=lib,
                    older=older,
                    declared=declared_by(lib, older),
                )
    writer.render("library_older.inc.j2", "library/older.inc", libraries=all_libraries)
    writer.render("library_tables.cc.j2", "library/tables.cc", libraries=all_libraries)
    writer.render(
        "library_objects.h.j2", "library/objects.h", libraries=all_libraries, objects=objects
    )
    writer.render("library_names.cc.j2", "library/names.cc", libraries=all_libraries)


def declared_by(lib: Library, older: OlderLibrary) -> list[tuple[str, str]]:
    """Return the functions that an older library's own ones call, with their parameters."""
    names = {f.target for f in older.own} | {f.asks for f in older.own if f.asks}
    return [
        (f.name, ", ".join(f"{p.ctype} {p.name}" for p in f.params))
        for f in lib.functions
        if f.name in names
    ]


def missing(all_libraries: list[Library]) -> list[str]:
    """Functions that have no number yet."""
    functions = [f.name for lib in all_libraries for f in lib.functions if f.id == 0]
    return functions + [
        c for lib in all_libraries for c, number in lib.commands.items() if not number
    ]


def update_ids(path: Path, names: list[str], ids: dict[str, int]) -> None:
    """Append a number for each name."""
    first = max(ids.values(), default=FIRST_ID - 1) + 1
    if first + len(names) - 1 > LAST_ID:
        raise RegistryError(f"{path.name}: there are no numbers left below {LAST_ID}")
    with path.open("a") as file:
        for number, name in enumerate(names, first):
            file.write(f"{number} {name}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Generate the forwarding libraries.")
    parser.add_argument("--out", type=Path, help="folder for the generated files")
    parser.add_argument("--api", type=Path, default=API, help="folder of the registry")
    parser.add_argument("--update-ids", action="store_true", help="append missing numbers")
    options = parser.parse_args(arguments)
    lock = options.api / "library_ids.lock"
    try:
        loaded = load_libraries(options.api)
        if options.update_ids:
            update_ids(lock, missing(loaded), libraries.read_ids(lock))
            loaded = load_libraries(options.api)
        if missing(loaded):
            raise RegistryError(
                f"library_ids.lock: no number for {', '.join(missing(loaded)[:5])} …; run "
                "python native/codegen/generate_libraries.py --update-ids and commit the file"
            )
        if nobody := libraries.unproved(loaded):
            raise RegistryError(
                f"nobody proves what these point to: {', '.join(nobody[:5])} …; say their kind by "
                "a rule (native/codegen/proofs.py, docs/api-registry.md)"
            )
        if options.out:
            generate(options.out, loaded)
    except RegistryError as error:
        print(f"generate_libraries: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
