# SPDX-License-Identifier: Apache-2.0
"""How the programs beside this one print an array, so that two runs of them can be compared."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


def show(array: Any) -> None:
    """A line with its shape, kind, sum, largest number and a digest of its bytes."""
    host = np.asarray(array)
    wide = host.astype(np.float64)
    digest = hashlib.sha256(host.tobytes()).hexdigest()[:16]
    print(host.shape, host.dtype, f"{wide.sum():.6g} {np.abs(wide).max():.6g}", digest)
