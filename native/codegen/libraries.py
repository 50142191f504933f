# SPDX-License-Identifier: Apache-2.0
"""The registry's part about CUDA's libraries: imported signatures joined with a file of rules each.

`native/api/libraries/NAME.yaml` says by rules how the parameters of hundreds of functions of one
shape cross the wire; what no rule and no C type decides must be said for the function, and the
error says how. The format is described in docs/api-registry.md. Nothing here writes files.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from commands import EFFECTS
from imported import RegistryError, refuse_unknown
from legacy import Legacy, make_legacy
from library_params import Param, Rules, index_of, infer, make_param, matches
from older_libraries import OlderLibrary, load_older
from passing import take_apart
from proofs import (
    HAND_PROOFS,
    Workspace,
    index_arrays,
    read_attributes,
    sizes_in,
)

FIRST_ID = 1024
"""native/wire/frame.h, kFirstLibraryFunction."""
LAST_ID = 4095
MAX_PARAMS = 48

CLASSES = {"async": "kAsync", "answered": "kAnswered", "learned": "kLearned"}
STATES = {"": "kNone", "creates": "kCreates", "destroys": "kDestroys", "sets": "kSets"}
FUNCTION_KEYS = {
    "class", "state", "cached", "launches", "set_by", "stream", "pointer_mode", "data_type",
    "params", "attribute", "changes", "computes", "outputs_always", "grouped", "deferred",
    "commutes", "host_memory", "indices", "while_used", "measures", "measured",
    "sizes", "holds", "retains", "well_for_ms",
}  # fmt: skip

MOST_CHANGED = 2
TENSOR = r"cudnn(Tensor|Filter)Descriptor_t$"


@dataclass(frozen=True)
class Function:
    """One function that crosses the wire."""

    name: str
    returns: str
    params: tuple[Param, ...]
    call: str
    state: str
    cached: bool
    launches: bool
    set_by: int
    remember: dict[str, int]
    changes: tuple[int, ...]
    computes: int
    outputs_always: bool
    grouped: bool
    deferred: bool
    commutes: bool
    work: int
    """The handle parameter whose stream gets the work, or -1."""
    id: int = 0
    kept_end: int = -1
    """What it creates is kept by content; the function with this place in the table ends it."""
    while_used: bool = False
    """What it ends may be in use by another thread's call."""
    indices: tuple[tuple[int, ...], ...] = ()
    """Index arrays that the library's CPU code follows."""
    measures: int = -1
    """The object that what `indices` says of sizes holds for from then on."""
    measured: tuple[int, ...] = ()
    """Objects that must have been measured; the first with the same sizes."""
    sizes: tuple[int, ...] = ()
    """Rows, columns and number of indices, where no array says them."""
    holds: tuple[int, ...] = ()
    """Objects that the library keeps pointers to."""
    retains: bool = False
    """The library may read what it was given until the object ends or is set anew."""
    well_for_ms: int = 0
    """How long an answer holds of which every byte is 0: that all is well."""
    workspace: Workspace | None = None
    host_memory: bool = False
    """What it creates computes in host memory: no call of the table gives it work."""
    wrapped: bool = False
    """The exported function is written by hand and calls sluice_forward_NAME."""

    @property
    def text(self) -> bool:
        """It returns a text."""
        return self.returns == "const char*"


@dataclass(frozen=True)
class Library:
    """One library: what is forwarded, what is written by hand, what is refused."""

    name: str
    soname: str
    status: dict[str, int]
    pointer_modes: bool
    needs: tuple[str, ...]
    functions: tuple[Function, ...]
    hand: tuple[str, ...]
    unsupported: tuple[str, ...]
    """Refused, documented ones and others."""
    undocumented: frozenset[str]
    """Exported names that no header of NVIDIA's declares."""
    reasons: dict[str, str]
    """Why a function is refused, where the rules say."""
    legacy: tuple[Legacy, ...]
    exports: tuple[str, ...]
    aliases: dict[str, str]
    """Other exported names of generated functions."""
    commands: dict[str, int]
    """Commands of our own, by hand on both sides, with their numbers."""
    command_proofs: dict[str, dict[str, str]]
    """Who proved what they carry."""
    objects: tuple[str, ...]
    node: str
    """The version node of every exported name, or empty."""
    older: tuple[OlderLibrary, ...]
    in_place: frozenset[str]
    """Kinds of objects that may lie in the application's own memory, by address."""


