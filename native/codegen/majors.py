# SPDX-License-Identifier: Apache-2.0
"""Older major versions of the CUDA runtime, as differences from the one that the registry describes.

Read by registry.py for every native/api/runtimeN.yaml; used by generate_majors.py. A function that
both headers declare alike, and that reaches structures which are laid out alike, is shared. What
differs is another name, adapted by generated code, written by hand, or not supported; what the
headers do not bear out is a RegistryError that says so.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from annotations import read_yaml
from imported import (
    ImportedFunction,
    ImportedLibrary,
    RegistryError,
    TypeDeclaration,
    load_library,
    read_json,
    refuse_unknown,
)
from layouts import changed_records, pieces, reaches, records
from major_model import Adapter, Argument, Conversion, Major
from variants import per_thread_variants

SECTIONS = ("names", "adapted", "hand", "undeclared")


def load_majors(
    api: Path, runtime: ImportedLibrary, supported: frozenset[str]
) -> tuple[Major, ...]:
    """Load every runtimeN.yaml; `supported` are the newer runtime's functions that do something."""
    found = []
    for path in sorted(api.glob("runtime*.yaml")):
        match = re.fullmatch(r"runtime(\d+)\.yaml", path.name)
        if match:
            folder = api / "imported" / f"cuda{match[1]}"
            library = load_library(folder, "runtime")
            version = int(read_json(folder / "source.json")["cuda_version"])
            found.append(load_major(path, int(match[1]), version, library, runtime, supported))
    return tuple(found)


def load_major(
    path: Path,
    number: int,
    version: int,
    library: ImportedLibrary,
    runtime: ImportedLibrary,
    supported: frozenset[str],
) -> Major:
    """Load one file and hold it against both imports."""
    data = read_yaml(path)
    refuse_unknown(path.name, data, SECTIONS)
    names: dict[str, str] = data.get("names") or {}
    adapted: dict[str, Any] = data.get("adapted") or {}
    hand: list[str] = data.get("hand") or []
    listed = [*names, *adapted, *hand]
    for name in listed:
        if name not in library.functions:
            raise RegistryError(
                f"{path.name}: {name}: CUDA {number}'s headers declare no such name"
            )
        if listed.count(name) > 1:
            raise RegistryError(f"{path.name}: {name}: listed twice; leave one entry")
    changed = changed_records(library, runtime)
    differing = differing_functions(library, runtime, changed)
    for name in listed:
        if name not in differing:
            raise RegistryError(f"{path.name}: {name}: the same in both versions; drop the entry")
    adapters = [
        adapter(library.functions[name], target, {}, runtime, changed, supported, path.name)
        for name, target in names.items()
    ]
    for name, a in zip(names, adapters, strict=True):
        if any(
            p.converts or p.text not in {q.name for q in a.function.params} for p in a.arguments
        ):
            raise RegistryError(
                f"{path.name}: names: {name}: parameters differ; list it in adapted"
            )
    for name, entry in adapted.items():
        where = f"{path.name}: adapted: {name}"
        refuse_unknown(where, entry, ("calls", "with"))
        target = str(entry.get("calls", name))
        extra = {str(k): str(v) for k, v in (entry.get("with") or {}).items()}
        function = library.functions[name]
        adapters.append(adapter(function, target, extra, runtime, changed, supported, path.name))
    done = frozenset(listed)
    shared = (supported & library.functions.keys()) - differing
    variants = {
        name: variant
        for name, variant in per_thread_variants(
            library, done | shared, "cudaStreamPerThread"
        ).items()
        if name in differing
    }
    unsupported = [library.functions[name] for name in sorted(differing - done - variants.keys())]
    for function in unsupported:
        if function.name in supported:
            raise RegistryError(
                f"{path.name}: {function.name} works in the newer version and has other parameters "
                f"or structures in CUDA {number}: list it under adapted, or under hand"
            )
    theirs = records(runtime)
    return Major(
        number=number,
        version=version,
        library=library,
        conversions=tuple(conversion(t, theirs.get(n), path.name) for n, t in changed.items()),
        adapters=tuple(sorted(adapters, key=lambda a: a.function.name)),
        hand=tuple(library.functions[name] for name in hand),
        variants=tuple(variants.values()),
        unsupported=tuple(unsupported),
        undeclared=tuple(data.get("undeclared") or ()),
        renamed=tuple(sorted(differing & runtime.functions.keys())),
    )


def conversion(old: TypeDeclaration, new: TypeDeclaration | None, file: str) -> Conversion:
    """Say how one structure is copied into the other."""
    if new is None:
        return Conversion(old, (), False)
    return Conversion(old, tuple(pieces(old, new, f"{file}: {old.spelling}")), True)


def differing_functions(
    library: ImportedLibrary, runtime: ImportedLibrary, changed: dict[str, TypeDeclaration]
) -> set[str]:
    """Return the names that the newer runtime lacks, or whose callers it would not understand."""
    result = set()
    for name, function in library.functions.items():
        other = runtime.functions.get(name)
        same = (
            other is not None
            and function.returns == other.returns
            and [p.canonical for p in function.params] == [p.canonical for p in other.params]
        )
        if not same or any(reaches(p.canonical, changed) for p in function.params):
            result.add(name)
    return result


def adapter(
    function: ImportedFunction,
    target: str,
    extra: dict[str, str],
    runtime: ImportedLibrary,
    changed: dict[str, TypeDeclaration],
    supported: frozenset[str],
    file: str,
) -> Adapter:
    """Pair the parameters of both functions by name, or by place where the names alone differ."""
    where = f"{file}: {function.name}"
    newer = runtime.functions.get(target)
    if newer is None or target not in supported:
        raise RegistryError(f"{where}: {target} is not supported in the newer version")
    if set(extra) - {p.name for p in newer.params}:
        raise RegistryError(f"{where}: with: {target} has no parameter {sorted(extra)[0]}")
    taken = [p for p in newer.params if p.name not in extra]
    if len(taken) != len(function.params):
        raise RegistryError(
            f"{where}: takes {len(function.params)} parameters where {target} takes {len(taken)}; "
            "give the others under `with`, or write it by hand"
        )
    own = iter(function.params)
    arguments = []
    for param in newer.params:
        if param.name in extra:
            arguments.append(Argument(extra[param.name]))
            continue
        given = next(own)
        if given.canonical != param.canonical:
            raise RegistryError(
                f"{where}: {given.name} is {given.ctype}, {target} takes {param.ctype}; "
                "write it by hand"
            )
        tag = reaches(given.canonical, changed)
        if tag and not re.fullmatch(rf"(?:const )?struct {tag} \*", given.canonical):
            raise RegistryError(
                f"{where}: {given.name} is no pointer to one {tag}; write it by hand"
            )
        arguments.append(Argument(given.name, tag, given.canonical.startswith("const ")))
    return Adapter(function, target, tuple(arguments))
