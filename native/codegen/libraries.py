# SPDX-License-Identifier: Apache-2.0
"""The registry's part about CUDA's libraries: imported signatures joined with a file of rules each.

`native/api/libraries/NAME.yaml` says by rules how the parameters of hundreds of functions of one
shape cross the wire; what no rule and no C type decides must be said for the function, and the
error says how. The format is described in docs/api-registry.md. Nothing here writes files.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from imported import RegistryError
from legacy import Legacy, make_legacy
from passing import stub_type, take_apart

FIRST_ID = 1024
"""native/wire/frame.h, kFirstLibraryFunction."""
LAST_ID = 4095
MAX_PARAMS = 48

KINDS = {
    "value": "kValue",
    "handle": "kHandle",
    "stream": "kStream",
    "event": "kEvent",
    "address": "kAddress",
    "scalar": "kScalar",
    "result": "kResult",
    "in": "kIn",
    "out": "kOut",
    "in_out": "kInOut",
    "string": "kString",
    "mint": "kMint",
    "in_handles": "kInHandles",
    "in_addresses": "kInAddresses",
    "out_address": "kOutAddress",
    "out_handle": "kOutHandle",
    "host_workspace": "kHostWorkspace",
    "attribute": "kAttribute",
    "nothing": "kNothing",
}
CLASSES = {"async": "kAsync", "answered": "kAnswered", "learned": "kLearned"}
STATES = {"": "kNone", "creates": "kCreates", "destroys": "kDestroys", "sets": "kSets"}
PARAM_KEYS = {
    "kind", "object", "nullable", "masked", "bytes", "count", "times", "type", "compute",
    "addresses", "by", "scale_of", "float_or_double", "vector", "nccl", "plus", "either",
}  # fmt: skip
FUNCTION_KEYS = {
    "class", "state", "cached", "launches", "set_by", "stream", "pointer_mode", "data_type",
    "params", "attribute", "changes", "computes", "outputs_always", "grouped", "deferred",
    "commutes", "host_memory",
}  # fmt: skip

STREAMS = {"cudaStream_t", "CUstream"}
EVENTS = {"cudaEvent_t"}
TENSOR = r"cudnn(Tensor|Filter)Descriptor_t$"


@dataclass(frozen=True)
class Param:
    """One parameter with everything that its ParamSpec holds."""

    name: str
    ctype: str
    """The C type that the generated stub declares: same size and register, no header needed."""
    kind: str
    object: str = ""
    nullable: bool = False
    masked: bool = False
    bytes: int = 8
    count: tuple[int, ...] = ()
    times: int = 1
    size: str = "kFixed"
    by: int = -1
    by2: int = -1
    addresses: tuple[int, ...] = ()
    plus: int = 0
    """Elements beside those that are counted."""
    either: bool = False
    """In host memory or on the device, as the object's pointer mode says."""


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
    changes: int
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
    objects: tuple[str, ...]
    node: str
    """The version node of every exported name, or empty."""
    in_place: frozenset[str]
    """Kinds of objects that may lie in the application's own memory, by address."""


@dataclass
class Rules:
    """One YAML file, read."""

    name: str
    handles: dict[str, str]
    params: list[dict[str, Any]]
    functions: list[dict[str, Any]]
    named: dict[str, dict[str, Any]]
    pointers: str
    enums: dict[str, int] = field(default_factory=dict)
    wrapped: tuple[re.Pattern[str], ...] = ()
    work: tuple[str, ...] = ()
    """Objects whose stream gets a function's work; otherwise the first handle's."""

    def number(self, value: Any, where: str) -> int:
        """Return an integer, or the value of an enumerator."""
        if isinstance(value, int):
            return value
        if value in self.enums:
            return self.enums[value]
        raise RegistryError(f"{where}: {value!r} is neither a number nor an enumerator")


def infer(row: dict[str, Any], rules: Rules, creates: bool) -> dict[str, Any]:
    """Return what the C type alone says."""
    ctype = row["type"].removeprefix("const ")
    if ctype in rules.handles:
        return {"kind": "handle", "object": rules.handles[ctype], "bytes": row["size"]}
    if ctype in STREAMS:
        return {"kind": "stream"}
    if ctype in EVENTS:
        return {"kind": "event"}
    if "pointee" not in row:
        return {"kind": "value", "bytes": row["size"]}
    target = ctype.removesuffix("*").strip()
    if target in rules.handles and not row["const"]:
        size = row["pointee"]
        kind = "mint" if creates else "out_handle"
        return {"kind": kind, "object": rules.handles[target], "bytes": size}
    if row["canonical"] == "const char *":
        return {"kind": "string"}
    return {"kind": rules.pointers}


