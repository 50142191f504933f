# SPDX-License-Identifier: Apache-2.0
"""Templates and what they may call: links, sizes, times, the files that pages load.

Used by everything in console that makes HTML. Every value is escaped unless a template made it; a
name that a template does not know is an error, not an empty string.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from sluice.config.version import own_version
from sluice.console.static_files import FILES
from sluice.controller.auth.browser_sessions import PREFIX

TEMPLATES = Path(__file__).resolve().parent / "templates"
GIB_FROM_MIB = 10_240  # sizes from here on are shown in GiB


def link(page: str, **query: Any) -> str:
    """The address of a page. Names are in the query: in a path "..", "/" and "" mean something."""
    text = urlencode({name: value for name, value in query.items() if value not in (None, "")})
    return f"{PREFIX}/{page}{'?' if text else ''}{text}"


def mib(amount: float) -> str:
    """A size in MiB, in words."""
    if amount >= GIB_FROM_MIB:
        return f"{amount / 1024:,.1f} GiB"
    return f"{amount:,.0f} MiB"


def percent(share: float) -> str:
    """A share from 0 to 1 as percent."""
    return f"{share * 100:.0f} %"


def moment(when: datetime | float | None) -> Markup:
    """A time as an element that says it in UTC; a dash for none."""
    if when is None:
        return Markup("–")
    if not isinstance(when, datetime):
        when = datetime.fromtimestamp(when, UTC)
    text = when.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}">{} UTC</time>').format(when.isoformat(), text)


def printable(text: str) -> str:
    """A log's text without what steers terminals; lines stay."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


class Rendering:
    """The templates."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=select_autoescape(default=True, default_for_string=True),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=True,  # who changes a template reloads the page
        )
        self._environment.globals |= {
            "link": link,
            "version": own_version(),
            "static": lambda name: FILES[name].url,
        }
        self._environment.filters |= {"mib": mib, "percent": percent, "moment": moment}

    def html(self, template: str, values: Mapping[str, Any]) -> str:
        """What a template makes of these values."""
        return self._environment.get_template(template).render(values)


__all__ = ["Markup", "Rendering", "escape", "link", "mib", "moment", "percent", "printable"]
