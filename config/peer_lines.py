# SPDX-License-Identifier: Apache-2.0
"""Log lines that another party can cause, as often as it likes: limited, and summed up.

Used by server and controller for everything that a peer's doing alone puts into a log: refusals,
rubbish, connections that come to nothing. A kind of line is written a few times a minute for each
peer and some more times for all of them; what is beyond is counted, and told in one line when the
minute is over. So is what was counted of a kind, written or not, for the figures of a service. It
promises that neither time nor memory nor the log grows with what peers do: kinds and peers that are
remembered are bounded, lines are short, and a line that is not written is not even formatted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sluice.config.metric_families import Family, Samples

WINDOW_SECONDS = 60.0
MOST_OF_PEER = 5
MOST_OF_KIND = 20
#: What is not of a single try, such as a session's beginning, may be told this much oftener.
OFTEN = 60
MOST_KINDS = 100
MOST_PEERS = 50
NAMED_PEERS = 5
MOST_CHARACTERS = 500
OTHERS = "others"

FAMILY = Family(
    "sluice_peer_lines_total",
    "counter",
    "What peers caused that is worth a line of the log (refusals, rubbish), by kind; most is "
    "summed up there.",
    ("kind",),
)


@dataclass(slots=True)
class _Window:
    """A minute of one kind."""

    ends: float
    written: dict[str, int] = field(default_factory=dict)  # by peer
    of_kind: int = 0  # written, of all peers
    left_out: Counter[str] = field(default_factory=Counter)
    level: int = logging.INFO  # the highest of what was left out


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What was not written of one kind in its last minute."""

    kind: str
    level: int
    count: int
    peers: tuple[tuple[str, int], ...]  # those with most first; OTHERS is the rest

    def __str__(self) -> str:
        named = "; ".join(f"{peer}: {count:,}" for peer, count in self.peers)
        return (
            f"… {self.count:,} more of this kind in the last {WINDOW_SECONDS:.0f} s: "
            f"{self.kind} ({named})"
        )


class Windows:
    """Which lines are written, and what was left out; without any log, timer or clock of its own.

    `often` is for kinds that an honest peer causes, too: it may so many times as much.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._windows: dict[str, _Window] = {}
        self.counts: Counter[str] = Counter()  # of everything, by kind

    def admits(self, kind: str, peer: str, level: int = logging.INFO, often: int = 1) -> bool:
        """Whether this one is to be written; else it is counted."""
        if kind not in self.counts and len(self.counts) >= MOST_KINDS:
            kind = OTHERS
        self.counts[kind] += 1
        window = self._windows.get(kind)
        if window is None:
            window = self._windows[kind] = _Window(self._now() + WINDOW_SECONDS)
        of_peer = window.written.get(peer, 0)
        if of_peer < MOST_OF_PEER * often and window.of_kind < MOST_OF_KIND * often:
            window.written[peer] = of_peer + 1
            window.of_kind += 1
            return True
        known = peer in window.left_out or len(window.left_out) < MOST_PEERS
        window.left_out[peer if known else OTHERS] += 1
        window.level = max(window.level, level)
        return False

    def over(self) -> list[LeftOut]:
        """What was left out in minutes that are over by now; they are forgotten."""
        now = self._now()
        found = []
        for kind in [k for k, window in self._windows.items() if window.ends <= now]:
            window = self._windows.pop(kind)
            if window.left_out:
                found.append(_left_out(kind, window))
        return found

    @property
    def next_end(self) -> float | None:
        """When the first minute ends of which something was left out."""
        return min((w.ends for w in self._windows.values() if w.left_out), default=None)


def _left_out(kind: str, window: _Window) -> LeftOut:
    rest = window.left_out.pop(OTHERS, 0)
    named = window.left_out.most_common(NAMED_PEERS)
    rest += window.left_out.total() - sum(count for _, count in named)
    peers = [*named, (OTHERS, rest)] if rest else named
    return LeftOut(kind, window.level, sum(count for _, count in peers), tuple(peers))


class PeerLines:
    """Writes such lines into one logger."""

    def __init__(
        self, log: logging.Logger, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._monotonic = monotonic
        self._windows = Windows(monotonic)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def counts(self) -> Counter[str]:
        """How many there were of each kind, written or not."""
        return self._windows.counts

    def info(self, kind: str, peer: str, text: str, *args: object, often: int = 1) -> None:
        """A line about what this peer did; its kind is a fixed text, never a peer's."""
        self._tell(logging.INFO, kind, peer, text, args, often)

    def warning(self, kind: str, peer: str, text: str, *args: object, often: int = 1) -> None:
        """The same as a warning."""
        self._tell(logging.WARNING, kind, peer, text, args, often)

    def error(self, kind: str, peer: str, text: str, *args: object) -> None:
        """The same as an error."""
        self._tell(logging.ERROR, kind, peer, text, args, 1)

    def exception(self, kind: str, peer: str, text: str, *args: object) -> None:
        """The same as an error, with the exception that is being handled."""
        if self.admits(kind, peer, logging.ERROR):
            self._log.error("%s", _one_line(text, args), exc_info=True)

    def sum_up(self) -> None:
        """Writes what was left out in the minutes that are over."""
        for each in self._windows.over():
            fields = {"kind": each.kind, "left_out": each.count}
            self._log.log(each.level, "%s", _one_line(str(each), ()), extra={"fields": fields})

    def fill(self, samples: Samples) -> None:
        """The figures of FAMILY."""
        for kind, count in self.counts.items():
            samples.add(FAMILY.name, count, kind)

    def _tell(
        self, level: int, kind: str, peer: str, text: str, args: Iterable[object], often: int
    ) -> None:
        if self.admits(kind, peer, level, often):
            self._log.log(level, "%s", _one_line(text, tuple(args)))

    def admits(self, kind: str, peer: str, level: int = logging.INFO, often: int = 1) -> bool:
        """Whether a line may be written by other means; else it is counted here."""
        self.sum_up()
        admitted = self._windows.admits(kind, peer[:64], level, often)
        if not admitted and self._timer is None:
            self._sum_up_later()
        return admitted

    def _sum_up_later(self) -> None:
        """So that the sum is told even if nothing comes any more."""
        end = self._windows.next_end
        if end is None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # without a loop the next line sees to it
        self._timer = loop.call_later(max(0.0, end - self._monotonic()), self._timed)

    def _timed(self) -> None:
        self._timer = None
        self.sum_up()
        self._sum_up_later()


def _one_line(text: str, args: tuple[object, ...]) -> str:
    """What a peer sent is in it: it stays one line, and a short one."""
    line = (text % args if args else text)[: MOST_CHARACTERS + 1]
    if not line.isprintable():
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    return line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…"


SERVER = PeerLines(logging.getLogger("sluice.server"))
CONTROLLER = PeerLines(logging.getLogger("sluice.controller"))
