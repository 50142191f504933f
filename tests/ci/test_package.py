# SPDX-License-Identifier: Apache-2.0
"""A checkout's package and the wheel's are the same one."""

from __future__ import annotations

import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
GENERATED = {"rpc", "protocol"}


def test_a_checkout_links_what_a_wheel_packs() -> None:
    """Editors follow python/sluice, pip follows pyproject.toml."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    packed = project["tool"]["scikit-build"]["wheel"]["packages"]
    links = {
        f"sluice/{link.name}": str(link.resolve().relative_to(CHECKOUT))
        for link in (CHECKOUT / "python" / "sluice").iterdir()
        if link.name not in GENERATED
    }
    assert links == packed
