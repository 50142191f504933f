# SPDX-License-Identifier: Apache-2.0
"""Between the APIs (REST, gRPC) and the pool: takes requests, stores decisions, tells.

Called by controller.api and controller.rpc.node_service. It owns the pool and the store, wakes
whoever waits for a decision, and sends orders to connected servers. It promises that nothing is
told to anyone before it is stored, and that a grant that could not be stored is not kept. While
nothing can be stored, reading goes on, ends are kept in memory, and requests that may wait go on
waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Protocol

from sluice.config import log_ids
from sluice.controller.metrics.meters import ControllerMeters
from sluice.controller.metrics.tallies import PoolTallies
from sluice.controller.pool.decisions import (
    Decisions,
    EndOrder,
    Granted,
    GrantRequest,
    Handover,
    Refused,
    SessionEndOrder,
    Waiting,
)
from sluice.controller.pool.grants.suspension import SuspendOrder
from sluice.controller.pool.model import Change, Event, GpuKey, GrantState, Session, SessionState
from sluice.controller.pool.pool import Pool
from sluice.controller.store.store import DeposedError, RecordError, Store, StoreError
from sluice.controller.store.unstored import Unstored
from sluice.protocol.cuda_status import CudaStatus
from sluice.resources.ends import End, EndCause

log = logging.getLogger("sluice.controller")

TICK_SECONDS = 0.5
STALLED_SECONDS = 1.0
COMPLAIN_EVERY_SECONDS = 30.0


class NodeLink(Protocol):
    """A connected server, as far as the grant service speaks to it."""

    def end_grant(self, order: EndOrder) -> None:
        """Tells the server to end what it runs for a grant; must not block."""
        ...

    def withdraw_session(self, order: SessionEndOrder) -> None:
        """Tells the server to end a session that has not begun, if it knows how."""
        ...

    def suspend_grant(self, order: SuspendOrder) -> None:
        """Tells the server to suspend what it runs for a grant, or to resume it."""
        ...

    def hand_over(self, order: Handover) -> bool:
        """Tells the server to let a GPU go, or that it is back; False if it does not know how."""
        ...

    def close(self) -> None:
        """Ends the stream; a server that still lives registers anew."""
        ...


@dataclass(slots=True)
class PendingRequest:
    """Someone who waits for a decision."""

    request: GrantRequest
    answer: asyncio.Future[Granted | Refused]
    name: str  # of the call that asks, in logs


class GrantService:
    """Serialises the pool's steps and makes them durable."""

    def __init__(
        self,
        pool: Pool,
        store: Store,
        waiting_line_seconds: float = 30.0,
        meters: ControllerMeters | None = None,
    ) -> None:
        self.pool = pool
        self.store = store
        self.meters = meters or ControllerMeters()
        self.tallies = PoolTallies(pool)
        self.links: dict[str, NodeLink] = {}
        #: Shown every change of the pool once, before it is stored; must not block.
        self.watchers: list[Callable[[list[Change]], None]] = []
        self.trouble: StoreError | None = None  # why nothing can be stored for now
        self.stepped_down = asyncio.Event()
        self.line_seconds = waiting_line_seconds
        self._pending: dict[str, PendingRequest] = {}
        self._unstored = Unstored(pool)
        self._last_complaint = 0.0

    async def request(
        self, request: GrantRequest, cancelled: str = "the requester went away"
    ) -> AsyncGenerator[Waiting | Granted | Refused, None]:
        """Yields Waiting any number of times, then one Granted or Refused.

        Closing the iterator early withdraws the request. Raises DeposedError if this controller no
        longer leads: the request is then asked again elsewhere, under the same id.
        """
        request_id = request.request_id
        if other := self._pending.get(request_id):
            other.answer.cancel()  # the same request asked again: the first call was lost
        pending = PendingRequest(
            request, asyncio.get_running_loop().create_future(), log_ids.request_id()
        )
        self._pending[request_id] = pending
        answered = waited = False
        arrived = time.monotonic()
        try:
            await self.step(lambda: self.pool.requests.submit(request))
            while not pending.answer.done():
                waited = True
                yield self.pool.requests.waiting(request)
                await asyncio.wait([pending.answer], timeout=self.line_seconds)
            answered = True
            answer = pending.answer.result()
            self.meters.request_left(request, answer, time.monotonic() - arrived, waited=waited)
            yield answer
        finally:
            if self._pending.get(request_id) is pending:
                del self._pending[request_id]
                if not answered and not self.stepped_down.is_set():
                    seconds = time.monotonic() - arrived
                    self.meters.request_left(request, None, seconds, waited=waited)
                    with contextlib.suppress(DeposedError):
                        await self._begin_withdrawing(request_id, cancelled)

    async def step(self, decide: Callable[[], Decisions]) -> bool:
        """Takes one step of the pool, stores what changed, then tells what was decided.

        The step is finished even if the caller is cancelled: others wait for what it decided.
        Returns whether it is stored; what is not is kept and stored with a later step. Raises
        DeposedError, before anything is decided, if this controller no longer leads.
        """
        return await self.begin(decide)

    def begin(self, decide: Callable[[], Decisions]) -> asyncio.Future[bool]:
        """A step whose end the caller need not wait for; steps are stored as they were begun."""
        if self.stepped_down.is_set():
            raise DeposedError("this controller no longer leads")
        decisions = decide()
        changes = self._take_changes()
        for change in changes:
            if type(change) is Event:
                self._log(change)
        return self._finish(self._unstored.take() + changes, decisions)

    async def end_grant(self, grant_id: str, why: End) -> bool:
        """Ends a grant on an operator's word; False if it is not live.

        The server is told to end what runs; the ledger is cleared when it says that it has, or at
        once when the server is not connected (it is told when it returns). Either is stored: a
        controller that takes over ends it, too. Raises StoreError when that is not stored yet.
        """
        grant = self.pool.grants.get(grant_id)
        if grant is None or grant.state is not GrantState.LIVE:
            return False
        connected = any(node in self.links for node in grant.nodes)
        end = self.pool.lifecycle.end_soon if connected else self.pool.lifecycle.release
        if not await self.step(lambda: end(grant_id, why)):
            raise StoreError(
                f"grant {grant_id} is ended, but that is not stored yet, and a restart of the "
                f"controller would undo it: {self.trouble}"
            )
        return True

    async def tick(self) -> None:
        """Lets time pass in the pool and stores what could not be stored, until it steps down."""
        self.pool.membership.listening()
        with contextlib.suppress(DeposedError):
            while True:
                before = time.monotonic()
                await asyncio.sleep(TICK_SECONDS)
                stalled = time.monotonic() - before - TICK_SECONDS
                if stalled > STALLED_SECONDS:
                    # stopped, starved or suspended: what was not heard meanwhile is no silence
                    self.pool.membership.was_away(stalled)
                await self.step(self.pool.expire)

    def step_down(self, error: DeposedError) -> None:
        """Ends every stream and every wait: another controller may decide by now."""
        if self.stepped_down.is_set():
            return
        self.stepped_down.set()
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(error)
                pending.answer.exception()  # seen: its requester may be gone already
        for link in list(self.links.values()):
            link.close()

    def _log(self, event: Event) -> None:
        """With the ids of what it is about: a step may serve others than who took it."""
        fields = {"event": event.kind, "subject": event.subject}
        about, _, _ = event.kind.partition(".")
        request_id = event.subject if about == "request" else ""
        if about == "session" and (session := self.pool.sessions.get(event.subject)):
            request_id = session.request_id
            fields |= {"session_id": session.id, "grant_id": session.grant_id}
        elif about == "grant" and (grant := self.pool.grants.get(event.subject)):
            request_id = grant.request_id
            fields["grant_id"] = grant.id
        if pending := self._pending.get(request_id):
            fields["request_id"] = pending.name or request_id
        log.info("%s %s: %s", event.kind, event.subject, event.text, extra={"fields": fields})

    def _take_changes(self) -> list[Change]:
        changes = self.pool.take_changes()
        self.tallies.take(changes)
        if changes:
            for watcher in self.watchers:
                watcher(changes)
        return changes

    def _finish(self, changes: list[Change], decisions: Decisions) -> asyncio.Future[bool]:
        """Stores, then tells; the future says whether it is stored, and may be cancelled."""
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        began = time.monotonic()

        # a callback rather than a task: this is the path of every grant and every release
        def stored(commit: asyncio.Future[None]) -> None:
            if changes:
                self.meters.committed(
                    time.monotonic() - began, failed=commit.exception() is not None
                )
            try:
                is_stored = self._is_stored(commit.exception(), changes, decisions)
                if not self.stepped_down.is_set():
                    self._tell(decisions)
            except Exception as error:
                if told.done():
                    raise
                told.set_exception(error)
            else:
                if not told.done():  # else whoever waited has been cancelled
                    told.set_result(is_stored)

        self.store.commit(changes).add_done_callback(stored)
        return told

    def _is_stored(
        self, error: BaseException | None, changes: list[Change], decisions: Decisions
    ) -> bool:
        """Sees to what could not be stored."""
        if error is None:
            if changes and self.trouble:
                log.warning("the store works again; grants are given again")
                self.trouble, self.pool.paused = None, ""
            return True
        if isinstance(error, DeposedError):
            self.step_down(error)
        elif isinstance(error, RecordError):
            log.error("not stored, and not tried again: %s", error)
            self._take_back(changes, decisions, error)
        elif isinstance(error, StoreError):
            self._unstored.keep(changes)
            self._complain(error)
            self._take_back(changes, decisions, error)
        else:
            raise error
        return False

    def _tell(self, decisions: Decisions) -> None:
        for request_id, answer in decisions.answers.items():
            pending = self._pending.get(request_id)
            if isinstance(answer, Granted) and answer.session.state is SessionState.ENDED:
                # ended while it was being stored: its first call was lost, or the store failed
                if self.pool.requests.knows(request_id):
                    continue  # it was asked again, and that has an answer of its own
                if pending and pending.request.wait_seconds != 0:
                    self.begin(lambda pending=pending: self.pool.requests.submit(pending.request))  # type: ignore[misc]
                    continue
                answer = _not_given(self.trouble)
            if pending and not pending.answer.done():
                pending.answer.set_result(answer)
            elif isinstance(answer, Granted) and pending is None:
                log.warning("grant %s has nobody waiting for it; taking it back", answer.grant.id)
                with contextlib.suppress(DeposedError):
                    self._begin_withdrawing(request_id, "nobody waited for it any more")
        for order in decisions.ends:
            if link := self.links.get(order.node):
                link.end_grant(order)
        for session in decisions.session_ends:
            if link := self.links.get(session.node):
                link.withdraw_session(session)
        for suspend in decisions.suspends:
            if link := self.links.get(suspend.node):
                link.suspend_grant(suspend)
        for handover in decisions.handovers:
            self._hand_over(handover)
        for node in decisions.lost:
            if link := self.links.get(node):
                link.close()

    def _hand_over(self, order: Handover) -> None:
        # a server that is not there is told when it returns
        link = self.links.get(order.node)
        if link and not link.hand_over(order):
            key = GpuKey(order.node, order.uuid)
            with contextlib.suppress(DeposedError):
                self.begin(
                    lambda: self.pool.switching.handed_over(key, generation=order.generation)
                )

    def _complain(self, error: StoreError) -> None:
        now = time.monotonic()
        if self.trouble is None or now - self._last_complaint >= COMPLAIN_EVERY_SECONDS:
            self._last_complaint = now
            log.error("nothing can be stored, so nothing is granted for now: %s", error)
        self.trouble = error
        self.pool.paused = f"the controller cannot store a grant: {error}"

    def _begin_withdrawing(self, request_id: str, reason: str) -> asyncio.Future[bool]:
        why = End(EndCause.WITHDRAWN, reason)
        return self.begin(lambda: self.pool.requests.withdraw(request_id, why))

    def _take_back(self, changes: list[Change], decisions: Decisions, error: StoreError) -> None:
        made = {change.id for change in changes if isinstance(change, Session)}
        for request_id, answer in list(decisions.answers.items()):
            if not isinstance(answer, Granted) or answer.session.id not in made:
                continue  # a request asked again holds what is stored
            del decisions.answers[request_id]
            why = End(EndCause.NOT_STORED, "it could not be stored")
            self._merge(decisions, self.pool.requests.withdraw(request_id, why))
            pending = self._pending.get(request_id)
            if pending and pending.request.wait_seconds != 0 and not isinstance(error, RecordError):
                self._merge(
                    decisions, self.pool.requests.submit(pending.request)
                )  # it waits for the store
            else:
                decisions.answers[request_id] = _not_given(error)

    def _merge(self, decisions: Decisions, more: Decisions) -> None:
        # what was taken back made room, and the queue was served from it: that is a step too
        if any(isinstance(answer, Granted) for answer in more.answers.values()):
            self._finish(self._take_changes(), more)
        else:
            decisions.answers.update(more.answers)
            decisions.ends += more.ends
            decisions.session_ends += more.session_ends
            decisions.handovers += more.handovers
            decisions.suspends += more.suspends


def _not_given(error: StoreError | None) -> Refused:
    why = error or "it was taken back meanwhile; ask again"
    return Refused(CudaStatus.UNKNOWN, f"the controller cannot store a grant: {why}")
