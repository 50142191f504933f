# SPDX-License-Identifier: Apache-2.0
"""The environment that the applications are installed in, made again when its list changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from package_environment import python_with


@pytest.fixture(scope="session")
def applications_python() -> Path:
    """The interpreter of the applications' environment."""
    return python_with(Path(__file__).with_name("requirements.txt"), "applications")
