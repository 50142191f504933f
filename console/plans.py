# SPDX-License-Identifier: Apache-2.0
"""What an action is made of: its plan for people, its request for REST.

Used by console.actions and its kin; console.acting shows and carries out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sluice.console.inner_rest import RestCall
from sluice.console.rights import Rights
from sluice.console.visit import Refused
from sluice.controller.pool.pool import Pool


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an action's form; `kind` is number, text, checkbox or select."""

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    least: int | None = None
    most: int | None = None
    required: bool = False
    options: tuple[tuple[str, str], ...] = ()  # of a select: value and words


@dataclass(frozen=True, slots=True)
class Plan:
    """What will happen, in sentences, before it does.

    `generation` is of what was read (None: REST has none); `obsolete` says why there is nothing to
    do, empty where there is.
    """

    title: str
    button: str
    will: list[str]
    back: str  # the page that it is about
    fields: list[Field] = field(default_factory=list)
    generation: int | None = None
    danger: bool = False
    obsolete: str = ""
    creates: bool = False  # sent twice, it happens once


@dataclass(frozen=True, slots=True)
class Action:
    """`done` is what the page says afterwards; plan() raises Hidden, call() Refused.

    What `reveals` something answers with a page that has it, once, instead of going back.
    """

    done: str
    may: Callable[[Rights, Pool, str], bool]
    plan: Callable[[Pool, str], Plan]
    call: Callable[[str, Mapping[str, str]], RestCall]
    reveals: bool = False


def operators(rights: Rights, _: Pool, __: str) -> bool:
    """For operators, whatever it is about."""
    return rights.operates


def number(fields: Mapping[str, str], name: str) -> int | None:
    """A whole number of a form; None: it is empty. Raises Refused."""
    text = fields.get(name, "").strip()
    if not text:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 12):
        raise Refused(422, f"{name} is {text[:40]!r}; write a whole number")
    return int(text)


def several(count: int, what: str) -> str:
    """A number of things in words: 1 grant, 2 grants."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
