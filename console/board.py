# SPDX-License-Identifier: Apache-2.0
"""Renders parts of pages, once for whoever asks: the first look at a page, or the live stream.

It owns the templates and the kinds of parts of one pool. A part that is hidden raises Hidden; one
whose subject went away while it was looked at says so in its place.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from sluice.console.kinds import kinds
from sluice.console.parts import Hidden, Kind, Name, digest_of
from sluice.console.rendering import Rendering
from sluice.console.rights import Rights
from sluice.controller.grant_service import GrantService
from sluice.controller.pool.pool import Pool


@dataclass(frozen=True, slots=True)
class Rendered:
    """A part as it is now."""

    name: Name
    html: str
    digest: str


class Board:
    """The parts of one pool."""

    def __init__(self, grant_service: GrantService, rendering: Rendering) -> None:
        self._pool: Pool = grant_service.pool
        self._rendering = rendering
        self._kinds = kinds(grant_service)
        self.rendered = 0  # how often, for tests

    def kind(self, name: Name) -> Kind:
        """What kind a part is of; raises Hidden."""
        try:
            return self._kinds[name.kind]
        except KeyError:
            raise Hidden from None

    def is_large(self, name: Name) -> bool:
        """Whether a part may be tens of kilobytes; raises Hidden."""
        return self.kind(name).large

    def topics(self, name: Name) -> tuple[str, ...]:
        """What makes a part stale; raises Hidden."""
        try:
            return self.kind(name).about(dict(name.arguments))
        except KeyError:  # an argument is missing
            raise Hidden from None

    async def render(self, name: Name, rights: Rights) -> Rendered:
        """A part as these rights see it; raises Hidden, StoreError, Problem (a wrong marker)."""
        kind = self.kind(name)
        try:
            values = kind.values(self._pool, rights, dict(name.arguments))
        except KeyError:  # an argument is missing
            raise Hidden from None
        if inspect.isawaitable(values):
            values = await values
        self.rendered += 1
        html = self._rendering.html(kind.template, {"rights": rights, **values})
        return Rendered(name, html, digest_of(html))