def make_function(row: dict[str, Any], rules: Rules, ids: dict[str, int]) -> Function:
    """Join one signature with the rules and its own entry."""
    row = {**row, "params": [part for p in row["params"] for part in take_apart(p)]}
    name = row["name"]
    where = f"{rules.name}.yaml: {name}"
    said: dict[str, Any] = {}
    for rule in rules.functions:
        if re.fullmatch(rule["match"], name):
            said.update({k: v for k, v in rule.items() if k != "match"})
    own = rules.named.get(name, {})
    said.update({k: v for k, v in own.items() if k != "params"})
    for key in said.keys() - FUNCTION_KEYS:
        raise RegistryError(
            f"{where}: key {key!r} is unknown; use {', '.join(sorted(FUNCTION_KEYS))}"
        )
    names = [p["name"] for p in row["params"]]
    if len(names) > MAX_PARAMS:
        raise RegistryError(f"{where}: more than {MAX_PARAMS} parameters; write it by hand")
    state = said.get("state", "")
    params: list[Param] = []
    tensors = [i for i, p in enumerate(row["params"]) if re.search(TENSOR, p["type"])]
    for param in row["params"]:
        place = f"{where}: parameter {param['name']}"
        inferred = values = infer(param, rules, state == "creates")
        said_of: set[str] = set()
        for rule in rules.params:
            if rule.get("kind") in ("address", "handle") and inferred["kind"] != rule["kind"]:
                continue  # it says more of pointers and objects, not which parameters are such
            if matches(rule, name, param):
                values = {k: v for k, v in rule.items() if k not in ("in", "name", "type")}
                if "of_type" in values:
                    values["type"] = values.pop("of_type")
                said_of = set(values)
                if values.get("kind") == inferred["kind"]:
                    values = {**inferred, **values}
                break
        mine = own.get("params", {}).get(param["name"], {})
        values, said_of = {**values, **mine}, said_of | set(mine)
        tensor = tensors[0] if tensors else -1
        made = make_param(param, values, names, rules, place, tensor, said_of)
        if made.kind == "attribute":
            kind_of = row["params"][made.by]["type"]
            if kind_of not in rules.types:
                raise RegistryError(f"{place}: {kind_of} is no enumeration of attributes")
            listed, refused = values.get("values", {}), values.get("refused", {})
            made = replace(
                made, attributes=read_attributes(listed, refused, rules.types[kind_of], place)
            )
        params.append(made)
    for unknown in own.get("params", {}).keys() - set(names):
        raise RegistryError(f"{where}: there is no parameter {unknown}; it has {', '.join(names)}")
    outputs = [p for p in params if p.kind in ("out", "in_out", "out_address", "out_handle")]
    call = said.get("class", "answered" if outputs else "learned")
    if call not in CLASSES:
        raise RegistryError(f"{where}: class {call!r} is unknown; use one of {', '.join(CLASSES)}")
    if outputs and call == "async":
        raise RegistryError(f"{where}: an async function returns nothing, it has {outputs[0].name}")
    returns = {
        "const char *": "const char*",
        "void": "void",
        "size_t": "uint64_t",
    }.get(row["returns"], "int32_t")
    status = returns == "int32_t" and row["returns"].lower().endswith(
        ("status_t", "result", "result_t")
    )
    if not status:
        call = "answered"
        returns = returns if returns != "int32_t" else "value32"
    indices = index_arrays(said.get("indices", []), names, where)
    followed = {place for i in indices for place in (i[3], i[4]) if place >= 0}
    params = [replace(p, proof="indices") if i in followed else p for i, p in enumerate(params)]
    remember: dict[str, int] = {
        key: index_of(said[key], names, where)
        for key in ("stream", "pointer_mode", "data_type")
        if key in said
    }
    if "attribute" in said:
        by = said["attribute"]
        remember["attribute"] = index_of(by["by"], names, where)
        remember["value"] = index_of(by["value"], names, where)
        for key in ("pointer_mode", "data_type"):
            if key in by:
                remember[f"{key}_attribute"] = rules.number(by[key], where)
    return Function(
        name=name,
        returns=returns,
        params=tuple(params),
        call=call,
        state=state,
        cached=bool(said.get("cached", not status)),
        launches=bool(
            said.get("launches", state == "" and any(p.kind == "address" for p in params))
        ),
        set_by=index_of(said["set_by"], names, where) if "set_by" in said else -1,
        remember=remember,
        changes=changed_by(said, names, where),
        computes=index_of(said["computes"], names, where) if "computes" in said else -1,
        outputs_always=bool(said.get("outputs_always", False)),
        grouped=bool(said.get("grouped", False)),
        deferred=bool(said.get("deferred", False)),
        commutes=bool(said.get("commutes", False)),
        host_memory=bool(said.get("host_memory", False)),
        while_used=bool(said.get("while_used", False)),
        indices=indices,
        holds=tuple(index_of(n, names, where) for n in said.get("holds", [])),
        retains=bool(said.get("retains", False)),
        well_for_ms=int(said.get("well_for_ms", 0)),
        measures=index_of(said["measures"], names, where) if "measures" in said else -1,
        measured=tuple(index_of(n, names, where) for n in said.get("measured", [])),
        sizes=tuple(index_of(n, names, where) for n in said.get("sizes", [])) or sizes_in(indices),
        wrapped=any(p.fullmatch(name) for p in rules.wrapped),
        work=next(
            (
                i
                for i, p in enumerate(params)
                if p.kind == "handle" and (not rules.work or p.object in rules.work)
            ),
            -1,
        ),
        id=ids.get(name, 0),
    )


