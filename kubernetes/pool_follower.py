# SPDX-License-Identifier: Apache-2.0
"""Follows the pool's books, so that availability.py's copy is theirs: a part at a time.

Run by the scheduler extender, which so knows at each filter what is free, and asks nobody for it.
What it keeps or gives back itself counts at once; the controller's refusal takes it out again, and
then everything is looked at anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from sluice.kubernetes.availability import Availability, Part, part_of
from sluice.kubernetes.configuration import ClusterSection
from sluice.kubernetes.naming import project_of
from sluice.pool_client.async_client import AsyncPoolClient
from sluice.pool_client.errors import PoolError, Refused

log = logging.getLogger("sluice.kubernetes")

SETTLE_SECONDS = 0.3
RETRY_SECONDS = 1.0
_PARTS = ("part.made", "part.ended")
_OTHERS = ("reservation.", "node.", "gpu.")


class PoolFollower:
    """The copy, and the two ways to change the pool's books. Methods raise PoolError."""

    def __init__(
        self,
        section: ClusterSection,
        viewer: AsyncPoolClient,
        pool: AsyncPoolClient,
        *,
        node: str = "",
    ) -> None:
        """`node`: of whose GPUs alone it is to know; "": of all."""
        self._section = section
        self._node = "" if section.reach else node
        self._viewer = viewer
        self._pool = pool
        self.availability = Availability(section.label, reach_all=section.reach is not None)
        self.is_known = False  # it was looked at once
        self.looks = 0  # at everything
        self.changed = asyncio.Event()  # something was given back, or is reserved
        self._stale = asyncio.Event()
        self._since: dict[str, Part | None] = {}  # parts that changed while it is looked
        self._told = ""

    async def look(self, *, parts: bool = True) -> None:
        """At everything; without `parts` at what is reserved alone."""
        self._stale.clear()
        self._since.clear()
        only = {} if parts else {"owner": self._section.label}
        reservations = await self._viewer.every("/reservations", "reservations", **only)
        of_node = {"node": self._node} if self._node else {}
        gpus = {each["id"]: each for each in await self._viewer.every("/gpus", "gpus", **of_node)}
        self.availability.take_all(reservations, gpus)
        for label, part in self._since.items():  # what was listed may be older
            if part is None:
                self.availability.drop_part(label)
            else:
                self.availability.take_part(part)
        self.is_known = True
        self.looks += 1
        self.changed.set()

    async def find(self, label: str) -> bool:
        """Whether there is a part of that label, which the copy may not know yet."""
        if not self.is_known:
            await self.look()
        if label in self.availability.parts:
            return True
        for each in await self._viewer.every("/reservations", "reservations", owner=label):
            if each["state"] == "held" and each["within"] in self.availability.wholes:
                self._take(part_of(each))
        return label in self.availability.parts

    async def keep(self, part: Part, namespace: str, priority: int) -> None:
        """Has the controller keep a part. Raises PoolError, and has changed nothing then."""
        path = f"/reservations/{part.reservation}/parts/{part.label}"
        body = {
            "vgpus": [place.as_json() for place in part.places],
            "project": project_of(self._section.project, namespace),
            "priority": priority,
        }
        before = self.availability.parts.get(part.label)
        if before is not None and before != part:
            await self.give_back(part.label)
        self._take(part)
        try:
            kept = await self._pool.ask("PUT", path, json=body)
        except BaseException:
            self._drop(part.label)
            self._stale.set()
            raise
        self._take(part_of(kept))

    async def give_back(self, label: str) -> bool:
        """Whether there was such a part."""
        try:
            await self._pool.delete(f"/parts/{label}")
        except Refused as refused:
            if not refused.is_not_found:
                raise
            self._drop(label)
            return False
        self._drop(label)
        return True

    async def follow(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_events())
            tasks.create_task(self.look_for_ever(self._section.publish_seconds))

    def _take(self, part: Part) -> None:
        self._since[part.label] = part
        self.availability.take_part(part)

    def _drop(self, label: str) -> None:
        self._since[label] = None
        self.availability.drop_part(label)
        self.changed.set()

    async def _follow_events(self) -> None:
        def broke(error: Exception) -> None:
            self._tell(f"events: {error}")

        async for event in self._viewer.events(broke):
            kind = str(event.get("kind", ""))
            if not event or kind.startswith(_OTHERS):
                self._stale.set()
            elif kind in _PARTS:
                try:
                    await self._look_at(str(event["subject"]))
                except PoolError:
                    self._stale.set()

    async def _look_at(self, reservation_id: str) -> None:
        """One part that has changed."""
        found = await self._viewer.get(f"/reservations/{reservation_id}")
        known = self.availability.parts.get(found["owner"])
        is_held = found["state"] == "held"
        if is_held and found["within"] in self.availability.wholes:
            self._take(part_of(found))
        elif not is_held and known is not None and known.id in ("", found["id"]):
            self._drop(found["owner"])

    async def look_for_ever(self, seconds: float, *, parts: bool = True) -> None:
        """Now and then alone, for whoever is one of many and cannot have the events."""
        while True:
            try:
                await self.look(parts=parts)
                self._told = ""
            except PoolError as error:
                self._tell(str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            await asyncio.sleep(SETTLE_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stale.wait(), seconds)

    def _tell(self, text: str) -> None:
        if text != self._told:
            log.warning("the pool's room: %s", text)
        self._told = text
