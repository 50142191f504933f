# SPDX-License-Identifier: Apache-2.0
"""The coverage table: what Sluice does with every function that NVIDIA's libraries export.

Used by generate_abi.py for docs/api-coverage.md in the build folder.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from model import ErrorClass, Registry


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    how: str
    error_class: str = ""
    remarks: str = ""


@dataclass(frozen=True)
class Section:
    """One library."""

    title: str
    rows: list[Row]

    @property
    def counts(self) -> list[tuple[str, int]]:
        """How many functions are handled in which way, most first."""
        return Counter(row.how for row in self.rows).most_common()


def driver_row(registry: Registry, name: str) -> Row:
    """Describe one driver function."""
    function = registry.functions.get(name)
    if function is None:
        if name in registry.aliases:
            return Row(name, "another name", remarks=f"`{registry.aliases[name]}`")
        if name in registry.variants:
            return Row(name, "per-thread stream", remarks=f"`{registry.variants[name].target}`")
        return Row(name, "not supported")
    annotation = function.annotation
    if function.error_class == ErrorClass.UNSUPPORTED:
        return Row(name, "not supported", remarks=annotation.note)
    how = "generated" if function.client_generated else "by hand"
    remarks = [annotation.note] if annotation.note else []
    if annotation.cache != "none":
        remarks.append("cached")
    if annotation.may_block:
        remarks.append("may block")
    return Row(name, how, str(function.error_class), ", ".join(remarks))


def runtime_row(registry: Registry, name: str) -> Row:
    """Describe one runtime function."""
    if name in registry.runtime_hand:
        return Row(name, "by hand")
    if name in registry.runtime_variants:
        return Row(name, "per-thread stream", remarks=f"`{registry.runtime_variants[name].target}`")
    return Row(name, "not supported", remarks=registry.runtime_undeclared.get(name, ""))


def coverage_sections(registry: Registry) -> list[Section]:
    """Return both libraries' sections, functions sorted by name."""
    runtime_names = sorted({*registry.runtime.functions, *registry.runtime_undeclared})
    return [
        Section(
            "Driver API (libcuda.so.1)",
            [driver_row(registry, name) for name in sorted(registry.driver.functions)],
        ),
        Section(
            "Runtime API (libcudart.so.13)",
            [runtime_row(registry, name) for name in runtime_names],
        ),
    ]