def changed_by(said: dict[str, Any], names: list[str], where: str) -> tuple[int, ...]:
    """The parameters of `changes`: one name, or two."""
    told = said.get("changes", [])
    found = tuple(index_of(n, names, where) for n in ([told] if isinstance(told, str) else told))
    if len(found) > MOST_CHANGED:
        raise RegistryError(f"{where}: changes: {MOST_CHANGED} at most, not {len(found)}")
    return found


def ask_for_workspaces(functions: list[Function], where: str) -> list[Function]:
    """Find for each function with a host workspace the one that says how large it must be."""
    by_name = {f.name: i for i, f in enumerate(functions)}
    result = []
    for f in functions:
        mine = next((p for p in f.params if p.asks), None)
        if mine is None:
            result.append(f)
            continue
        query = by_name.get(mine.asks.replace("*", f.name))
        if query is None:
            raise RegistryError(f"{where}: {f.name}: there is no {mine.asks} to ask for a size")
        names = [p.name for p in f.params]
        counter = f.params[mine.count[0]].name
        asked = functions[query].params
        arguments = tuple(
            names.index(p.name)
            if p.name in names and p.kind not in ("out", "in_out", "result", "nothing")
            else -1
            for p in asked
        )
        answer = next((i for i, p in enumerate(asked) if p.name == counter and p.kind == "out"), -1)
        if answer < 0:
            raise RegistryError(f"{where}: {asked} does not answer {counter}")
        if any(
            place < 0 and p.kind not in ("out", "in_out", "nothing")
            for p, place in zip(asked, arguments, strict=True)
        ):
            raise RegistryError(f"{where}: {f.name} lacks an argument of {functions[query].name}")
        work = Workspace(functions[query].name, arguments, answer, query)
        result.append(replace(f, workspace=work))
    return result


def keep_by_content(functions: list[Function], kept: set[str], where: str) -> list[Function]:
    """Say of each function that creates a kept object which function ends such objects."""
    ends = {
        f.params[0].object: place
        for place, f in enumerate(functions)
        if f.state == "destroys" and f.params and f.params[0].kind == "handle"
    }
    for kind in kept - ends.keys():
        raise RegistryError(f"{where}: kept: nothing destroys a {kind}")
    result = []
    for f in functions:
        made = {p.object for p in f.params if p.kind == "mint"} & kept
        if made and any(p.kind not in ("mint", "value", "in", "string") for p in f.params):
            raise RegistryError(f"{where}: {f.name}: what it creates is more than numbers say")
        result.append(replace(f, kept_end=ends[made.pop()]) if made else f)
    return result


def read_ids(path: Path) -> dict[str, int]:
    """Read library_ids.lock: `number name` a line, append-only."""
    ids: dict[str, int] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        if line and not line.startswith("#"):
            number, name = line.split()[:2]
            if name in ids or int(number) in ids.values():
                raise RegistryError(f"{path.name}: {line!r} repeats a name or a number")
            ids[name] = int(number)
    return ids


def read_command_proofs(said: dict[str, dict[str, Any]], where: str) -> dict[str, dict[str, str]]:
    """Read what commands written by hand say of the pointers and sizes that they carry."""
    known = {"class", "may_block", "carries", *EFFECTS}
    for command, entry in said.items():
        refuse_unknown(f"{where}: {command}", entry, known)
        for name, proof in entry.get("carries", {}).items():
            if proof not in HAND_PROOFS:
                raise RegistryError(
                    f"{where}: {command}: {name}: {proof!r} is no proof; use one of "
                    f"{', '.join(HAND_PROOFS)}"
                )
    return {command: dict(entry.get("carries", {})) for command, entry in said.items()}


