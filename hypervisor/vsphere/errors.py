# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between Sluice and a vCenter, by what is to be done about it.

Raised by connection.py, tags.py, guestinfo.py and controller_line.py; the service logs them and
tries again, the commands print them and end with a status of their own.
"""

from __future__ import annotations

from sluice.hypervisor.errors import HypervisorError
from sluice.pool_client.errors import Refused
from sluice.resources.vgpu_request import RequestError


class VsphereError(HypervisorError):
    """Something that a person has to change, or that passes."""


class Unreachable(VsphereError):
    """Nobody answers, or the connection broke; it may pass."""


class BadCertificate(VsphereError):
    """Whoever answers does not prove to be that vCenter; nothing was sent to it."""


class BadLogin(VsphereError):
    """The vCenter does not take the credentials."""


class SessionLost(VsphereError):
    """The session is over: log in anew."""


class BadVmRequest(VsphereError, RequestError):
    """What a VM's attribute or tag asks for cannot be right; the message names the field."""


class ControllerRefused(VsphereError):
    """The controller says no, and why."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(str(refused))
        self.status = refused.status
        self.is_over = refused.is_over  # what was to be ended is not there, or has ended already
