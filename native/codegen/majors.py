# SPDX-License-Identifier: Apache-2.0
"""Older major versions of the CUDA runtime, as differences from the newest.

Read by registry.py for every native/api/runtimeN.yaml; used by generate_majors.py. A function that
both headers declare alike, and that reaches structures which are laid out alike, is shared. What
differs is another name, adapted by generated code, written by hand, or not supported; what the
headers do not bear out is a RegistryError that says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from annotations import read_yaml
from imported import (
    ImportedFunction,
    ImportedLibrary,
    ImportedParam,
    RegistryError,
    TypeDeclaration,
    load_library,
    read_json,
    refuse_unknown,
)
from layouts import changed_records, pieces, reaches, records
from major_model import Adapter, Argument, Conversion, Major
from variants import PerThreadVariant, per_thread_variants

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
    changed = changed_records(library, runtime)
    differing = differing_functions(library, runtime, changed)
    pairing = Pairing(path.name, runtime, changed, supported)
    names: dict[str, str] = data.get("names") or {}
    adapted: dict[str, Any] = data.get("adapted") or {}
    hand: list[str] = data.get("hand") or []
    listed = [*names, *adapted, *hand]
    check_listed(path.name, number, listed, library, differing)
    adapters = [pairing.other_name(library.functions[n], target) for n, target in names.items()]
    adapters += [pairing.adapted(library.functions[n], entry) for n, entry in adapted.items()]
    variants = own_variants(library, frozenset(listed), supported, differing)
    unsupported = sorted(differing - set(listed) - variants.keys())
    for name in unsupported:
        if name in supported:
            raise RegistryError(
                f"{path.name}: {name} works in the newer version and has other parameters or "
                f"structures in CUDA {number}: list it under adapted, or under hand"
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
        unsupported=tuple(library.functions[name] for name in unsupported),
        undeclared=tuple(data.get("undeclared") or ()),
        renamed=tuple(sorted(differing & runtime.functions.keys())),
    )


def check_listed(
    file: str, number: int, listed: list[str], library: ImportedLibrary, differing: set[str]
) -> None:
    """Refuse entries that the headers do not bear out."""
    for name in listed:
        if name not in library.functions:
            raise RegistryError(f"{file}: {name}: CUDA {number}'s headers declare no such name")
        if listed.count(name) > 1:
            raise RegistryError(f"{file}: {name}: listed twice; leave one entry")
        if name not in differing:
            raise RegistryError(f"{file}: {name}: the same in both versions; drop the entry")


def own_variants(
    library: ImportedLibrary,
    listed: frozenset[str],
    supported: frozenset[str],
    differing: set[str],
) -> dict[str, PerThreadVariant]:
    """Return the names with _ptsz and _ptds that are not the newer version's."""
    shared = (supported & library.functions.keys()) - differing
    every = per_thread_variants(library, listed | shared, "cudaStreamPerThread")
    return {name: variant for name, variant in every.items() if name in differing}


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


@dataclass(frozen=True)
class Pairing:
    """Pairs functions of the older version with those of the newer."""

    file: str
    runtime: ImportedLibrary
    changed: dict[str, TypeDeclaration]
    supported: frozenset[str]

    def other_name(self, function: ImportedFunction, target: str) -> Adapter:
        """Pair a function with one that has the same parameters."""
        adapter = self.pair(function, target, {})
        if any(argument.converts for argument in adapter.arguments):
            raise RegistryError(
                f"{self.file}: names: {function.name}: its structures differ; list it in adapted"
            )
        return adapter

    def adapted(self, function: ImportedFunction, entry: Any) -> Adapter:
        """Pair a function with one whose parameters or structures differ."""
        refuse_unknown(f"{self.file}: adapted: {function.name}", entry, ("calls", "with"))
        extra = {str(k): str(v) for k, v in (entry.get("with") or {}).items()}
        return self.pair(function, str(entry.get("calls", function.name)), extra)

    def pair(self, function: ImportedFunction, target: str, extra: dict[str, str]) -> Adapter:
        """Pair the parameters of both in order, but for those that `extra` gives."""
        where = f"{self.file}: {function.name}"
        newer = self.runtime.functions.get(target)
        if newer is None or target not in self.supported:
            raise RegistryError(f"{where}: {target} is not supported in the newer version")
        for name in extra.keys() - {p.name for p in newer.params}:
            raise RegistryError(f"{where}: with: {target} has no parameter {name}")
        wanted = len(newer.params) - len(extra)
        if wanted != len(function.params):
            raise RegistryError(
                f"{where}: takes {len(function.params)} parameters where {target} takes {wanted}; "
                "give the others under `with`, or write it by hand"
            )
        own = iter(function.params)
        return Adapter(
            function,
            target,
            tuple(
                Argument(extra[p.name]) if p.name in extra else self.argument(where, next(own), p)
                for p in newer.params
            ),
        )

    def argument(self, where: str, given: ImportedParam, wanted: ImportedParam) -> Argument:
        """Say what is passed for one parameter."""
        if given.canonical != wanted.canonical:
            raise RegistryError(
                f"{where}: {given.name} is {given.ctype}, not {wanted.ctype}; write it by hand"
            )
        tag = reaches(given.canonical, self.changed)
        if tag and not re.fullmatch(rf"(?:const )?struct {tag} \*", given.canonical):
            raise RegistryError(
                f"{where}: {given.name} is no pointer to one {tag}; write it by hand"
            )
        return Argument(given.name, tag, given.canonical.startswith("const "))
