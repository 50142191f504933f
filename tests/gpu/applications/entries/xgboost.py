# SPDX-License-Identifier: Apache-2.0
"""XGBoost, whose library has NVIDIA's runtime linked into it: diverted."""

from __future__ import annotations

from ..carried import Carried
from ..entry import HERE, Entry, Place, Programs

NAMES = (*("regression", "classes", "missing", "quantiles", "ranking", "contributions", "forests"),)


def commands(place: Place) -> dict[str, list[str]]:
    """Each part of programs/xgboost_parts.py."""
    program = str(HERE / "programs" / "xgboost_parts.py")
    return {name: [str(place.python), program, name] for name in NAMES}


ENTRY = Entry(
    name="xgboost",
    title="XGBoost",
    what="training and prediction with `device=cuda`, diverted; the same digits",
    parts=(Programs("programs", commands),),
    divert=True,
    versions=("xgboost", "numpy"),
    gibibytes=0.1,
    carried=Carried(left_out=("*/tests/*", "*.pyi", "*/include/*", "*.a")),
)
