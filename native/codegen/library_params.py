# SPDX-License-Identifier: Apache-2.0
"""One parameter of a library's function: what the C type says, what the rules add, and the whole.

Used by libraries.py, which reads the rules (docs/api-registry.md) and joins whole functions.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from imported import RegistryError
from passing import stub_type
from proofs import Attribute, proof_of

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
MAY_BE_ABSENT = ("value", "handle", "stream", "event", "address", "host_workspace", "nothing")
"""Kinds that may be NULL where nothing is said; libraries follow NULL in host memory."""
PARAM_KEYS = {
    "kind", "object", "nullable", "masked", "bytes", "count", "times", "type", "compute",
    "by", "scale_of", "float_or_double", "vector", "nccl", "plus", "either", "values", "refused",
    "tensor_type", "host_mode", "null_mode", "opaque", "least", "most", "skip", "when", "asks",
}  # fmt: skip

STREAMS = {"cudaStream_t", "CUstream"}
EVENTS = {"cudaEvent_t"}


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
    proof: str = ""
    """Who proved what it points to (proofs.py); "" when nobody did."""
    attributes: tuple[Attribute, ...] = ()
    """Of an attribute: all that may be set."""
    host_mode: int = 0
    """A pointer mode beside 0 in which it is in host memory."""
    null_mode: int = 0
    """A pointer mode in which there is none."""
    opaque: int = 0
    """It begins with so many bytes that only the library makes."""
    bounds: tuple[int, int] | None = None
    """The least and the greatest number that it may be, or any of its elements."""
    skip: int = 0
    when: int = -1
    asks: str = ""
    """The function that says how large a host workspace must be."""
    plus: int = 0
    """Elements beside those that are counted."""
    either: bool = False
    """In host memory or on the device, as the object's pointer mode says."""


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
    types: dict[str, dict[str, int]] = field(default_factory=dict)
    """Enumerations by their type's name."""
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
    by_rule: Collection[str] = (),
) -> Param:
    """Join what was said and what the type says; `tensor` is the function's first tensor.

    `by_rule` are the keys that a rule or the function's own entry says.
    """
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
        nullable=bool(
            said.get(
                "nullable",
                kind in MAY_BE_ABSENT and not (first and kind == "handle"),
            )
        ),
        masked=bool(said.get("masked", False)),
        times=int(said.get("times", 1)),
        plus=int(said.get("plus", 0)),
        either=bool(said.get("either", False)),
        host_mode=int(said.get("host_mode", 0)),
        null_mode=int(said.get("null_mode", 0)),
        opaque=int(said.get("opaque", 0)),
        skip=int(said.get("skip", 0)),
        when=index_of(said["when"], names, where) if "when" in said else -1,
    )
    if "least" in said or "most" in said:
        most = (1 << (8 * (result.bytes or 8) - 1)) - 1
        result = replace(result, bounds=(int(said.get("least", 0)), int(said.get("most", most))))
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
    elif "tensor_type" in said:
        place = index_of(said["tensor_type"], names, where)
        result = replace(result, size="kCudnnType", by=place)
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
        result = replace(result, bytes=1, by=index_of(said["by"], names, where))
    proof = proof_of(
        kind,
        said="kind" in by_rule,
        counted=bool(counts),
        opaque=result.opaque > 0,
        asked="asks" in said,
    )
    return replace(result, proof=proof, asks=said.get("asks", ""))
