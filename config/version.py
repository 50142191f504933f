# SPDX-License-Identifier: Apache-2.0
"""Which release this is; told by the services to one another and to Prometheus."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def own_version() -> str:
    """The installed distribution's version, or "checkout"."""
    try:
        return version("sluice-gpu")
    except PackageNotFoundError:
        return "checkout"
