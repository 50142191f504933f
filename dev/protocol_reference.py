# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/protocol.md from native/api/protocol.yaml.

Called by `make docs`, and by tests/codegen/test_protocol.py, which holds the page against what
would be written. A table stands between the lines `<!-- STRUCT -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PAGE = CHECKOUT / "docs" / "protocol.md"
PLACE = re.compile(r"(?<=<!-- )(?!end)(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)

sys.path.insert(0, str(CHECKOUT / "native" / "codegen"))

from protocol import Enumeration, Field, Protocol, Struct, load_protocol  # noqa: E402
from wire_layout import camel_case  # noqa: E402


def table(struct: Struct) -> str:
    """The fields of a struct, a line each."""
    lines = ["| offset | type | field | |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {f.offset} | {spelling(f)} | `{f.name}` | {f.about} |".replace("|  |", "| |")
        for f in struct.fields
    ]
    return "\n".join(lines) + "\n"


def spelling(field: Field) -> str:
    """A field's type in the page's words."""
    name = camel_case(field.type) if field.struct or field.number != field.type else field.type
    return f"{name}[{field.count}]" if field.count else name


def values(enumeration: Enumeration) -> str:
    """The numbers of an enumeration, a line each."""
    lines = ["| number | name | |", "| --- | --- | --- |"]
    lines += [
        f"| {c.value} | `{c.name}` | {c.about} |".replace("|  |", "| |")
        for c in enumeration.choices
    ]
    return "\n".join(lines) + "\n"


def written(page: str, said: Protocol) -> str:
    """The page with its tables as the registry has them; raises KeyError for an unknown name."""
    tables = {s.name: table(s) for s in said.structs}
    tables |= {e.name: values(e) for e in said.enumerations}
    return PLACE.sub(lambda m: m[1] + m[2] + tables[m[1]], page)


def current() -> str:
    """What docs/protocol.md is to be."""
    return written(PAGE.read_text(), load_protocol(CHECKOUT / "native" / "api"))


if __name__ == "__main__":
    PAGE.write_text(current())
