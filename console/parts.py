# SPDX-License-Identifier: Apache-2.0
"""The parts of pages that change while they are looked at: what each shows, to whom, and when anew.

Used by console.board, for a page's first look, and by live.Live from then on. A part is named by
its kind and its arguments, `gpu?id=node-a:GPU-1`, which come back from browsers: so whoever asks
for one is judged each time. What is rendered depends on the name, the rights and the pool, and on
nothing of the user, so that it can be sent to all who look at the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from sluice.console.rights import Rights
from sluice.controller.pool.pool import Pool

MOST_CHARACTERS = 1000  # of a part's name

Arguments = Mapping[str, str]


class Hidden(Exception):
    """There is no such part, or not for these rights."""


@dataclass(frozen=True, slots=True)
class Name:
    """A part: its kind, and its arguments in order."""

    kind: str
    arguments: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, kind: str, **arguments: str | None) -> Name:
        """Without arguments that are empty."""
        return cls(kind, tuple(sorted((k, v) for k, v in arguments.items() if v)))

    @classmethod
    def read(cls, text: str) -> Name:
        """From what a browser says; raises Hidden."""
        if len(text) > MOST_CHARACTERS:
            raise Hidden
        kind, _, query = text.partition("?")
        try:
            found = parse_qsl(query, strict_parsing=bool(query), max_num_fields=8)
        except ValueError:
            raise Hidden from None
        return cls(kind, tuple(sorted(found)))

    def __str__(self) -> str:
        query = urlencode(self.arguments)
        return f"{self.kind}{'?' if query else ''}{query}"

    @property
    def event(self) -> str:
        """Its name as an id of an element and of a server-sent event."""
        return "p" + hashlib.sha256(str(self).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Kind:
    """Parts of one kind.

    `values` makes what the template shows, and raises Hidden; `about` names the topics
    (topics_of) that make it stale; `every` is after how many seconds it is stale anyway (0: never),
    `apart` how many seconds are between two renderings at least. What may be tens of kilobytes is
    `large`: a screen has few of those.
    """

    template: str
    values: Callable[[Pool, Rights, Arguments], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]
    about: Callable[[Arguments], tuple[str, ...]]
    every: float = 0.0
    apart: float = 0.4  # less than live.BEAT_SECONDS: at each beat, if the pool changed it
    large: bool = False


def digest_of(html: str) -> str:
    """By which a browser and this controller know whether they have the same."""
    return hashlib.sha256(html.encode()).hexdigest()[:12]
