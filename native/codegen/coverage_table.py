# SPDX-License-Identifier: Apache-2.0
"""The coverage table: what Sluice does with every function that NVIDIA's libraries export.

Used by generate_abi.py for docs/api-coverage.md in the build folder.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from libraries import Function, Library
from major_model import Major
from model import ErrorClass, Registry

REFUSED = "refused as a device without it would"


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
        graphics = any(row.exported == name for row in registry.driver_undeclared)
        return Row(name, "not supported", remarks="graphics" if graphics else "")
    annotation = function.annotation
    if function.error_class == ErrorClass.UNSUPPORTED:
        return Row(name, "not supported", remarks=annotation.note)
    if function.error_class == ErrorClass.REFUSED:
        return Row(name, REFUSED, "local", f"`{annotation.answers}`; {annotation.note}")
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
    sections = [
        Section(
            "Driver API (libcuda.so.1)",
            [driver_row(registry, name) for name in registry.driver_exports()],
        ),
        Section(
            "Runtime API (libcudart.so.13)",
            [runtime_row(registry, name) for name in runtime_names],
        ),
    ]
    for major in registry.majors:
        title = f"Runtime API of CUDA {major.number} ({major.soname}), where it differs"
        sections.append(Section(title, major_rows(major)))
    return sections


def major_rows(major: Major) -> list[Row]:
    """Describe what an older runtime has of its own."""
    rows = [Row(f.name, "by hand") for f in major.hand]
    for adapter in major.adapters:
        same = adapter.function.name.rsplit("_v", 1)[0] == adapter.target
        converted = [a.converts for a in adapter.arguments if a.converts]
        how = (
            "adapted"
            if converted or len(adapter.arguments) != len(adapter.function.params)
            else "another name"
        )
        remarks = [] if same and how == "adapted" else [f"`{adapter.target}`"]
        remarks += [f"`{tag}` converted" for tag in converted]
        rows.append(Row(adapter.function.name, how, remarks=", ".join(remarks)))
    rows += [
        Row(v.function.name, "per-thread stream", remarks=f"`{v.target}`") for v in major.variants
    ]
    rows += [Row(f.name, "not supported") for f in major.unsupported]
    return sorted(rows, key=lambda row: row.name)


@dataclass(frozen=True)
class LibrarySection:
    """A forwarding library: how its functions cross the wire, and their names."""

    title: str
    groups: list[tuple[str, str, list[str]]]
    """How, what that means, names."""


def how_by_table(function: Function) -> tuple[str, str]:
    """Say how a function with a table crosses the wire."""
    if function.cached or function.text:
        return "by table, answer kept", "one round trip for each question"
    if function.call == "answered":
        return "by table, answered", "a round trip a call"
    if function.call == "async":
        return "by table, not waited for", "after the first call in a process"
    return "by table, learned", "a round trip for the first call of its kind, then none"


def library_sections(libraries: list[Library]) -> list[LibrarySection]:
    """Return a section for each library."""
    sections = []
    for lib in libraries:
        groups: dict[tuple[str, str], list[str]] = {}
        for function in lib.functions:
            groups.setdefault(how_by_table(function), []).append(function.name)
        if lib.hand:
            groups["by hand", ""] = list(lib.hand)
        if lib.legacy:
            groups["by the function with a handle", "cublas.h, over one handle a context"] = [
                f.name for f in lib.legacy
            ]
        refused = "answers so, and is named once in the client's log"
        for name in lib.unsupported:
            if name in lib.undocumented:
                groups.setdefault(
                    ("not documented by NVIDIA", "exported, declared in no header; " + refused), []
                ).append(name)
            else:
                why = lib.reasons.get(name, "")
                groups.setdefault(
                    ("not supported", refused + (f": {why}" if why else "")), []
                ).append(name)
        rows = [(how, meaning, sorted(names)) for (how, meaning), names in groups.items()]
        rows.sort(key=lambda row: (row[0].startswith("not "), -len(row[2])))
        sections.append(LibrarySection(f"{lib.name} ({lib.soname})", rows))
    return sections
