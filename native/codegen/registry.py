# SPDX-License-Identifier: Apache-2.0
"""Reads the API registry: imported signatures joined with the annotations of native/api.

Generators call load_registry() and get Functions whose parameters have a resolved kind; anything
wrong or ambiguous in native/api is a RegistryError that names file, function, parameter and fix.
The format is described in docs/api-registry.md. Nothing here writes files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from annotations import check_function, read_annotation, read_yaml
from commands import EFFECTS
from imported import ImportedLibrary, ImportedParam, ProcAddress, RegistryError, load_library
from kinds import TypeTable, resolve_params
from majors import load_majors
from model import (
    API,
    CUDA_VERSION_FOLDER,
    ON_WIRE,
    ErrorClass,
    Function,
    Hand,
    Registry,
    State,
)
from variants import PerThreadVariant, per_thread_variants

FIRST_ID = 64
"""Ids below are control frames (native/wire/frame.h)."""
EXPORTED = re.compile(r"(?P<symbol>cu[A-Z]\w*?)(_v\d+)?(_(?P<stream>ptsz|ptds))?")
LAST_ID = 0xFFFF
"""The frame header has 16 bits for the function."""


def load_functions(
    section: dict[str, Any],
    library: ImportedLibrary,
    types: TypeTable,
    ids: dict[str, int],
    file: str,
) -> dict[str, Function]:
    """Load the section `functions`."""
    functions: dict[str, Function] = {}
    for name, entry in section.items():
        where = f"{file}: {name}"
        imported = library.functions.get(name)
        if imported is None:
            raise RegistryError(
                f"{where}: no header declares it; the key must be the exported name "
                f"(with its _v2), see native/api/imported/{CUDA_VERSION_FOLDER}"
            )
        function = build(
            name, "driver", imported.returns, imported.params, entry, types, ids, where
        )
        if imported.stream and function.frame_generated:
            plain = imported.name.rsplit("_", 1)[0]
            raise RegistryError(f"{where}: annotate {plain}; this variant follows from it")
        functions[name] = function
    return functions


def load_commands(
    section: dict[str, Any], types: TypeTable, ids: dict[str, int], file: str
) -> dict[str, Function]:
    """Load the section `commands`."""
    commands: dict[str, Function] = {}
    for name, entry in section.items():
        where = f"{file}: commands: {name}"
        if not name.startswith("sluice"):
            raise RegistryError(f"{where}: a command of our own must begin with 'sluice'")
        signature = entry.get("signature") if isinstance(entry, dict) else None
        if not isinstance(signature, dict):
            raise RegistryError(
                f"{where}: needs a signature, e.g. {{address: CUdeviceptr, bytes: size_t}}"
            )
        params = tuple(
            ImportedParam(p, str(t), types.canonical(str(t))) for p, t in signature.items()
        )
        rules = {key: value for key, value in entry.items() if key not in EFFECTS}
        commands[name] = build(name, "sluice", "CUresult", params, rules, types, ids, where)
    return commands


def build(
    name: str,
    library: str,
    returns: str,
    imported: tuple[ImportedParam, ...],
    entry: Any,
    types: TypeTable,
    ids: dict[str, int],
    where: str,
) -> Function:
    """Join a signature with its entry."""
    annotation = read_annotation(entry, where)
    generated = annotation.error_class in ON_WIRE and annotation.hand != Hand.ALL
    creates = annotation.state == State.CREATES
    params = resolve_params(imported, annotation.params, types, creates, generated, where)
    function = Function(name, library, returns, params, annotation, ids.get(name))
    check_function(function, where)
    return function


def load_aliases(section: dict[str, Any], library: ImportedLibrary, file: str) -> dict[str, str]:
    """Load the section `aliases`; parameters must be the same."""
    for old, target in section.items():
        where = f"{file}: aliases: {old}"
        for name in (old, target):
            if name not in library.functions:
                raise RegistryError(f"{where}: no header declares {name}")
        a, b = library.functions[old], library.functions[target]
        if [p.canonical for p in a.params] != [p.canonical for p in b.params]:
            raise RegistryError(
                f"{where}: its parameters differ from those of {target}; it is no alias"
            )
    return dict(section)


def load_ids(path: Path) -> dict[str, int]:
    """`64 cuStreamCreate` a line: consecutive, unique, appended to and never edited."""
    ids: dict[str, int] = {}
    expected = FIRST_ID
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"{path.name}:{number}"
        parts = line.split()
        if len(parts) not in (2, 3) or not parts[0].isdigit() or parts[2:] not in ([], ["retired"]):
            raise RegistryError(f"{where}: {line!r} is not 'ID NAME' or 'ID NAME retired'")
        if int(parts[0]) != expected:
            raise RegistryError(
                f"{where}: id {parts[0]} where {expected} must stand; ids are never changed, "
                "reused or removed (mark a line 'retired'); restore the file and run --update-ids"
            )
        if parts[1] in ids:
            raise RegistryError(f"{where}: {parts[1]} has an id already")
        ids[parts[1]] = expected
        expected += 1
    if expected > LAST_ID:
        raise RegistryError(f"{path.name}: more ids than the frame header's 16 bits hold")
    return ids


def missing_ids(registry: Registry) -> list[str]:
    """Return functions that need an id and have none."""
    return [f.name for f in registry.wire_functions() if f.id is None]


def load_runtime(
    api: Path, runtime: ImportedLibrary
) -> tuple[frozenset[str], dict[str, PerThreadVariant], dict[str, str]]:
    """Load runtime.yaml: functions by hand, their variants, undeclared names."""
    data = read_yaml(api / "runtime.yaml")
    hand = data.get("hand") or []
    if len(set(hand)) != len(hand):
        twice = sorted({n for n in hand if hand.count(n) > 1})
        raise RegistryError(f"runtime.yaml: hand: listed twice: {', '.join(twice)}")
    undeclared: dict[str, str] = data.get("undeclared") or {}
    for name in hand:
        if name not in runtime.functions and name not in undeclared:
            raise RegistryError(f"runtime.yaml: hand: {name}: libcudart exports no such function")
    for name in undeclared:
        if name in runtime.functions:
            raise RegistryError(
                f"runtime.yaml: undeclared: {name}: the headers declare it; drop the line"
            )
    supported = frozenset(hand)
    return supported, per_thread_variants(runtime, supported, "cudaStreamPerThread"), undeclared


def load_undeclared(section: dict[str, Any], driver: ImportedLibrary) -> tuple[ProcAddress, ...]:
    """Load the section `undeclared` of driver.yaml: what cuGetProcAddress has to say of each."""
    rows = []
    for name, version in section.items():
        where = f"driver.yaml: undeclared: {name}"
        if name in driver.functions:
            raise RegistryError(f"{where}: cuda.h declares it; drop the line")
        if not isinstance(version, int) or not 2000 <= version <= 99990:
            raise RegistryError(f"{where}: {version!r} is no version of CUDA, as 3020")
        match = EXPORTED.fullmatch(name)
        if match is None:
            raise RegistryError(f"{where}: that is no name of the driver's")
        rows.append(ProcAddress(match["symbol"], version, match["stream"] or "", name))
    return tuple(rows)


def load_error_strings(path: Path, library: ImportedLibrary) -> dict[int, str]:
    """Return error texts by value."""
    names = dict(library.enum("cudaError"))
    strings: dict[int, str] = {}
    for name, text in (read_yaml(path).get("strings") or {}).items():
        if name not in names:
            raise RegistryError(f"{path.name}: {name} is no enumerator of cudaError")
        strings[names[name]] = str(text)
    return strings


def load_registry(api: Path = API) -> Registry:
    """Load and check everything under native/api."""
    folder = api / "imported" / CUDA_VERSION_FOLDER
    driver, runtime = load_library(folder, "driver"), load_library(folder, "runtime")
    types = TypeTable(driver)
    data = read_yaml(api / "driver.yaml")
    for key in data:
        if key not in ("functions", "aliases", "commands", "undeclared"):
            raise RegistryError(
                f"driver.yaml: section {key!r} is unknown; use functions, aliases, commands or "
                "undeclared"
            )
    ids = load_ids(api / "ids.lock")
    functions = load_functions(data.get("functions") or {}, driver, types, ids, "driver.yaml")
    commands = load_commands(data.get("commands") or {}, types, ids, "driver.yaml")
    aliases = load_aliases(data.get("aliases") or {}, driver, "driver.yaml")
    supported = {n for n, f in functions.items() if f.error_class != ErrorClass.UNSUPPORTED}
    for old, target in aliases.items():
        if old in functions or target not in supported:
            raise RegistryError(
                f"driver.yaml: aliases: {old}: {target} must be supported and {old} not annotated"
            )
    hand, runtime_variants, undeclared = load_runtime(api, runtime)
    return Registry(
        driver=driver,
        runtime=runtime,
        functions=functions,
        commands=commands,
        aliases=aliases,
        variants=per_thread_variants(
            driver, frozenset(supported | aliases.keys()), "CU_STREAM_PER_THREAD"
        ),
        runtime_hand=hand,
        runtime_variants=runtime_variants,
        runtime_undeclared=undeclared,
        driver_undeclared=load_undeclared(data.get("undeclared") or {}, driver),
        runtime_left_out=tuple(read_yaml(api / "runtime.yaml").get("left_out") or []),
        ids=ids,
        error_strings=load_error_strings(api / "error_strings.yaml", runtime),
        majors=load_majors(api, runtime, hand | runtime_variants.keys()),
    )
