# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a controller's console without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.console.place import Place


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    made = Place(tmp_path)
    await made.open()
    yield made
    await made.store.close()
