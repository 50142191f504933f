# SPDX-License-Identifier: Apache-2.0
"""The live stream: what changes on the screens of all browsers, rendered once for all who look.

Used by console.streams. A browser subscribes to the parts that are on its screen. A part that
several look at with equal rights is one to be watched: it is rendered when the pool changed what it
is about, some time apart (parts.Kind), and sent to each that has another version of it. That is
done in beats: what one beat rendered is sent together, as each of a hundred streams that wakes
costs as much as a part that is rendered. A browser that does not read gets the newest version of
each part when it does, and nothing in between.

It promises that it costs nothing while nobody looks, that a change is on its way within two beats
unless its kind is rendered more seldom, and that rendering takes at most a tenth of the
controller's time, a part at once. Where there is more to be done, what the pool changed comes first
and what only grows old last, and screens are later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sluice.console.board import Board, Rendered
from sluice.console.parts import Hidden, Name
from sluice.console.rights import Rights
from sluice.console.topics import topics_of
from sluice.controller.api.problems import Problem
from sluice.controller.pool.model import Change
from sluice.controller.store.store import StoreError

log = logging.getLogger("sluice.controller")

BEAT_SECONDS = 0.6
SHARE_OF_TIME = 0.1
ROUND_SECONDS = BEAT_SECONDS * SHARE_OF_TIME
#: Parts of one screen that may be tens of kilobytes: each is kept once for all who look at it.
MOST_LARGE = 6
GONE = '<p class="gone">This is no longer here, or no longer for you. Reload the page.</p>'

Key = tuple[Name, Rights]


class Subscription:
    """A browser's: the parts on its screen, and what it has yet to be sent of them."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self._versions: dict[Name, str] = {}  # digests that it has
        self._pending: dict[Name, Rendered] = {}

    def has(self, name: Name, digest: str) -> None:
        """It has this version of a part."""
        self._versions[name] = digest

    def offer(self, rendered: Rendered) -> None:
        """A part's newest version; tell() says that there is something."""
        if self._versions.get(rendered.name) == rendered.digest:
            self._pending.pop(rendered.name, None)
        else:
            self._pending[rendered.name] = rendered

    def tell(self) -> None:
        """Wakes the stream where it has something to send."""
        if self._pending:
            self.news.set()

    def take(self) -> list[Rendered]:
        """What it is to be sent now."""
        taken, self._pending = list(self._pending.values()), {}
        self.news.clear()
        for each in taken:
            self._versions[each.name] = each.digest
        return taken


@dataclass(slots=True)
class _Watched:
    """A part that somebody looks at with some rights."""

    name: Name
    rights: Rights
    every: float
    apart: float
    topics: tuple[str, ...]
    stale: bool = True
    rendered_at: float = float("-inf")
    last: Rendered | None = None
    subscriptions: set[Subscription] = field(default_factory=set)

    def is_due(self, now: float) -> bool:
        """Whether it is to be rendered."""
        age = now - self.rendered_at
        return (self.stale and age >= self.apart) or (0 < self.every <= age)

    @property
    def turn(self) -> tuple[int, float]:
        """Before which others its turn is: the pool changed it, it is new, or it is only old."""
        changed = self.stale and self.last is not None
        return 0 if changed else 1 if self.last is None else 2, self.rendered_at


class Live:
    """All that is looked at."""

    def __init__(self, board: Board, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._board = board
        self._now = monotonic
        self._watched: dict[Key, _Watched] = {}
        self._of_topic: dict[str, set[Key]] = {}
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._watched)

    def changed(self, changes: Iterable[Change]) -> None:
        """The pool changed: what that concerns is stale. Raises nothing: a step is under way."""
        if not self._watched:
            return
        try:
            for topic in {topic for change in changes for topic in topics_of(change)}:
                for key in self._of_topic.get(topic, ()):
                    self._watched[key].stale = True
        except Exception:
            log.exception("console: a change of the pool is not on screens")

    def subscribe(self, rights: Rights, versions: Mapping[Name, str]) -> Subscription:
        """Follows parts, of which the browser has these versions; raises Hidden: no such kind."""
        if sum(map(self._board.is_large, versions)) > MOST_LARGE:
            raise Hidden
        kinds = {name: self._board.kind(name) for name in versions}
        topics = {name: self._board.topics(name) for name in versions}
        subscription = Subscription()
        for name, digest in versions.items():
            subscription.has(name, digest)
            key, kind = (name, rights), kinds[name]
            watched = self._watched.get(key)
            if watched is None:
                watched = _Watched(name, rights, kind.every, kind.apart, topics[name])
                self._watched[key] = watched
                for topic in watched.topics:
                    self._of_topic.setdefault(topic, set()).add(key)
            watched.subscriptions.add(subscription)
            if watched.last:
                subscription.offer(watched.last)
        subscription.tell()
        if self._task is None and self._watched:
            self._task = asyncio.create_task(self._render_for_ever())
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """It is not looked at any more."""
        for key, watched in list(self._watched.items()):
            watched.subscriptions.discard(subscription)
            if not watched.subscriptions:
                self._forget(key, watched)
        if not self._watched and self._task:
            self._task.cancel()
            self._task = None

    def _forget(self, key: Key, watched: _Watched) -> None:
        del self._watched[key]
        for topic in watched.topics:
            keys = self._of_topic[topic]
            keys.discard(key)
            if not keys:
                del self._of_topic[topic]

    async def _render_for_ever(self) -> None:
        while True:
            spent = await self.render_due()
            await asyncio.sleep(max(BEAT_SECONDS, spent / SHARE_OF_TIME - spent))

    async def render_due(self) -> float:
        """Renders what is due, for a short while; returns the seconds that it took."""
        spent, now = 0.0, self._now()
        told: set[Subscription] = set()
        due = [watched for watched in self._watched.values() if watched.is_due(now)]
        for watched in sorted(due, key=lambda each: each.turn):
            if spent >= ROUND_SECONDS:
                break
            began = self._now()
            if not watched.subscriptions or not watched.is_due(began):
                continue  # its last one left meanwhile
            # what changes while it is rendered makes it stale again
            watched.stale, watched.rendered_at = False, began
            rendered = await self._render(watched)
            spent += self._now() - began
            if rendered:
                watched.last = rendered
                for subscription in watched.subscriptions:
                    subscription.offer(rendered)
                told |= watched.subscriptions
            await asyncio.sleep(0)
        for subscription in told:
            subscription.tell()
        return spent

    async def _render(self, watched: _Watched) -> Rendered | None:
        try:
            return await self._board.render(watched.name, watched.rights)
        except (Hidden, Problem):
            return Rendered(watched.name, GONE, "gone")
        except StoreError:
            watched.stale = True
            return None
        except Exception:
            log.exception("console: %s cannot be shown", watched.name.kind)
            return None
