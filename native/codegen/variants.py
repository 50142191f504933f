# SPDX-License-Identifier: Apache-2.0
"""The per-thread default stream's names, derived from the functions that they vary.

Used by registry.py. cuX_ptsz(…, stream) is cuX with the null stream read as the thread's own;
cuX_ptds(…) is cuXAsync on the thread's stream, waited for when it is a copy. What follows neither
rule gets no variant and is reported as unsupported unless written by hand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from imported import ImportedFunction, ImportedLibrary

STREAM_TYPES = ("CUstream", "cudaStream_t")
STREAM_RECORDS = {"const CUlaunchConfig *": "hStream", "const cudaLaunchConfig_t *": "stream"}


@dataclass(frozen=True)
class PerThreadVariant:
    """One name and how its definition calls another."""

    function: ImportedFunction
    target: str
    """The function that does the work."""
    arguments: tuple[str, ...]
    """C expressions for the target's parameters."""
    waits: bool
    """Synchronise the thread's stream afterwards."""
    record: tuple[str, str, str] | None = None
    """(parameter, its C type, field): the stream is in a structure, which is copied and changed."""


def per_thread_variants(
    library: ImportedLibrary, supported: frozenset[str], per_thread: str
) -> dict[str, PerThreadVariant]:
    """Return the variants that follow from supported functions."""
    result: dict[str, PerThreadVariant] = {}
    for name, function in library.functions.items():
        if not function.stream or name in supported:
            continue
        plain = name.removesuffix(f"_{function.stream}")
        if plain not in supported:
            continue
        variant = (
            stream_variant(function, plain, per_thread)
            if function.stream == "ptsz"
            else synchronous_variant(function, plain, library, supported, per_thread)
        )
        if variant:
            result[name] = variant
    return result


def stream_variant(
    function: ImportedFunction, plain: str, per_thread: str
) -> PerThreadVariant | None:
    """Build cuX_ptsz of cuX; None when it has no stream."""
    arguments = []
    found = False
    record: tuple[str, str, str] | None = None
    for param in function.params:
        if param.ctype in STREAM_TYPES:
            found = True
            arguments.append(f"{param.name} != nullptr ? {param.name} : {per_thread}")
        elif param.ctype in STREAM_RECORDS:
            found = True
            ctype = param.ctype.removeprefix("const ").removesuffix(" *")
            record = (param.name, ctype, STREAM_RECORDS[param.ctype])
            arguments.append(f"&{param.name}_on_thread")
        else:
            arguments.append(param.name)
    return PerThreadVariant(function, plain, tuple(arguments), False, record) if found else None


def synchronous_variant(
    function: ImportedFunction,
    plain: str,
    library: ImportedLibrary,
    supported: frozenset[str],
    per_thread: str,
) -> PerThreadVariant | None:
    """Build cuX_ptds of cuXAsync; None when there is no such function."""
    stem = re.sub(r"_v\d+$", "", plain).replace("2DUnaligned", "2D")
    names = [p.name for p in function.params]
    for suffix in ("_v2", ""):
        target = library.functions.get(f"{stem}Async{suffix}")
        if target is None or target.name not in supported:
            continue
        if [p.canonical for p in target.params[:-1]] != [p.canonical for p in function.params]:
            continue
        if target.params[-1].ctype in STREAM_TYPES:
            return PerThreadVariant(
                function, target.name, (*names, per_thread), waits="emcpy" in stem
            )
    return None
