# SPDX-License-Identifier: Apache-2.0
"""Notices the end of a session's client by the pidfd of its process, where it is of this host.

Used by sessions.registry and sessions.relays. The worker, or relay, sees the same pidfd and ends by
itself; what is done here is for one that cannot.
"""

from __future__ import annotations

import asyncio

from sluice.server.sessions.records import CLIENT_ENDED, Session


def watch_client(session: Session) -> None:
    """Ends the session's worker when its client ends."""
    if session.requester.pidfd >= 0:
        loop = asyncio.get_running_loop()
        loop.add_reader(session.requester.pidfd, _client_ended, session)


def unwatch_client(session: Session) -> None:
    """Looks no more."""
    if session.requester.pidfd >= 0:
        asyncio.get_running_loop().remove_reader(session.requester.pidfd)


def forget_client(session: Session) -> None:
    """Looks no more, and closes the pidfd."""
    unwatch_client(session)
    session.requester.close()


def _client_ended(session: Session) -> None:
    unwatch_client(session)
    session.end(CLIENT_ENDED)
