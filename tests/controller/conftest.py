# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a pool without I/O."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pool_bench import PoolBench


@pytest.fixture
def make_bench() -> Callable[..., PoolBench]:
    return PoolBench


@pytest.fixture
def bench() -> PoolBench:
    return PoolBench()
