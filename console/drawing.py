# SPDX-License-Identifier: Apache-2.0
"""A GPU to scale: where each slice begins and ends on its bars of memory and of compute.

Used by console.views; templates write the numbers into SVG. A bar is WIDTH wide whatever the GPU
has, so that its parts are shares of the whole. Nothing here knows of HTML.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

WIDTH = 1000.0
HUES = 8  # of console.css: .hue-0 to .hue-7


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a bar; `used` of its width is in use, None where that is not known."""

    x: float
    width: float
    kind: str  # slice, kept, system
    title: str
    hue: int = 0
    used: float | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is to be drawn, in the bar's own unit (MiB or percent)."""

    amount: float
    kind: str
    title: str
    hue: int = 0
    used: float | None = None  # in the same unit


def bar(stretches: Iterable[Stretch], whole: float) -> list[Part]:
    """The parts one behind the other; what does not fit any more is cut at the end of the bar."""
    parts: list[Part] = []
    at = 0.0
    for stretch in stretches:
        width = min(WIDTH - at, WIDTH * max(0.0, stretch.amount) / whole if whole > 0 else 0.0)
        if width <= 0:
            continue
        used = None
        if stretch.used is not None and whole > 0:
            used = round(min(width, WIDTH * max(0.0, stretch.used) / whole), 2)
        parts.append(
            Part(round(at, 2), round(width, 2), stretch.kind, stretch.title, stretch.hue, used)
        )
        at += width
    return parts


def hue_of(name: str) -> int:
    """A project's colour: the same everywhere and always, and shared by few others."""
    return zlib.crc32(name.encode("utf-8", "surrogatepass")) % HUES
