# SPDX-License-Identifier: Apache-2.0
"""What a VM is told about its place in the pool, checked, whoever told it.

Made by guestinfo_told, vendordata and enrol itself, used by enrol. Everything here was written by
somebody else (a hypervisor's metadata that any user of the guest may set, a web service, a file),
so nothing is believed that does not look like what it has to be, and no message repeats what may be
a secret that was cut short.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ADDRESS = r"(?:[A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"
ADDRESSES = re.compile(rf"{ADDRESS}(?:,{ADDRESS}){{0,15}}")
URLS = re.compile(rf"(?:https?://)?{ADDRESS}(?:,(?:https?://)?{ADDRESS}){{0,15}}")
SECRET = re.compile(r"sluice_enrol_[A-Za-z0-9_-]{20,200}")
TOKEN = re.compile(r"sluice_[A-Za-z0-9_-]{20,200}")
NAME = re.compile(r"[A-Za-z0-9._-]{1,120}")
PEM = re.compile(
    r"(?:-----BEGIN CERTIFICATE-----\s+[A-Za-z0-9+/=\s]{1,20000}-----END CERTIFICATE-----\s*){1,8}"
)


class EnrolError(Exception):
    """It cannot be done; the message names what and the way out."""


class NotYetError(EnrolError):
    """It cannot be done now, and may be in a moment."""


class RefusedError(EnrolError):
    """The controller does not take this secret, whatever is tried; another one might do."""


@dataclass(frozen=True)
class Told:
    """What the VM is told, checked."""

    source: str  # vsphere, openstack or given
    origin: str  # where it stood, for people
    controller: str  # host:port, several with commas; https:// before one asks for TLS
    enrolment: str  # the one-time secret; empty: it is used already
    role: str = "client"
    ca: str = ""  # PEM
    node: str = ""
    reservation: str = ""
    expires: float = 0.0  # when the secret ends, in seconds since the epoch; 0: not known
    settings: Mapping[str, str] = field(default_factory=dict)  # keys of client.conf's [client]


def checked(name: str, text: Any, pattern: re.Pattern[str], see: str) -> str:
    """The text if it is one and fits; EnrolError names the field and where to read about it."""
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise EnrolError(f"{name} is not what it should be; see {see}")
    return text
