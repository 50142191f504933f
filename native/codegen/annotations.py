# SPDX-License-Identifier: Apache-2.0
"""What native/api says of one function, read and held against itself.

Used by registry.py. What is wrong is a RegistryError that names file, function, key and fix.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml
from imported import RegistryError
from kinds import Kind
from model import Annotation, Cache, ErrorClass, Function, Hand, State


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one file of annotations."""
    try:
        data = yaml.safe_load(path.read_text()) or {}
    except FileNotFoundError as error:
        raise RegistryError(f"{path.name}: missing from {path.parent}") from error
    except yaml.YAMLError as error:
        raise RegistryError(f"{path.name}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise RegistryError(f"{path.name}: the top level must be a mapping")
    return data


def choice(enum: type[StrEnum], value: Any, where: str, key: str) -> Any:
    """Return the member of `enum` with that value, or say which there are."""
    try:
        return enum(value)
    except ValueError as error:
        allowed = ", ".join(sorted(e.value for e in enum))
        raise RegistryError(f"{where}: {key} is {value!r}; use one of {allowed}") from error


BOOLEAN_KEYS = ("may_block", "allocates")
ENUM_KEYS: dict[str, type[StrEnum]] = {"hand": Hand, "state": State, "cache": Cache}


def read_annotation(entry: Any, where: str) -> Annotation:
    """Read one entry; a bare word is its class."""
    if isinstance(entry, str):
        entry = {"class": entry}
    if not isinstance(entry, dict) or "class" not in entry:
        raise RegistryError(f"{where}: needs a class; write e.g. {{class: answered}}")
    known = {"class", "note", "answers", "params", "reach", "require", "signature"}
    known |= {*BOOLEAN_KEYS, *ENUM_KEYS}
    for key in entry:
        if key not in known:
            raise RegistryError(
                f"{where}: key {key!r} is unknown; use one of {', '.join(sorted(known))}"
            )
    values: dict[str, Any] = {"error_class": choice(ErrorClass, entry["class"], where, "class")}
    for key in BOOLEAN_KEYS:
        if not isinstance(entry.get(key, False), bool):
            raise RegistryError(f"{where}: {key} is {entry[key]!r}; use true or false")
        values[key] = entry.get(key, False)
    for key, enum in ENUM_KEYS.items():
        values[key] = choice(enum, entry.get(key, "none"), where, key)
    params = entry.get("params", {})
    if not isinstance(params, dict):
        raise RegistryError(f"{where}: params must map parameter names to kinds")
    reach = entry.get("reach", {})
    if not isinstance(reach, dict) or not all(isinstance(n, int) and n > 0 for n in reach.values()):
        raise RegistryError(f"{where}: reach must map device addresses to numbers of bytes")
    values["reach"] = reach
    require = entry.get("require", [])
    values["require"] = tuple([require] if isinstance(require, str) else require)
    for key in ("note", "answers"):
        values[key] = str(entry.get(key, ""))
    annotation = Annotation(**values, params=params)
    check_annotation(annotation, where)
    return annotation


def check_annotation(annotation: Annotation, where: str) -> None:
    """Refuse entries that contradict themselves."""
    error_class = annotation.error_class
    if error_class == ErrorClass.LOCAL and annotation.hand not in (Hand.CLIENT, Hand.ALL):
        raise RegistryError(
            f"{where}: class local is decided by the client's own code; add hand: client"
        )
    if error_class == ErrorClass.UNSUPPORTED and not annotation.note:
        raise RegistryError(f"{where}: class unsupported needs a note that says why")
    refused = error_class == ErrorClass.REFUSED
    if refused and not (annotation.note and annotation.answers.startswith("CUDA_ERROR_")):
        raise RegistryError(
            f"{where}: class refused needs answers, a CUresult's name, and a note that says "
            "which device attribute agrees"
        )
    if annotation.answers and not refused:
        raise RegistryError(f"{where}: answers is for class refused; drop it")
    if annotation.cache != Cache.NONE and error_class != ErrorClass.ANSWERED:
        raise RegistryError(f"{where}: cache needs class answered, the class is {error_class}")
    if error_class == ErrorClass.EITHER and annotation.hand != Hand.WORKER:
        raise RegistryError(f"{where}: class either is for commands of our own, with hand: worker")
    if annotation.may_block and error_class == ErrorClass.ASYNC:
        raise RegistryError(f"{where}: an async command has nobody who waits; drop may_block")


def check_function(function: Function, where: str) -> None:
    """Refuse entries that contradict the function's parameters."""
    if not function.frame_generated:
        return
    addresses = {p.name for p in function.of_kind(Kind.DEVICE_ADDRESS)}
    for name in function.annotation.reach.keys() - addresses:
        raise RegistryError(f"{where}: reach: {name} is no parameter of kind device_address")
    outputs = function.of_kind(
        Kind.OUT, Kind.OUT_HANDLE, Kind.IN_OUT, Kind.OUT_ARRAY, Kind.OUT_BYTES, Kind.OUT_STRING
    )
    if function.error_class != ErrorClass.ANSWERED and outputs:
        raise RegistryError(
            f"{where}: parameter {outputs[0].name}: an {function.error_class} function cannot "
            f"return a value (kind {outputs[0].kind}); use class answered, or mint for a handle"
        )
    state = function.annotation.state
    if state == State.DESTROYS and not function.of_kind(Kind.HANDLE):
        raise RegistryError(f"{where}: state destroys needs a handle parameter")
    if state == State.CREATES and not function.of_kind(Kind.MINT, Kind.OUT_HANDLE):
        raise RegistryError(f"{where}: state creates needs a parameter of kind mint")
