# SPDX-License-Identifier: Apache-2.0
"""What a platform's claim gives the processes that come by its socket.

Read from what the platform's part on this host asks (claims.listener) and from the record that a
server leaves for the next one; carried by sessions.records.Requester. All of it is the platform's
word, and none of it the container's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sluice.resources.vgpu_request import COUNT, PRIORITY, PROJECT, RequestError, shown

_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME = re.compile(r"[a-z0-9.-]{1,253}/[a-z0-9.-]{1,253}")
_POD = re.compile(r"[0-9a-f-]{1,64}")
_POD_NAME = re.compile(r"[a-z0-9.-]{1,253}")
_CONTAINER = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_TOKEN = re.compile(r"[0-9a-f]{32}")
_WHAT_NAME = "NAMESPACE/NAME in small letters, digits, `-` and `.`"


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """One claim: its sessions draw on the part of a reservation that has its `label`."""

    uid: str
    name: str  # namespace/name
    label: str
    project: str
    count: int = 1
    priority: int = 0
    pod: str = ""  # the UID of the one pod whose processes are let in; "": the mounts decide alone
    # for people, where the platform knows it: whose the claim is, and which of its containers'
    pod_name: str = ""
    container: str = ""
    job: str = ""  # the token by which its processes share a grant; a secret of its containers

    def to_record(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def read_uid(found: Mapping[str, Any]) -> str:
    """The claim's UID; raises RequestError."""
    return _text(found, "uid", _UID, "the claim's UID")


def read_terms(found: Mapping[str, Any]) -> ClaimTerms:
    """Raises RequestError, which names the field that is wrong."""
    job = found.get("job", "")
    if job and not (isinstance(job, str) and _TOKEN.fullmatch(job)):
        raise RequestError("job", "…", "give 32 hexadecimal digits")
    return ClaimTerms(
        uid=read_uid(found),
        name=_text(found, "name", _NAME, _WHAT_NAME),
        label=_text(found, "label", re.compile(PROJECT.pattern), PROJECT.allowed),
        project=_text(found, "project", re.compile(PROJECT.pattern), PROJECT.allowed),
        count=COUNT.check("count", _number(found, "count", 1)),
        priority=PRIORITY.check("priority", _number(found, "priority", 0)),
        pod=_optional(found, "pod", _POD, "the pod's UID"),
        pod_name=_optional(found, "pod_name", _POD_NAME, "the pod's name"),
        container=_optional(found, "container", _CONTAINER, "the name of a container"),
        job=job,
    )


def _text(found: Mapping[str, Any], field: str, pattern: re.Pattern[str], allowed: str) -> str:
    value = found.get(field)
    if value is None:
        raise RequestError(field, None, f"give {allowed}")
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise RequestError(field, shown(str(value)), f"give {allowed}")
    return value


def _optional(found: Mapping[str, Any], field: str, pattern: re.Pattern[str], allowed: str) -> str:
    return _text(found, field, pattern, allowed) if found.get(field) else ""


def _number(found: Mapping[str, Any], field: str, default: int) -> int:
    value = found.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RequestError(field, shown(str(value)), "give a number")
    return value
