# SPDX-License-Identifier: Apache-2.0
"""Which alerts fire: pure bookkeeping over what the rules find, with an injected time.

Used by watch. What a rule finds fires when it has been so for the rule's time without a break, and
is over when it was not found for QUIET_SECONDS: what comes and goes is one alert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sluice.controller.alerts.rules import Rule, Severity

QUIET_SECONDS = 60.0

Key = tuple[str, str]
"""A rule's name, and what it is about."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One that fires or has fired; times are seconds since the epoch."""

    rule: str
    subject: str
    severity: Severity
    text: str
    since: float
    until: float | None = None

    @property
    def key(self) -> Key:
        """There is one at a time."""
        return self.rule, self.subject


class AlertBook:
    """All of them."""

    def __init__(self, active: Iterable[Alert] = ()) -> None:
        """`active` fired under an earlier leader."""
        self.active: dict[Key, Alert] = {alert.key: alert for alert in active}
        self._pending: dict[Key, float] = {}
        self._last_found: dict[Key, float] = dict.fromkeys(self.active, float("-inf"))
        self._began: float | None = None

    def update(self, rules: Iterable[Rule], found: Mapping[Key, str], now: float) -> list[Alert]:
        """Takes in what was found; returns what began to fire, and what is over."""
        if self._began is None:
            # what an earlier leader saw has this long to be seen again
            self._began = now
            self._last_found = dict.fromkeys(self.active, now)
        changed = []
        for rule in rules:
            for (name, subject), text in found.items():
                if name == rule.name:
                    changed += self._seen(rule, subject, text, now)
        self._pending = {key: since for key, since in self._pending.items() if key in found}
        for key, alert in list(self.active.items()):
            if key not in found and now - self._last_found[key] >= QUIET_SECONDS:
                del self.active[key], self._last_found[key]
                changed.append(replace(alert, until=now))
        return changed

    def _seen(self, rule: Rule, subject: str, text: str, now: float) -> list[Alert]:
        key = rule.name, subject
        if key in self.active:
            self._last_found[key] = now
            self.active[key] = replace(self.active[key], text=text)
            return []
        since = self._pending.setdefault(key, now)
        if now - since < rule.held:
            return []
        del self._pending[key]
        alert = Alert(rule.name, subject, rule.severity, text, since)
        self.active[key], self._last_found[key] = alert, now
        return [alert]
