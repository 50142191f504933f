# SPDX-License-Identifier: Apache-2.0
"""Functions of an older API without handles (cublas.h), made of those with one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from imported import RegistryError
from passing import stub_type

LETTERS = {
    "cublasOperation_t": "operation_of",
    "cublasFillMode_t": "fill_of",
    "cublasSideMode_t": "side_of",
    "cublasDiagType_t": "diagonal_of",
}
"""What a letter of BLAS is in the API with handles: functions of client/libraries/legacy.h."""
COMPLEX = {"cuComplex": "Complex", "cuDoubleComplex": "DoubleComplex"}


@dataclass(frozen=True)
class Legacy:
    """A function of an older API without handles, made of one with a handle."""

    name: str
    returns: str
    params: tuple[tuple[str, str], ...]
    """C type and name of each parameter."""
    target: str
    target_types: tuple[str, ...]
    arguments: tuple[str, ...]
    """What the target gets behind its handle."""


def legacy_type(ctype: str) -> str:
    """Return a C type that needs no header of NVIDIA's."""
    if "*" in ctype:
        return "void*"
    return COMPLEX.get(ctype, ctype)


def make_legacy(row: dict[str, Any], target: dict[str, Any], where: str) -> Legacy:
    """Say how a function without a handle calls the one with a handle.

    Letters become enumerations, numbers by value become numbers in host memory, what is returned
    is the last parameter. A product in place (trmm) names its matrix twice.
    """
    given = row["params"]
    arguments: list[str] = []
    place = 0
    for param in target["params"][1:]:
        if place == len(given):
            out = "&result"
            if row["returns"] == "void":  # C of trmm
                arguments += arguments[-2:] if not arguments[-1].startswith("&") else []
                break
            arguments.append(out)
            continue
        own = given[place]
        place += 1
        if param["type"] in LETTERS:
            arguments.append(f"{LETTERS[param['type']]}({own['name']})")
        elif "pointee" in param and "pointee" not in own:
            arguments.append(f"&{own['name']}")
        elif ("pointee" in param) == ("pointee" in own) and param["size"] == own["size"]:
            arguments.append(own["name"])
        else:
            raise RegistryError(f"{where}: {own['name']} does not fit {param['name']}")
    if place != len(given) or len(arguments) != len(target["params"]) - 1:
        raise RegistryError(f"{where}: its parameters are not those of {target['name']}")
    return Legacy(
        row["name"],
        legacy_type(row["returns"]),
        tuple((legacy_type(p["type"]), p["name"]) for p in given),
        target["name"],
        tuple(stub_type(p) for p in target["params"]),
        tuple(arguments),
    )
