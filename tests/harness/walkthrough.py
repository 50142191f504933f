# SPDX-License-Identifier: Apache-2.0
"""A section of a documentation page as the commands that it shows, run in the order shown.

Used by the tests of pages (tests/walkthroughs, and test_page.py of the platforms). A section holds
nothing but blocks that say where they belong: "```sh PLACE" has commands for that place, and
"```text" after it has lines that they print. Whatever else looks like code is an error, so that no
command of a page stays unrun. Each command runs in a shell of its own: what one passes to the next
is in files, and what differs between machines in variables, which the page sets in a block of
nothing but assignments, before its first section or in the section itself. A test gives each
of them a value. A command that cannot run on a test's machine is replaced by an entry in the test's
table, with the reason; an entry that replaces nothing is an error.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Runs a command with the page's variables set; returns what it printed, raises where it failed.
Run = Callable[[str, Mapping[str, str]], str]

_FENCE = re.compile(r"^```(\w*) *(.*)$")
_OTHER_FENCE = re.compile(r"^ *(```|~~~)")
_ASSIGNMENT = re.compile(r"^([A-Z_]+)=(\S+)(\s+#.*)?$")


class PageError(Exception):
    """The page cannot be followed; the message names page, line and what is wrong."""


@dataclass(frozen=True)
class Block:
    """Commands for one place, and the lines that they are said to print, in order."""

    place: str
    commands: tuple[str, ...]
    shown: tuple[str, ...]
    #: Of its opening fence in the page, from 1.
    line: int


@dataclass(frozen=True)
class Instead:
    """What runs in a command's stead: another command, or a function of the test's."""

    reason: str
    does: str | Callable[[], str]


class Walkthrough:
    """The section of a page below a heading of the second level."""

    def __init__(self, page: Path, heading: str) -> None:
        """Raises PageError where there is none, or where it holds code that nobody would run."""
        self.page = page
        self._lines = page.read_text().splitlines()
        first, last = self._section(heading)
        start = next(n for n, line in enumerate(self._lines) if line.startswith("## "))
        #: The page's variables with the values that it shows.
        self.variables: dict[str, str] = {}
        self.blocks: list[Block] = []
        self._read(0, start)
        if self.blocks:
            raise self._error(self.blocks[0].line, "only variables stand before the first section")
        self._read(first, last)
        if not self.blocks:
            raise self._error(first, f"{heading} has no commands")

    def follow(
        self,
        places: Mapping[str, Run],
        variables: Mapping[str, str],
        instead: Mapping[str, Instead] | None = None,
    ) -> list[str]:
        """Runs every command in its place; returns what each block printed.

        Raises PageError for a command that fails, a block that does not print what the page shows,
        a variable without a value or of another name, and an entry of `instead` (by the page's own
        command) that was of no use.
        """
        if variables.keys() != self.variables.keys():
            raise PageError(
                f"{self.page.name} sets {sorted(self.variables)}, the test {sorted(variables)}"
            )
        unused = dict(instead or {})
        printed = []
        for block in self.blocks:
            if block.place not in places:
                raise self._error(block.line, f"nobody knows the place {block.place!r}")
            said = ""
            for command in block.commands:
                other = (instead or {}).get(command)
                unused.pop(command, None)
                try:
                    if other is None:
                        said += places[block.place](command, variables)
                    elif isinstance(other.does, str):
                        said += places[block.place](other.does, variables)
                    else:
                        said += other.does()
                except Exception as error:
                    raise self._error(block.line, f"{command!r} failed: {error}") from error
            self._compare(block, said)
            printed.append(said)
        if unused:
            raise PageError(f"{self.page.name} has no command {', '.join(map(repr, unused))}")
        return printed

    def _section(self, heading: str) -> tuple[int, int]:
        inside = False  # of a fence, where a line may begin as a heading does
        first = -1
        for number, line in enumerate(self._lines):
            inside ^= line.startswith("```")
            if inside or not line.startswith("## "):
                continue
            if first >= 0:
                return first, number
            if line == f"## {heading}":
                first = number
        if first < 0:
            raise PageError(f"{self.page.name} has no section {heading!r}")
        return first, len(self._lines)

    def _read(self, first: int, last: int) -> None:
        number = first
        while number < last:
            fence = _FENCE.match(self._lines[number])
            if not fence:
                if self._lines[number].startswith("    ") or _OTHER_FENCE.match(
                    self._lines[number]
                ):
                    raise self._error(number + 1, "an indented block says not where it runs")
                number += 1
                continue
            end = self._lines.index("```", number + 1)
            self._take(fence[1], fence[2], self._lines[number + 1 : end], number + 1)
            number = end + 1

    def _take(self, language: str, place: str, lines: Sequence[str], at: int) -> None:
        if language == "text" and not place and self.blocks and not self.blocks[-1].shown:
            last = self.blocks.pop()
            self.blocks.append(Block(last.place, last.commands, tuple(lines), last.line))
            return
        if language != "sh":
            raise self._error(at, "neither `sh PLACE` nor the `text` that commands print")
        assigned = [_ASSIGNMENT.match(line) for line in lines]
        if all(assigned):
            self.variables |= {found[1]: found[2] for found in assigned if found}
            return
        if not place:
            raise self._error(at, "a block of commands that says not where it runs")
        self.blocks.append(Block(place, tuple(self._commands(lines, at)), (), at))

    def _commands(self, lines: Sequence[str], at: int) -> list[str]:
        found: list[str] = []
        rest = list(lines)
        while rest:
            command = rest.pop(0)
            if not command.strip() or command.startswith("#"):
                continue
            first = command
            while said := _complaint(command):
                if not rest:
                    raise self._error(at, f"{first!r} is no command: {said}")
                command += "\n" + rest.pop(0)
            found.append(command)
        return found

    def _compare(self, block: Block, said: str) -> None:
        """Each line that is shown was printed, in order; `…` stands for anything."""
        printed = said.splitlines()
        for wanted in block.shown:
            words = (r"\s+".join(map(re.escape, part.split())) for part in wanted.split("…"))
            pattern = re.compile(r"\s*" + ".*".join(words).replace(".*", r"\s*.*\s*") + r"\s*")
            while printed and not pattern.fullmatch(printed[0]):
                printed.pop(0)
            if not printed:
                raise self._error(block.line, f"{wanted!r} is not printed, but:\n{said}")
            if wanted.strip() != "…":
                printed.pop(0)

    def _error(self, line: int, text: str) -> PageError:
        return PageError(f"{self.page.name}:{line}: {text}")


def _complaint(command: str) -> str:
    """Why it is no whole command; empty if it is one."""
    if command.endswith("\\"):
        return "it goes on"
    checked = subprocess.run(
        ["bash", "-n", "-c", command], capture_output=True, text=True, check=False
    )
    return checked.stderr.strip()  # of a text without its end bash only warns