def load_one(api: Path, name: str, ids: dict[str, int]) -> Library:
    """Load one library."""
    path = api / "libraries" / f"{name}.yaml"
    try:
        said = yaml.safe_load(path.read_text())
        facts = json.loads((api / "imported" / "libraries" / f"{name}.json").read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RegistryError(f"{path.name}: {error}") from error
    rules = Rules(
        name,
        said["handles"],
        said.get("params", []),
        said.get("calls", []),
        said.get("functions", {}),
        said.get("pointers", "address"),
        {n: v for e in facts["enums"] for n, v in e["values"]},
        {e["name"]: dict(e["values"]) for e in facts["enums"]},
        tuple(re.compile(pattern) for pattern in said.get("wrapped", [])),
        tuple(said.get("work", [])),
    )
    hand = set(said.get("hand", []))
    declared = {row["name"]: row for row in facts["functions"]}
    for unknown in (hand | rules.named.keys()) - declared.keys():
        raise RegistryError(f"{path.name}: {unknown}: {facts['soname']} declares no such function")
    refused = [(re.compile(rule["match"]), rule["why"]) for rule in said.get("unsupported", [])]
    functions, unsupported, older = [], [], []
    reasons: dict[str, str] = {}
    exports = [row["name"] for row in facts["exports"]]
    aliases: dict[str, str] = {}
    prefix = said.get("alias_prefix", "")
    for export in exports:
        if export in hand:
            continue
        target = export.removeprefix(prefix)
        if target != export and target in declared:
            aliases[export] = target
            continue
        why = next((why for p, why in refused if p.fullmatch(export)), None)
        if export not in declared or why is not None:
            unsupported.append(export)
            reasons[export] = why or ""
        elif "legacy" in said and export + said["legacy"]["suffix"] in declared:
            target_row = declared[export + said["legacy"]["suffix"]]
            older.append(make_legacy(declared[export], target_row, f"{path.name}: {export}"))
        else:
            functions.append(make_function(declared[export], rules, ids))
    functions = ask_for_workspaces(functions, path.name)
    functions = keep_by_content(functions, set(said.get("kept", [])), path.name)
    nodes = {row["node"] for row in facts["exports"]}
    return Library(
        name=name,
        soname=facts["soname"],
        status=said["status"],
        pointer_modes=bool(said.get("pointer_modes", False)),
        needs=tuple(said.get("needs", [])),
        functions=tuple(functions),
        hand=tuple(sorted(hand)),
        unsupported=tuple(unsupported),
        undocumented=frozenset(unsupported) - declared.keys(),
        reasons={name: why for name, why in reasons.items() if why},
        legacy=tuple(older),
        older=load_older(api, name, {f.name: f for f in functions}),
        in_place=frozenset(said.get("in_place", [])),
        exports=tuple(exports),
        aliases={a: t for a, t in aliases.items() if t not in hand},
        commands={c: ids.get(c, 0) for c in said.get("commands", {})},
        command_proofs=read_command_proofs(said.get("commands", {}), path.name),
        objects=tuple(sorted(set(rules.handles.values()))),
        node=nodes.pop() if len(nodes) == 1 else "",
    )


def load_libraries(api: Path) -> list[Library]:
    """Load every library that has a file of rules."""
    ids = read_ids(api / "library_ids.lock")
    names = sorted(path.stem for path in (api / "libraries").glob("*.yaml"))
    return [load_one(api, name, ids) for name in names]


def objects_of(libraries: list[Library]) -> dict[str, int]:
    """Number the kinds of objects; the wire never carries these numbers."""
    names = {name for lib in libraries for name in lib.objects}
    return {name: number for number, name in enumerate(sorted(names), 1)}


def unproved(libraries: list[Library]) -> list[str]:
    """Name every parameter that reaches a library although nobody proved what it points to."""
    return [
        f"{lib.name}: {f.name}: {p.name} ({p.kind})"
        for lib in libraries
        for f in lib.functions
        for p in f.params
        if not p.proof
    ] + [
        f"{lib.name}: {command} (written by hand)"
        for lib in libraries
        for command in lib.commands
        if not lib.command_proofs.get(command)
    ]
