# SPDX-License-Identifier: Apache-2.0
"""The texts that say a vGPU request, each with one reader: metadata, a VM's attribute, a session.

Called by hypervisor.request, hypervisor.vsphere.vm_request and server.sessions.open_session, which
give what is wrong an error of their own. Pure. Whatever the text is, it ends in a VgpuRequest or in
a RequestError that names the field.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sluice.resources import vgpu_request as fields
from sluice.resources.vgpu_request import (
    Choice,
    Mode,
    Number,
    RequestError,
    Sharing,
    Text,
    VgpuRequest,
    shown,
)


@dataclass(frozen=True, slots=True)
class NumberKey:
    """What a form calls a number: the field, its bounds, and what it is where nothing is said.

    A default of None: it has to be said.
    """

    field: str
    bounds: Number
    default: int | None


#: The attributes of the metadata's `<vgpu>` element; append-only.
METADATA: Mapping[str, NumberKey] = {
    "count": NumberKey("count", fields.COUNT, 1),
    "memory-mib": NumberKey("memory_mib", fields.DEFINED_MEMORY_MIB, None),
    "compute": NumberKey("compute_percent", fields.COMPUTE_PERCENT, None),
    "priority": NumberKey("priority", fields.PRIORITY, 0),
}


def read_numbers(keys: Mapping[str, NumberKey], said: Mapping[str, str]) -> dict[str, int]:
    """The fields that the keys stand for; raises RequestError, which names the key."""
    found: dict[str, int] = {}
    for name, key in keys.items():
        text = said.get(name)
        if text is not None:
            found[key.field] = key.bounds.read(name, text)
        elif key.default is not None:
            found[key.field] = key.default
        else:
            raise RequestError(name, None, f"give {key.bounds.allowed}")
    return found


# A VM's custom attribute or tag: `count=1 memory=4GiB compute=25 mode=reserved project=vision`.

LONGEST_VM_TEXT = 200
_UNITS = {"": 1, "m": 1, "mb": 1, "mib": 1, "g": 1024, "gb": 1024, "gib": 1024}
#: Its fields, and what is allowed.
VM_TEXT: Mapping[str, str] = {
    "count": f"give a number of vGPUs from {fields.COUNT.allowed}, such as count=1",
    "memory": "give MiB or GiB of each vGPU, such as memory=4096 or memory=4GiB",
    "compute": f"give percent of a GPU's time from {fields.COMPUTE_PERCENT.allowed}, such as "
    "compute=25",
    "mode": "give auto, reserved or on-demand",
    "project": "give a project that [clients] allows",
}
# zeros are the pool's defaults
_VM_MEMORY = replace(fields.MEMORY_MIB, low=0)
_VM_COMPUTE = replace(fields.COMPUTE_PERCENT, low=0)


def read_vm_text(text: str, defaults: VgpuRequest, projects: Collection[str]) -> VgpuRequest:
    """Reads fields in any order with spaces, commas or semicolons between.

    What is left out is as in `defaults`, and the word default alone leaves out all; raises
    RequestError.
    """
    if len(text) > LONGEST_VM_TEXT:
        raise RequestError(
            "text", f"{len(text)} characters", f"give at most {LONGEST_VM_TEXT} characters"
        )
    said: dict[str, str] = {}
    for part in re.split(r"[\s,;]+", text.strip()):
        if part in ("", "default"):
            continue
        name, equals, value = part.partition("=")
        if not equals or name not in VM_TEXT:
            known = ", ".join(VM_TEXT)
            raise RequestError(
                "field",
                shown(part),
                f"there is no such field; give some of {known}, each with = and a value, or the "
                "word default",
            )
        if name in said:
            raise RequestError(name, shown(value), f"is there twice; {VM_TEXT[name]}")
        said[name] = value
    request = replace(defaults, **{k: v for name in said for k, v in _vm_field(name, said[name])})
    if request.project not in projects:
        raise RequestError(
            "project",
            shown(request.project),
            f"VMs may not name it; give one of {', '.join(sorted(projects))}, or have it added to "
            "[clients] projects_allowed",
        )
    return request


def _vm_field(name: str, text: str) -> list[tuple[str, Any]]:
    try:
        match name:
            case "count":
                return [("count", fields.COUNT.read(name, text))]
            case "memory":
                return [("memory_mib", _VM_MEMORY.check(name, _mib(text)))]
            case "compute":
                return [("compute_percent", _VM_COMPUTE.read(name, text.removesuffix("%")))]
            case "mode":
                return [("mode", Mode(fields.MODE.read(name, text)))]
            case _:
                return [("project", fields.PROJECT.read(name, text))]
    except RequestError:
        raise RequestError(name, shown(text), VM_TEXT[name]) from None


def _mib(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9})([A-Za-z]{0,3})", text, re.ASCII)
    if not found or found[2].lower() not in _UNITS:
        raise RequestError("memory", shown(text), VM_TEXT["memory"])
    return int(found[1]) * _UNITS[found[2].lower()]


# What follows an OpenSession (native/api/protocol.yaml): lines of `name=value`.


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A name that may stand in such a line, and the variable that a user sets for it."""

    accepts: Text | Choice
    variable: str


SESSION_LINES: Mapping[str, SessionLine] = {
    "project": SessionLine(fields.PROJECT, "SLUICE_PROJECT"),
    "gpu_model": SessionLine(fields.GPU_MODEL, "SLUICE_GPU_MODEL"),
    "gpu_architecture": SessionLine(fields.GPU_ARCHITECTURE, "SLUICE_GPU_ARCHITECTURE"),
    "sharing": SessionLine(fields.SHARING, "SLUICE_SHARING"),
    "label": SessionLine(fields.LABEL, "SLUICE_LABELS"),
}


def read_session_lines(text: bytes, request: VgpuRequest) -> VgpuRequest:
    """`request` with what the lines say besides; raises RequestError, which names the variable.

    Names that this release does not know are a newer client's and mean nothing here.
    """
    try:
        lines = text.rstrip(b"\0").decode().splitlines()
    except UnicodeDecodeError as error:
        raise RequestError("OpenSession", str(error), "text in UTF-8 may follow it") from None
    found: dict[str, Any] = {}
    labels: set[tuple[str, str]] = set()
    for line in lines:
        name, _, value = line.partition("=")
        key = SESSION_LINES.get(name)
        if key is None:
            continue
        key.accepts.read(key.variable, value)
        if name == "label":
            label, _, content = value.partition("=")
            labels.add((label, content))
        elif name == "sharing":
            found[name] = Sharing(value)
        else:
            found[name] = value
    if len(labels) > fields.MAX_LABELS:
        allowed = f"give at most {fields.MAX_LABELS}"
        raise RequestError("SLUICE_LABELS", f"{len(labels)} labels", allowed)
    return replace(request, labels=tuple(sorted(labels)), **found)
