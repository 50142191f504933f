# SPDX-License-Identifier: Apache-2.0
"""Fixtures: certificates."""

from __future__ import annotations

import pytest
from pool_certificates import PoolCa


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> PoolCa:
    """A CA of its own for each module; what it issues lies beside its folder."""
    return PoolCa(tmp_path_factory.mktemp("pool") / "ca")
