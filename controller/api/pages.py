# SPDX-License-Identifier: Apache-2.0
"""Lists in pages: `limit`, and a `marker` that says where the last page ended.

Used by every handler of a list. A marker holds the sort key of the last thing shown, so pages stay
right while things come and go between them: nothing is shown twice, and nothing that was there all
the time is left out.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from sluice.controller.api.problems import Problem
from sluice.resources.problem_types import ProblemType

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=10_000, description="how many at most")]
Marker = Annotated[
    str | None,
    Query(max_length=1000, description="`next_marker` of the page before; the first page has none"),
]
DEFAULT_LIMIT = 1000


class Page(BaseModel):
    """What every list has besides its things."""

    next_marker: str | None = Field(None, description="of the next page; null at the end")


def page(
    things: Iterable[T], key: Callable[[T], tuple[Any, ...]], limit: int, marker: str | None
) -> tuple[list[T], str | None]:
    """The things of one page in the order of their keys, and the marker of the next.

    For what there is little of: all of it is looked at.
    """
    ordered = sorted(things, key=key)

    def after(last: tuple[Any, ...] | None) -> Iterable[T]:
        return ordered if last is None else [thing for thing in ordered if key(thing) > last]

    return page_in_order(after, key, limit, marker)


def page_in_order(
    after: Callable[[tuple[Any, ...] | None], Iterable[T]],
    key: Callable[[T], tuple[Any, ...]],
    limit: int,
    marker: str | None,
) -> tuple[list[T], str | None]:
    """The same of things that can be had in the order of their keys, beyond one: no more of them
    are looked at than the page needs."""
    try:
        things = after(None if marker is None else read_marker(marker))
        shown = list(itertools.islice(things, limit + 1))
    except TypeError:
        raise _not_a_marker() from None
    return shown[:limit], make_marker(key(shown[limit - 1])) if len(shown) > limit else None


def make_marker(key: tuple[Any, ...]) -> str:
    """The opaque form of a sort key."""
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def read_marker(marker: str) -> tuple[Any, ...]:
    """The sort key in a marker; raises Problem."""
    try:
        padded = marker + "=" * (-len(marker) % 4)
        key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except ValueError:
        raise _not_a_marker() from None
    except RecursionError:
        raise _not_a_marker() from None
    if not isinstance(key, list):
        raise _not_a_marker()
    return tuple(key)


def _not_a_marker() -> Problem:
    return Problem(
        422,
        ProblemType.INVALID_MARKER,
        "marker is not the next_marker of a page; begin without one",
    )
