# SPDX-License-Identifier: Apache-2.0
"""Texts for error codes: the known ones, and words made of the enumerator for the rest.

Used by generate_abi.py for abi/names.h.
"""

from __future__ import annotations

import re


def words(name: str, prefix: str) -> str:
    """cudaErrorMapBufferObjectFailed -> "map buffer object failed"."""
    rest = name.removeprefix(prefix)
    if "_" in rest or rest.isupper():
        return rest.replace("_", " ").lower()
    parts = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+", rest)
    return " ".join(parts).lower()


def error_rows(
    values: tuple[tuple[str, int], ...], prefix: str, texts: dict[int, str]
) -> list[tuple[int, str, str]]:
    """(value, enumerator, text) by value; the first enumerator of a value wins."""
    rows: dict[int, tuple[int, str, str]] = {}
    for name, value in values:
        rows.setdefault(value, (value, name, texts.get(value) or words(name, prefix)))
    return [rows[value] for value in sorted(rows)]
