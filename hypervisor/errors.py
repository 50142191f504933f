# SPDX-License-Identifier: Apache-2.0
"""The errors of this package: one line that says what was wanted, what was found, what to do.

Raised by every module here; cli.py prints them, service.py logs them.
"""

from __future__ import annotations

from sluice.resources.vgpu_request import RequestError


class HypervisorError(Exception):
    """Something about a domain, a request or libvirt that a person has to change."""


class InvalidRequest(HypervisorError, RequestError):
    """A request for a vGPU that cannot be right, from the command line or from metadata."""
