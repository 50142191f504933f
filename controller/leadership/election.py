# SPDX-License-Identifier: Apache-2.0
"""Which of several controllers leads: whoever made the leader's key, for as long as its lease.

Used by controller.service. The key holds the leader's addresses, is bound to a lease of a few
seconds, and its creation revision is the fence: every write of a leader's store is made on the
condition that this very key is still there (etcd.py). A leader counts its lease from before it
asked for the renewal, so it knows that it is deposed before another can be elected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sluice.controller.store.etcd_cluster import EtcdCluster, UnreachableError
from sluice.controller.store.store import DeposedError, StoreError

log = logging.getLogger("sluice.controller")

POLL_SECONDS = 0.25
COMPLAIN_EVERY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LeaderAddress:
    """Where a controller listens, as others reach it."""

    rest: str
    grpc: str


class Term:
    """The time for which this controller leads."""

    def __init__(
        self, cluster: EtcdCluster, key: str, lease: int, lease_seconds: int, revision: int
    ) -> None:
        self._cluster = cluster
        self._key = key
        self._lease = lease
        self._lease_seconds = lease_seconds
        self._until = 0.0
        self.revision = revision
        self.guard = cluster.if_created_at(key, revision)

    @property
    def is_current(self) -> bool:
        """Whether nobody else can lead yet."""
        return time.monotonic() < self._until

    def check(self) -> None:
        """Raises DeposedError if another may lead by now."""
        if not self.is_current:
            raise DeposedError(
                f"{self._cluster.name}: the leader's lease of {self._lease_seconds} s could not "
                "be renewed; another controller may lead"
            )

    def started(self, since: float) -> None:
        """The lease was asked for at this monotonic time."""
        self._until = since + self._lease_seconds

    async def hold(self) -> None:
        """Renews the lease until that fails for too long, then returns."""
        pause = self._lease_seconds / 4
        wait = pause
        while self.is_current:
            await asyncio.sleep(wait)
            asked = time.monotonic()
            # half of what is left: on a busy machine an answer takes long, and one may be lost
            patience = max(pause, (self._until - asked) / 2)
            try:
                if not await self._cluster.keep_lease(self._lease, patience):
                    self._until = 0.0
                    return
            except StoreError as error:
                log.warning("the leader's lease is not renewed: %s", error)
                wait = 0.05
            else:
                self.started(asked)
                wait = pause

    async def resign(self) -> None:
        """Lets others lead at once."""
        self._until = 0.0
        with contextlib.suppress(StoreError):
            await self._cluster.revoke_lease(self._lease)


class Candidate:
    """One controller's part in the elections."""

    def __init__(
        self, cluster: EtcdCluster, prefix: str, lease_seconds: int, me: LeaderAddress
    ) -> None:
        self._cluster = cluster
        self._key = f"{prefix}leader"
        self._lease_seconds = lease_seconds
        self._me = me
        self._last_complaint = -COMPLAIN_EVERY_SECONDS
        self.leader: LeaderAddress | None = None
        self.trouble: StoreError | None = None

    async def campaign(self, changed: Callable[[], None] = lambda: None) -> Term:
        """Returns once this controller leads; until then `leader` says who does."""
        while True:
            try:
                before = self.leader
                term = await self._try()
                self.trouble = None
                if term:
                    self.leader = self._me
                    return term
                if self.leader != before:
                    log.info("the leader is %s", self.leader.rest if self.leader else "gone")
                    changed()
            except StoreError as error:
                self.leader, self.trouble = None, error
                self._complain(error)
            await asyncio.sleep(POLL_SECONDS)

    async def _try(self) -> Term | None:
        if entry := await self._cluster.get(self._key):
            self.leader = _address(entry)
            return None
        self.leader = None
        asked = time.monotonic()
        lease = await self._cluster.grant_lease(self._lease_seconds)
        mine = self._cluster.put(self._key, json.dumps(asdict(self._me)), lease)
        try:
            answer = await self._cluster.transaction(
                [self._cluster.if_created_at(self._key, 0)], [mine]
            )
        except UnreachableError:
            with contextlib.suppress(StoreError):
                await self._cluster.revoke_lease(lease)  # it may have been made
            raise
        if not answer.succeeded:
            with contextlib.suppress(StoreError):
                await self._cluster.revoke_lease(lease)
            return None
        term = Term(
            self._cluster, self._key, lease, self._lease_seconds, int(answer.header.revision)
        )
        term.started(asked)
        return term

    def _complain(self, error: StoreError) -> None:
        now = time.monotonic()
        if now - self._last_complaint >= COMPLAIN_EVERY_SECONDS:
            self._last_complaint = now
            log.error("%s; trying for ever", error)


def _address(entry: Any) -> LeaderAddress | None:
    try:
        return LeaderAddress(**json.loads(entry.value))
    except (ValueError, TypeError):
        log.warning("the leader's key holds %r, which is no address", entry.value)
        return None
