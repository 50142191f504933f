# SPDX-License-Identifier: Apache-2.0
"""How a parameter of a library's function is passed: a C type of the same size and register."""

from __future__ import annotations

from typing import Any

COMPLEX_FLOAT, COMPLEX_DOUBLE = "float2", "double2"
"""Complex numbers by value: one fits into a word, two doubles are passed as two parameters."""


def stub_type(row: dict[str, Any]) -> str:
    """Return a type of the same size and register class."""
    if "pointee" in row:
        return "void*"
    canonical, size = row["canonical"], row["size"]
    if row.get("float"):
        return "double" if size == 8 else "float"
    if canonical == COMPLEX_FLOAT:
        return "sluice::wire::Complex"
    if size > 8 or size == 0:
        return ""
    signed = not canonical.startswith("unsigned") and canonical not in ("size_t", "bool")
    return f"{'' if signed else 'u'}int{size * 8}_t"


def take_apart(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a complex double by value as the two doubles that registers make of it."""
    if row["canonical"] != COMPLEX_DOUBLE:
        return [row]
    half = {**row, "type": "double", "canonical": "double", "size": 8, "float": True}
    return [{**half, "name": row["name"] + part} for part in ("_x", "_y")]