def matches(rule: dict[str, Any], function: str, row: dict[str, Any]) -> bool:
    """Tell whether a parameter rule applies."""
    return (
        re.fullmatch(rule.get("in", ".*"), function) is not None
        and re.fullmatch(rule.get("name", ".*"), row["name"]) is not None
        and re.fullmatch(rule.get("type", ".*"), row["type"]) is not None
    )


def index_of(name: str, names: list[str], where: str) -> int:
    """Return the position of the parameter with that name."""
    if name not in names:
        raise RegistryError(f"{where}: there is no parameter {name}; it has {', '.join(names)}")
    return names.index(name)


def make_param(
    row: dict[str, Any],
    said: dict[str, Any],
    names: list[str],
    rules: Rules,
    where: str,
    tensor: int = -1,
) -> Param:
    """Join what was said and what the type says; `tensor` is the function's first tensor."""
    for key in said.keys() - PARAM_KEYS:
        raise RegistryError(f"{where}: key {key!r} is unknown; use {', '.join(sorted(PARAM_KEYS))}")
    kind = said["kind"]
    first = row["name"] == names[0]
    if kind not in KINDS:
        raise RegistryError(f"{where}: kind {kind!r} is unknown; use one of {', '.join(KINDS)}")
    ctype = stub_type(row)
    if not ctype:
        raise RegistryError(f"{where}: {row['type']} does not fit into a word; write it by hand")
    pointee = row.get("pointee", 0)
    size = said.get("bytes", pointee if "pointee" in row else row["size"])
    carried = kind in ("in", "out", "in_out", "scalar", "result")
    result = Param(row["name"], ctype, kind, bytes=int(size))
    if kind in ("in_handles", "in_addresses", "out_address", "out_handle"):
        result = replace(result, bytes=8)
    result = replace(
        result,
        object=said.get("object", ""),
        nullable=bool(said.get("nullable", kind != "mint" and not (first and kind == "handle"))),
        masked=bool(said.get("masked", False)),
        times=int(said.get("times", 1)),
        plus=int(said.get("plus", 0)),
        either=bool(said.get("either", False)),
    )
    counts = said.get("count", [])
    counts = counts if isinstance(counts, list) else [counts]
    result = replace(result, count=tuple(index_of(str(c), names, where) for c in counts))
    if "type" in said:
        result = replace(result, size="kDataType", by=index_of(said["type"], names, where))
    elif "compute" in said:
        first, second = said["compute"]
        result = replace(
            result,
            size="kComputeType",
            by=index_of(first, names, where),
            by2=index_of(second, names, where),
        )
    elif "scale_of" in said:
        result = replace(result, size="kObjectType", by=index_of(said["scale_of"], names, where))
    elif "nccl" in said:
        first, second = said["nccl"]
        result = replace(
            result,
            size="kNcclType",
            by=index_of(first, names, where),
            by2=index_of(second, names, where),
        )
    elif "vector" in said:
        result = replace(result, size="kVectorType", by=index_of(said["vector"], names, where))
    elif "float_or_double" in said:
        about = said["float_or_double"]
        place = tensor if about == "auto" else index_of(about, names, where)
        if place < 0:
            raise RegistryError(f"{where}: no tensor or filter says whether it is a double")
        result = replace(result, size="kDoubleOrFloat", by=place)
    elif carried and result.bytes == 0:
        raise RegistryError(
            f"{where}: {row['type']} has no size; say bytes, type, compute or scale_of"
        )
    if kind == "attribute":
        addresses = tuple(rules.number(a, where) for a in said.get("addresses", []))
        result = replace(
            result, bytes=1, addresses=addresses, by=index_of(said["by"], names, where)
        )
    return result


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
        for rule in rules.params:
            if matches(rule, name, param):
                values = {k: v for k, v in rule.items() if k not in ("in", "name", "type")}
                if "of_type" in values:
                    values["type"] = values.pop("of_type")
                if values.get("kind") == inferred["kind"]:
                    values = {**inferred, **values}
                break
        values = {**values, **own.get("params", {}).get(param["name"], {})}
        tensor = tensors[0] if tensors else -1
        params.append(make_param(param, values, names, rules, place, tensor))
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
        changes=index_of(said["changes"], names, where) if "changes" in said else -1,
        computes=index_of(said["computes"], names, where) if "computes" in said else -1,
        outputs_always=bool(said.get("outputs_always", False)),
        grouped=bool(said.get("grouped", False)),
        deferred=bool(said.get("deferred", False)),
        commutes=bool(said.get("commutes", False)),
        host_memory=bool(said.get("host_memory", False)),
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
        in_place=frozenset(said.get("in_place", [])),
        exports=tuple(exports),
        aliases={a: t for a, t in aliases.items() if t not in hand},
        commands={c: ids.get(c, 0) for c in said.get("commands", [])},
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
