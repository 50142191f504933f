# SPDX-License-Identifier: Apache-2.0
"""The records of sessions, and the orders in which they are looked up.

Owned by ledger.GrantLedger, which says when one is new, is reported anew and ends; read through it
and through pool.Pool.
"""

from __future__ import annotations

from collections import Counter

from sluice.controller.pool.model import Clock, Session, SessionState
from sluice.controller.pool.ordered import Ordered


class SessionTable:
    """Every session, ended ones too for as long as their grants are remembered."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.records: dict[str, Session] = {}
        self.in_order: Ordered[Session] = Ordered()  # by age, then id
        self._of_grant: dict[str, dict[str, Session]] = {}
        self._of_request: dict[str, str] = {}  # request id, session id
        self._live_on: Counter[str] = Counter()  # by node
        self._opening: dict[str, float] = {}  # session ids, oldest first, and since when

    def get(self, session_id: str) -> Session | None:
        """One session, if it is remembered."""
        return self.records.get(session_id)

    def of(self, grant_id: str) -> list[Session]:
        """Every session of a grant, ended ones too."""
        return list(self._of_grant.get(grant_id, {}).values())

    def live_of(self, grant_id: str) -> list[Session]:
        """Those that have not ended."""
        return [s for s in self.of(grant_id) if s.state is not SessionState.ENDED]

    def live_on(self, node: str) -> int:
        """How many sessions live on a node."""
        return self._live_on[node]

    def held_by(self, request_id: str) -> Session | None:
        """What a request was granted that still lives."""
        session = self.records.get(self._of_request.get(request_id, ""))
        return None if session is None or session.state is SessionState.ENDED else session

    def put(self, session: Session) -> None:
        """A session that is new, or of which a server knows better."""
        if known := self.records.get(session.id):
            self.in_order.drop((known.started, known.id))
            self._live_on[known.node] -= known.state is not SessionState.ENDED
        self.records[session.id] = session
        self.in_order.put((session.started, session.id), session)
        self._live_on[session.node] += session.state is not SessionState.ENDED
        self._of_grant.setdefault(session.grant_id, {})[session.id] = session
        if session.state is SessionState.OPENING:
            self._opening.setdefault(session.id, self._clock.monotonic())
        else:
            self._opening.pop(session.id, None)

    def put_request(self, session: Session) -> None:
        """It is what its request was granted."""
        if session.request_id and self.held_by(session.request_id) is None:
            self._of_request[session.request_id] = session.id

    def leave(self, session: Session) -> None:
        """A session that has not ended yet is about to."""
        if self._of_request.get(session.request_id) == session.id:
            del self._of_request[session.request_id]
            for other in self.live_of(session.grant_id):
                if other is not session:
                    self.put_request(other)  # of the same process, on another node
        self._opening.pop(session.id, None)
        self._live_on[session.node] -= 1

    def take_unopened(self, seconds: float) -> list[Session]:
        """The sessions whose clients have not come for so long, each of them once."""
        overdue = []
        for session_id, since in list(self._opening.items()):
            if self._clock.monotonic() - since < seconds:
                break
            del self._opening[session_id]
            session = self.records.get(session_id)
            if session is not None and session.state is SessionState.OPENING:
                overdue.append(session)
        return overdue

    def forget_of(self, grant_id: str) -> None:
        """The sessions of a grant that nobody remembers."""
        for session_id, session in self._of_grant.pop(grant_id, {}).items():
            del self.records[session_id]
            self.in_order.drop((session.started, session_id))
