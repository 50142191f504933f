# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between Sluice and a vCenter, by what is to be done about it.

Raised by connection.py, tags.py, guestinfo.py and controller_line.py; the service logs them and
tries again, the commands print them and end with a status of their own.
"""

from __future__ import annotations

from sluice.hypervisor.errors import HypervisorError
from sluice.resources.problem_types import ProblemType


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


class ControllerRefused(VsphereError):
    """The controller says no, and why; `type` is its problem document's, "" without one."""

    def __init__(self, message: str, status: int, type: str = "") -> None:  # noqa: A002
        super().__init__(message)
        self.status = status
        self.type = type

    @property
    def is_over(self) -> bool:
        """Whether what was to be ended is not there, or has ended already."""
        if self.type:
            return self.type in _OVER
        return self.status in (404, 409)  # a controller of 0.1 gives no types


_OVER = frozenset(
    kind.uri
    for kind in (
        ProblemType.ENROLMENT_OVER,
        ProblemType.GRANT_ENDED,
        ProblemType.NOT_FOUND,
        ProblemType.RESERVATION_OVER,
    )
)
