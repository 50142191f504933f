# SPDX-License-Identifier: Apache-2.0
"""What people and labels have used of their projects' usage, by the day.

Owned by grants.bookings, which tells it of everything that it tells projects.usage. Both count the
same, so the shares of a project's day add up to its hours. A share is stored once a minute and not
with each change, which would cost every grant a record more: so a controller that is killed may
lose or double a minute of it, where a project's usage stays exact.

There are MOST_SHARES at a time; what comes beyond them counts for OTHERS of its project until
others are forgotten, which they are when their day is over and they hold nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from sluice.controller.pool.model import Clock
from sluice.controller.pool.projects.quotas import NOTHING, Held
from sluice.controller.pool.usage_records import UsageShare

DAY_SECONDS = 86_400
KEEP_SECONDS = 60.0
MOST_SHARES = 2000
MOST_OF_CUT = 64  # so that no step of the pool has to store all of them
MOST_CHARACTERS = 100
OTHERS = "(others)"


class Share(NamedTuple):
    """Of whose usage: empty texts are nobody in particular, and no label."""

    project: str
    person: str
    label: str


@dataclass(slots=True)
class _Meter:
    rate: Held
    since: float  # monotonic: counted up to then
    stored: float  # monotonic: when it was stored the last time
    record: UsageShare  # of the newest day
    changed: bool = False


class ShareMeters:
    """One meter for each share of today."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._meters: dict[Share, _Meter] = {}
        self._closed: list[UsageShare] = []  # of days that are over
        self._among_others: set[str] = set()  # ids of what was counted so when it began

    def restore(
        self, newest: Iterable[UsageShare], held: Iterable[tuple[str, Share, Held, float]]
    ) -> None:
        """Goes on from the newest days; what is held is so since then, or since it began.

        `held` has each grant and reservation: its id, share and size, and when it began (seconds
        since the epoch).
        """
        today, wall, now = self._today(), self._clock.wall(), self._clock.monotonic()
        known = {Share(r.project, r.person, r.label): r for r in newest}
        known = {share: record for share, record in known.items() if record.day == today}
        for share, record in known.items():
            if len(self._meters) < MOST_SHARES:
                self._meters[share] = _Meter(NOTHING, now, now, record)
        for owner, share, size, began in held:
            meter = self._meter(owner, share, 1)
            of_record = Share(meter.record.project, meter.record.person, meter.record.label)
            # nothing of today is stored of it: then it has had all since midnight, or it is new
            start = meter.record.until if of_record in known else today * DAY_SECONDS
            away = max(0.0, wall - max(start, began))
            meter.record = _added(meter.record, size, away, meter.record.until)
            meter.rate = meter.rate.plus(size)
            meter.changed = True
        for meter in self._meters.values():
            meter.record = replace(meter.record, until=wall)

    def change(self, owner: str, share: Share, held: Held, sign: int) -> None:
        """A grant or reservation (its id) holds this from now on, or no longer."""
        meter = self._meter(owner, share, sign)
        self._count(meter)
        meter.rate = meter.rate.plus(held, sign)
        meter.changed = True

    def adjust(self, owner: str, share: Share, by: Held) -> None:
        """What has been counted already holds so much more from now on, or less."""
        meter = self._meter(owner, share, 0)
        self._count(meter)
        meter.rate = meter.rate.plus(by)
        meter.changed = True

    def measured(self, owner: str, share: Share, used: float, waited: float) -> None:
        """Its vGPUs had so many seconds more of GPUs' time, and waited so long for it."""
        meter = self._meter(owner, share, 0)
        self._count(meter)
        meter.record = replace(
            meter.record,
            gpu_seconds=meter.record.gpu_seconds + used,
            gpu_wait_seconds=meter.record.gpu_wait_seconds + waited,
        )
        meter.changed = True

    def cut(self) -> list[UsageShare]:
        """Hands out what has not been stored for a minute, some at a time."""
        now, today = self._clock.monotonic(), self._today()
        found, self._closed = self._closed, []
        idle = []
        for share, meter in self._meters.items():
            over = meter.record.day < today
            if meter.rate == NOTHING and not meter.changed:
                if over:
                    idle.append(share)
                continue
            if now - meter.stored < KEEP_SECONDS and not over:
                continue
            if len(found) >= MOST_OF_CUT:
                break
            self._count(meter)
            found += [*self._closed, meter.record]
            self._closed = []
            meter.stored, meter.changed = now, False
        for share in idle:
            del self._meters[share]
        return found

    def up_to_now(self) -> list[UsageShare]:
        """What the store does not have yet: today's, and days that are over; nothing is changed."""
        found = list(self._closed)
        for meter in self._meters.values():
            closed, record = self._counted(meter)
            found += [*closed, record]
        return found

    def _meter(self, owner: str, share: Share, sign: int) -> _Meter:
        share = Share(share.project, share.person[:MOST_CHARACTERS], share.label[:MOST_CHARACTERS])
        others = Share(share.project, OTHERS, OTHERS)
        if owner in self._among_others:
            share = others
            if sign < 0:
                self._among_others.discard(owner)
        elif share not in self._meters and len(self._meters) >= MOST_SHARES:
            share = others
            if sign > 0:
                self._among_others.add(owner)
        meter = self._meters.get(share)
        if meter is None:
            now = self._clock.monotonic()
            record = UsageShare(*share, self._today(), 0.0, 0.0, 0.0, self._clock.wall())
            meter = self._meters[share] = _Meter(NOTHING, now, now, record)
        return meter

    def _today(self) -> int:
        return int(self._clock.wall() // DAY_SECONDS)

    def _count(self, meter: _Meter) -> None:
        closed, meter.record = self._counted(meter)
        meter.since = self._clock.monotonic()
        self._closed += closed

    def _counted(self, meter: _Meter) -> tuple[list[UsageShare], UsageShare]:
        """Days that are over, and the newest, counted up to now."""
        wall, now = self._clock.wall(), self._clock.monotonic()
        left, record = max(0.0, now - meter.since), meter.record
        today = max(record.day, int(wall // DAY_SECONDS))
        if today == record.day:
            return [], _added(record, meter.rate, left, wall)
        inside = min(left, max(0.0, wall - today * DAY_SECONDS))
        closed = [_added(record, meter.rate, left - inside, wall)]
        empty = UsageShare(record.project, record.person, record.label, today, 0.0, 0.0, 0.0, wall)
        return closed, _added(empty, meter.rate, inside, wall)


def _added(record: UsageShare, rate: Held, seconds: float, until: float) -> UsageShare:
    return replace(
        record,
        vgpu_seconds=record.vgpu_seconds + rate.vgpus * seconds,
        memory_mib_seconds=record.memory_mib_seconds + rate.memory_mib * seconds,
        compute_percent_seconds=record.compute_percent_seconds + rate.compute_percent * seconds,
        until=until,
    )
