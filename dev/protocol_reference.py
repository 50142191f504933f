# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/protocol.md from native/api/protocol.yaml and control.yaml.

Called by `make docs`, and by tests/codegen/test_protocol.py, which holds the page against what
would be written. A table stands between the lines `<!-- NAME -->` and `<!-- end -->`: a struct, an
enumeration, or what a process is told or says (`worker_received`, `worker_sent`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PAGE = CHECKOUT / "docs" / "protocol.md"
API = CHECKOUT / "native" / "api"
PLACE = re.compile(r"(?<=<!-- )(?!end -->)(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)

sys.path.insert(0, str(CHECKOUT / "native" / "codegen"))

from control import ControlMessage, MessageField, load_control  # noqa: E402
from protocol import Enumeration, Field, Protocol, Struct, load_protocol  # noqa: E402
from wire_layout import camel_case  # noqa: E402


def grid(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; a cell may be empty."""
    lines = (heads, ["---"] * len(heads), *rows)
    return "".join(
        "|" + "|".join(f" {cell} " if cell != "" else " " for cell in line) + "|\n"
        for line in lines
    )


def table(struct: Struct) -> str:
    """The fields of a struct, a line each."""
    rows = ((f.offset, spelling(f), f"`{f.name}`", f.about) for f in struct.fields)
    return grid(("offset", "type", "field", ""), rows)


def spelling(field: Field) -> str:
    """A field's type in the page's words."""
    name = camel_case(field.type) if field.struct or field.number != field.type else field.type
    return f"{name}[{field.count}]" if field.count else name


def values(enumeration: Enumeration) -> str:
    """The numbers of an enumeration, a line each."""
    rows = ((c.value, f"`{c.name}`", c.about) for c in enumeration.choices)
    return grid(("number", "name", ""), rows)


def messages(all_of_them: tuple[ControlMessage, ...]) -> str:
    """A table of messages, and below it one of what their keys mean."""
    rows = []
    about: dict[str, str] = {}
    for m in all_of_them:
        listed = [(f"{m.list}.N.{f.name}", f) for f in m.each]
        keys = [(f.name, f) for f in m.fields] + listed
        names = ", ".join(f"**`{name}`**" if f.needed else f"`{name}`" for name, f in keys)
        beside = ", ".join(f"`{name}`" for name in m.descriptors)
        answer = f"; answered by `{m.answer}`" if m.answer else ""
        rows.append((f"`{m.verb}`", names, beside, f"{m.about}{answer}"))
        about |= {name: words for name, f in keys if (words := meaning(f))}
    found = grid(("message", "keys", "descriptors", ""), rows)
    if about:
        keys_of_all = ((f"`{name}`", words) for name, words in sorted(about.items()))
        found += "\n" + grid(("key", ""), keys_of_all)
    return found


def meaning(field: MessageField) -> str:
    """What is good in a key, and what it is; "" where there is nothing to say."""
    words = []
    if field.choices:
        words.append(", ".join(f"`{choice}`" for choice in field.choices))
    elif field.type == "number" and field.most < (1 << 32):
        words.append(f"{field.least} to {field.most}")
    elif field.type in ("hex", "flag"):
        words.append({"hex": "hexadecimal digits", "flag": "0 or 1"}[field.type])
    return ": ".join([*words, *([field.about] if field.about else [])])


def written(page: str, said: Protocol) -> str:
    """The page with its tables as the registry has them; raises KeyError for an unknown name."""
    tables = {s.name: table(s) for s in said.structs}
    tables |= {e.name: values(e) for e in said.enumerations}
    for link in load_control(API):
        tables |= {f"{link.name}_received": messages(link.received)}
        tables |= {f"{link.name}_sent": messages(link.sent)}
    return PLACE.sub(lambda m: m[1] + m[2] + tables[m[1]], page)


def current() -> str:
    """What docs/protocol.md is to be."""
    return written(PAGE.read_text(), load_protocol(API))


if __name__ == "__main__":
    PAGE.write_text(current())
