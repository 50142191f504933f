# SPDX-License-Identifier: Apache-2.0
"""The one reading of INI files: lines, comments and quotes.

Used here for client.conf and by config/ini.py for the services' files. native/client/core/
ini_file.cc reads client.conf by the same rule; tests/native/client/ini_cases.txt holds both to it.

- A line is empty, `[section]`, or `key = value`; blanks around each are dropped.
- `;` begins a comment anywhere, `#` at the start of a line or a value and behind a blank.
- A value in double quotes is taken as it stands between them, with `""` for a quote; behind them
  only a comment may follow. What else begins with a quote is a value like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_BLANKS = " \t\r"
_COMMENT = re.compile(r";|(?:^|(?<=[ \t\r]))#")
_QUOTED = re.compile(r'"((?:[^"]|"")*)"[ \t\r]*(?:[;#].*)?', re.DOTALL)


class Line(NamedTuple):
    """A line that says something: a section (no key), a key with its value, or neither of them."""

    number: int
    section: str
    key: str = ""
    value: str = ""
    #: What stands there, where it is neither a section nor a key with a value.
    unknown: str = ""


def read_lines(text: str) -> Iterator[Line]:
    """The lines of a file, without empty ones and comments."""
    section = ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(_BLANKS)
        plain = without_comment(line)
        if not plain:
            continue
        key, equal, _ = plain.partition("=")
        if plain[0] == "[":
            if plain[-1] == "]":
                section = plain[1:-1]
                yield Line(number, section)
            else:
                yield Line(number, section, unknown=plain)
        elif equal and key.strip(_BLANKS):
            yield Line(number, section, key.strip(_BLANKS), value_of(line.partition("=")[2]))
        else:
            yield Line(number, section, unknown=plain)


def value_of(text: str) -> str:
    """What stands behind the equals sign, without quotes and comments."""
    text = text.strip(_BLANKS)
    quoted = _QUOTED.fullmatch(text)
    return quoted[1].replace('""', '"') if quoted else without_comment(text)


def without_comment(text: str) -> str:
    """The text up to a comment."""
    return _COMMENT.split(text, maxsplit=1)[0].strip(_BLANKS)


def quoted(value: str) -> str:
    """The value as it has to be written so that it is read again."""
    if value_of(value) == value:
        return value
    return '"' + value.replace('"', '""') + '"'
