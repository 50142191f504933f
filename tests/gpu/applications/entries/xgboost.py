# SPDX-License-Identifier: Apache-2.0
"""XGBoost, whose library has NVIDIA's runtime linked into it: diverted."""

from __future__ import annotations

from ..carried import Carried
from ..entry import HERE, Entry, Programs, each_part

NAMES = (*("regression", "classes", "missing", "quantiles", "ranking", "contributions", "forests"),)
ENTRY = Entry(
    name="xgboost",
    title="XGBoost",
    what="training and prediction with `device=cuda`, diverted; the same digits",
    parts=(Programs("programs", each_part(HERE / "programs/xgboost_parts.py", NAMES)),),
    divert=True,
    versions=("xgboost", "numpy"),
    gibibytes=0.1,
    carried=Carried(left_out=("*/tests/*", "*.pyi", "*/include/*", "*.a")),
)
