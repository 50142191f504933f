# SPDX-License-Identifier: Apache-2.0
"""Sets keys of an INI file and leaves everything else of it as it stands.

Used by plan.py. What a line means is guest_runtime/ini_lines.py's rule.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.guest_runtime.ini_lines import Line, quoted, read_lines

#: (section, key) → the value; None takes the key away.
Wanted = Mapping[tuple[str, str], str | None]


def with_keys(text: str, wanted: Wanted) -> str:
    """The text with these keys; a key that has its value already keeps its line and comment."""
    lines = text.split("\n")
    found = {(line.section, line.key): line for line in read_lines(text) if line.key}
    gone: set[int] = set()
    for place, value in wanted.items():
        line = found.get(place)
        if line is None or line.value == value:
            continue
        if value is None:
            gone.add(line.number)
        else:
            lines[line.number - 1] = (
                f"{_indent(lines[line.number - 1])}{place[1]} = {quoted(value)}"
            )
    behind = _last_lines(text)
    new = {place: value for place, value in wanted.items() if value and place not in found}
    result: list[str] = []
    for number, raw in enumerate(lines, 1):
        if number not in gone:
            result.append(raw)
        for section in (name for name, last in behind.items() if last == number):
            result += [f"{k} = {quoted(v)}" for (s, k), v in new.items() if s == section]
    while result and not result[-1]:
        result.pop()
    for section in dict.fromkeys(section for section, _ in new if section not in behind):
        result += ["", f"[{section}]"] if result else [f"[{section}]"]
        result += [f"{k} = {quoted(v)}" for (s, k), v in new.items() if s == section]
    return "\n".join(result) + "\n" if result else ""


def _last_lines(text: str) -> dict[str, int]:
    """Section → its last line that says something."""
    lines: list[Line] = list(read_lines(text))
    return {line.section: line.number for line in lines if line.section or line.key}


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
