# SPDX-License-Identifier: Apache-2.0
"""Things in the order of their keys, so that a list can be shown in pages without walking it all.

Owned by grant_table, session_table and fleet for what REST lists; read through pool.Pool. Keys of
one such order are tuples of the same types; putting and dropping cost O(log n).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from sortedcontainers import SortedDict

T = TypeVar("T")
Key = tuple[Any, ...]


class Ordered(Generic[T]):
    """What exists, by key."""

    def __init__(self) -> None:
        self._things = SortedDict()

    def put(self, key: Key, thing: T) -> None:
        """Takes it in, in the place of what had the key."""
        self._things[key] = thing

    def drop(self, key: Key) -> None:
        """Forgets what has the key."""
        self._things.pop(key, None)

    def after(self, key: Key | None) -> Iterator[T]:
        """Everything beyond the key, in order; TypeError if no key is like it."""
        keys = self._things if key is None else self._things.irange(key, inclusive=(False, True))
        return (self._things[each] for each in keys)
