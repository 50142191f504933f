# SPDX-License-Identifier: Apache-2.0
"""The calls that a profiler is told of: from native/api/profiling.yaml and CUPTI's numbers.

Used by generate_abi.py. Each such function is compiled under another symbol, and its exported name
is a small function that asks whether somebody profiles (native/client/profile/api_calls.h).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import c_text
import yaml
from imported import ImportedFunction, RegistryError, read_json, refuse_unknown
from model import Registry

if TYPE_CHECKING:
    from generate_abi import Writer

RESULTS = {"driver": "CUresult", "runtime": "cudaError_t"}
VERSION = re.compile(r"^(?P<name>\w+?)_v(?P<version>\d{4,5})$")


@dataclass(frozen=True)
class ProfiledCall:
    """One function, with its number in the newest CUPTI and in CUDA 12's; 0 where it has none."""

    function: ImportedFunction
    number: int
    older: int


def numbers(path: Path, library: str) -> dict[str, int]:
    """CUPTI's number by exported name; of several versions of a function the newest."""
    found: dict[str, tuple[int, int]] = {}
    for owner, name, number in read_json(path):
        if owner != library:
            continue
        match = VERSION.match(name) if library == "runtime" else None
        exported, version = (match["name"], int(match["version"])) if match else (name, 0)
        found[exported] = max(found.get(exported, (0, 0)), (version, number))
    return {name: number for name, (_, number) in found.items()}


def profiled_calls(api: Path, registry: Registry, library: str) -> list[ProfiledCall]:
    """Those of one library, sorted by name."""
    rules: dict[str, Any] = yaml.safe_load((api / "profiling.yaml").read_text())
    refuse_unknown("profiling.yaml", rules, RESULTS)
    functions = (registry.driver if library == "driver" else registry.runtime).functions
    newest = numbers(api / "imported" / "cuda13" / "cupti_calls.json", library)
    older = numbers(api / "imported" / "cuda12" / "cupti_calls.json", library)
    others = {name for major in registry.majors for name in major.renamed}
    calls = []
    for pattern in rules[library]:
        if not any(re.fullmatch(pattern, name) for name in functions):
            raise RegistryError(f"profiling.yaml: {library}: {pattern!r} matches no function")
    for name, function in sorted(functions.items()):
        if name not in newest or name in others or function.returns != RESULTS[library]:
            continue
        if any(re.fullmatch(pattern, name) for pattern in rules[library]):
            # nvcc 13 calls what CUDA 12, and every profiler, knows without the underscores.
            known = name.removeprefix("__")
            number = newest.get(known, newest[name])
            calls.append(ProfiledCall(function, number, older.get(known, 0)))
    return calls


def generate_profiling(writer: Writer, api: Path, registry: Registry) -> None:
    """The names, the small functions, and CUPTI's table of names."""
    for library in RESULTS:
        calls = profiled_calls(api, registry, library)
        names = [c.function.name for c in calls]
        writer.render(
            "profiled_names.h.j2", f"abi/profiled_{library}.h", library=library, names=names
        )
        writer.render(
            "profiled_calls.inc.j2",
            f"client/profiled_{library}.inc",
            library=library,
            calls=[
                {
                    "name": c.function.name,
                    "prototype": c_text.prototype(c.function),
                    "other": c_text.prototype(c.function).replace(
                        f"{c.function.name}(", f"sluice_profiled_{c.function.name}(", 1
                    ),
                    "fields": [c_text.declare(p.ctype, p.name) for p in c.function.params],
                    "arguments": ", ".join(p.name for p in c.function.params),
                    "number": c.number,
                    "older": c.older,
                }
                for c in calls
            ],
        )
    for major in (13, 12):
        rows = read_json(api / "imported" / f"cuda{major}" / "cupti_calls.json")
        writer.render(
            "profiled_numbers.inc.j2",
            f"client/cupti_calls{major}.inc",
            major=major,
            rows=sorted((owner, number, name) for owner, name, number in rows),
        )
