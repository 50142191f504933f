# SPDX-License-Identifier: Apache-2.0
"""Which VMs of this host are paused, told to the controller for the grants of their sessions.

Told by guests.channels what libvirt says. Where [suspend] on_pause is `suspend` the controller has
the grants of a paused VM suspended, and brings them back when it goes on; where it is `keep`, every
VM counts as one that runs. It is told again after each connection, as it may have been started
anew; and a moment late, so that a server which has just found a VM does not take it for one that
runs before it was looked at whether it is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from sluice.rpc import pool_pb2 as rpc
from sluice.server.sessions.records import Session

SETTLE_SECONDS = 0.5


class GuestStandings:
    """By domain: whether it is paused."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        report: Callable[[rpc.NodeReport], None],
        *,
        suspends: bool,
    ) -> None:
        self._sessions = sessions
        self._report = report
        self._suspends = suspends
        self._is_paused: dict[str, bool] = {}  # of the domains that are known
        self._told: dict[str, bool] = {}  # by grant
        self._timer: asyncio.TimerHandle | None = None

    def known(self, domain_uuid: str) -> None:
        """It is served; whether it is paused is said after that."""
        self._is_paused.setdefault(domain_uuid, False)
        self._tell_soon()

    def paused(self, domain_uuid: str) -> None:
        """No program of it runs."""
        self._is_paused[domain_uuid] = self._suspends
        self._tell_soon()

    def resumed(self, domain_uuid: str) -> None:
        """It goes on, or is off."""
        self._is_paused[domain_uuid] = False
        self._tell_soon()

    def forget(self, domain_uuid: str) -> None:
        """It is not served any more."""
        self._is_paused.pop(domain_uuid, None)

    def session_opened(self, session: Session) -> None:
        """One that began while its VM was being paused."""
        if self._is_paused.get(session.requester.domain_uuid):
            self._tell_soon()

    def tell_again(self) -> None:
        """There may be another controller, which knows nothing."""
        self._told.clear()
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(SETTLE_SECONDS, self._tell)

    def _tell(self) -> None:
        self._timer = None
        now = {
            session.grant_id: self._is_paused[session.requester.domain_uuid]
            for session in self._sessions.values()
            if session.requester.domain_uuid in self._is_paused
        }
        for grant_id, paused in now.items():
            # whoever was told nothing knows of no pause, unless an earlier server told of one
            if self._told.get(grant_id) is not paused:
                standing = rpc.GuestStanding(grant_id=grant_id, paused=paused)
                self._report(rpc.NodeReport(guest_standing=standing))
        self._told = now
