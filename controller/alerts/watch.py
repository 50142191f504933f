# SPDX-License-Identifier: Apache-2.0
"""Looks at the rules while a controller leads, writes down what fires and what is over, and tells.

Started by controller.service; asked by REST and the console. What began and what ended are events
of the pool (`alert.firing`, `alert.resolved`), so their history is the event log's: stored and
bounded, the same under the next leader, who goes on with what fires. A look costs sums that are
kept anyway.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from sluice.config.controller import AlertsSection
from sluice.controller.alerts.book import Alert, AlertBook
from sluice.controller.alerts.own_rules import OwnRules
from sluice.controller.alerts.rules import Rule, Severity, found_by, rules
from sluice.controller.alerts.webhook import Webhook, sending
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.decisions import Decisions
from sluice.controller.pool.model import Event
from sluice.controller.store.store import DeposedError, EventQuery, StoreError

log = logging.getLogger("sluice.controller")

LOOK_SECONDS = 15.0
FIRING, RESOLVED = "alert.firing", "alert.resolved"
#: Of the event log, in which what fires under an earlier leader is looked for.
MOST_REMEMBERED = 1000


class AlertWatch:
    """Of one pool."""

    def __init__(
        self,
        grant_service: GrantService,
        section: AlertsSection,
        wall: Callable[[], float] = time.time,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        own: OwnRules | None = None,
    ) -> None:
        self._service = grant_service
        self._wall = wall
        self._pause = pause
        self._book = AlertBook()
        self._own = own or OwnRules()
        self.rules: list[Rule] = [*rules(section), *self._own.rules]
        self.webhook = Webhook(section)

    @property
    def active(self) -> list[Alert]:
        """What fires now, the most urgent and then the newest first."""
        urgency = list(Severity)
        return sorted(
            self._book.active.values(),
            key=lambda alert: (urgency.index(alert.severity), -alert.since, alert.key),
        )

    def series_of(self, rule: Rule) -> int | None:
        """How many series a rule of one's own looked at last; None: it is one of the default set.

        0 for long means that its labels fit nothing.
        """
        return self._own.series_of(rule.name) if rule.own else None

    async def run(self) -> None:
        """Until it is cancelled, or this controller leads no more."""
        async with sending(self.webhook):
            await self.remember()
            while True:
                try:
                    await self.look()
                except DeposedError:
                    return
                except Exception:
                    log.exception("alerts: the rules could not be looked at")
                await self._pause(LOOK_SECONDS)

    async def remember(self) -> None:
        """Takes over what fired under an earlier leader."""
        try:
            events = await self._service.store.find_events(
                EventQuery(MOST_REMEMBERED, kind="alert.")
            )
        except StoreError:
            return
        known = {rule.name: rule for rule in self.rules}
        newest: dict[str, Event] = {}
        for each in events:
            newest.setdefault(each.event.subject, each.event)
        self._book = AlertBook(
            Alert(rule, about, known[rule].severity, event.text, event.time)
            for subject, event in newest.items()
            for rule, _, about in (subject.partition(" "),)
            if event.kind == FIRING and rule in known
        )

    async def look(self) -> None:
        """Once: what fires from now on, and what is over."""
        self._own.read(self._service)
        found = {
            (rule.name, subject): text
            for rule in self.rules
            for subject, text in found_by(rule, self._service).items()
        }
        changed = self._book.update(self.rules, found, self._wall())
        if not changed:
            return
        self.webhook.tell(changed)

        def write_down() -> Decisions:
            for alert in changed:
                kind = FIRING if alert.until is None else RESOLVED
                subject = f"{alert.rule} {alert.subject}".strip()
                self._service.pool.note(kind, subject, alert.text)
            return Decisions()

        await self._service.step(write_down)
