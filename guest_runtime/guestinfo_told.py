# SPDX-License-Identifier: Apache-2.0
"""Reads what vSphere tells this VM out of `guestinfo.sluice.*`, and checks it.

Used by enrol.py; guestinfo.py speaks to the hypervisor. Any user of the guest may set these keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Optional

from .guestinfo import GuestInfo
from .told import ADDRESSES, NAME, PEM, SECRET, EnrolError, Told, checked

MODES = ("auto", "reserved", "on-demand")
SEE = "docs/vsphere.md"


def told_by_vsphere(tool: GuestInfo) -> Optional[Told]:  # noqa: UP045 - guests have Python 3.9
    """What stands in guestinfo; None if there is nothing."""
    role = tool.get("role")
    if not role:
        return None
    if role not in ("client", "node"):
        raise EnrolError(f"guestinfo.sluice.role is {role[:20]!r}; client or node is wanted")
    ca = tool.get("ca")
    if ca and not PEM.fullmatch(ca):
        raise EnrolError("guestinfo.sluice.ca is no PEM certificate")
    return Told(
        source="vsphere",
        origin="guestinfo.sluice",
        role=role,
        controller=_checked("controller", tool.get("controller"), ADDRESSES),
        ca=ca,
        node=_checked("node", tool.get("node"), NAME) if role == "node" else "",
        settings=_settings(tool.get("settings")) if role == "client" else {},
        enrolment=_checked("enrolment", secret, SECRET)
        if (secret := tool.get("enrolment"))
        else "",
    )


def _checked(key: str, text: str, pattern: re.Pattern[str]) -> str:
    return checked(f"guestinfo.sluice.{key}", text, pattern, SEE)


def _settings(text: str) -> dict[str, str]:
    try:
        given: Any = json.loads(text or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise EnrolError("guestinfo.sluice.settings is no JSON object")
    settings = {
        "vgpu_count": _number(given, "count", 1, 64),
        "gmem": _number(given, "memory_mib", 0, 1 << 30),
        "ratio": _number(given, "compute_percent", 0, 100),
    }
    mode = given.get("mode", "auto")
    if mode not in MODES:
        raise EnrolError(f"guestinfo.sluice.settings has no mode of {', '.join(MODES)}")
    return {key: "" if value == "0" else value for key, value in settings.items()} | {"mode": mode}


def _number(given: Mapping[str, Any], key: str, low: int, high: int) -> str:
    value = given.get(key, low)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise EnrolError(f"guestinfo.sluice.settings has no {key} from {low} to {high}")
    return str(value)
