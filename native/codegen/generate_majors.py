# SPDX-License-Identifier: Apache-2.0
"""Generate what an older major version of libcudart has of its own.

Called by generate_abi.py for every Major: abi/cudaN_runtime.h, client/own_runtimeN.inc and
exports/libcudartN.map; abi/runtime_version.h for all of them.
"""

from __future__ import annotations

from typing import Any, Protocol

import c_text
from imported import ImportedFunction
from major_model import Major
from variants import PerThreadVariant


class Renders(Protocol):
    """Writes a template's text into the output folder."""

    def render(self, template: str, target: str, **values: Any) -> None:
        """Write `target` unless it has that text already."""


def own_name(major: Major, name: str) -> str:
    """What C++ calls a function of the older major; its symbol is `name`."""
    return f"cudart{major.number}_{name}"


def own_prototype(major: Major, function: ImportedFunction, named: bool = True) -> str:
    """Return the prototype under the name of C++."""
    return c_text.prototype(function, named).replace(
        f"{function.name}(", f"{own_name(major, function.name)}(", 1
    )


def exports(major: Major) -> list[str]:
    """Every name that our library exports."""
    return sorted({*major.library.functions, *major.undeclared})


def variant_values(major: Major, variant: PerThreadVariant) -> dict[str, Any]:
    """Prepare a name with _ptsz; none has its stream in a structure or waits."""
    assert variant.record is None, variant.function.name
    assert not variant.waits, variant.function.name
    own = {f.name for f in major.own}
    target = variant.target
    return {
        "prototype": own_prototype(major, variant.function),
        "target": own_name(major, target) if target in own else f"::{target}",
        "arguments": ", ".join(variant.arguments),
    }


def generate_major(writer: Renders, major: Major) -> None:
    """Write the files of one major version."""
    writer.render(
        "major_header.h.j2",
        f"abi/cuda{major.number}_runtime.h",
        number=major.number,
        version=f"{major.version // 1000}.{major.version % 1000 // 10}",
        soname=major.soname,
        prefix=own_name(major, ""),
        types=[c_text.type_text(c.declaration) for c in major.conversions],
        checks=[x for c in major.conversions for x in c_text.layout_checks(c.declaration)],
        conversions=[
            (c.declaration.tag or c.declaration.name, c.pieces) for c in major.conversions if c.both
        ],
        prototypes=[(own_prototype(major, f), f.name) for f in major.own],
    )
    writer.render(
        "major_runtime.inc.j2",
        f"client/own_runtime{major.number}.inc",
        number=major.number,
        soname=major.soname,
        adapters=[
            {
                "prototype": own_prototype(major, a.function),
                "target": a.target,
                "arguments": a.arguments,
                "answers": any(x.converts and not x.reads for x in a.arguments),
            }
            for a in major.adapters
        ],
        variants=[variant_values(major, v) for v in major.variants],
        unsupported=[
            {
                "name": f.name,
                "prototype": own_prototype(major, f, named=False),
                "answer": "return cudaErrorNotSupported;",
            }
            for f in major.unsupported
        ],
    )
    writer.render(
        "exports_library.map.j2",
        f"exports/libcudart{major.number}.map",
        library=major.soname,
        node=f"{major.soname} ",
        names=exports(major),
    )
