# SPDX-License-Identifier: Apache-2.0
"""What projects have used: vGPU-seconds, MiB-seconds and percent-seconds, by the hour.

Owned by grants.bookings, which tells it of every change of what a project holds. It promises
that a record handed out with the change that it comes with is exact up to its `until`, so that what
is stored together adds up after a crash: from `until` on the project held what the store says that
it held. Durations come from the monotonic clock; the wall clock only says which hour they belong
to, and never goes back to an hour before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sluice.controller.pool.model import Clock, UsageRecord
from sluice.controller.pool.projects.quotas import NOTHING, Held

HOUR_SECONDS = 3600


@dataclass(slots=True)
class _Meter:
    rate: Held
    since: float  # monotonic
    record: UsageRecord  # of the newest hour


class UsageMeters:
    """One meter for each project."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._meters: dict[str, _Meter] = {}

    def restore(self, newest: Iterable[UsageRecord], held: dict[str, Held]) -> None:
        """Goes on from each project's newest record: what is held now was held since then."""
        for record in newest:
            rate = held.get(record.project, NOTHING)
            away = max(0.0, self._clock.wall() - record.until)
            self._meters[record.project] = _Meter(rate, self._clock.monotonic() - away, record)
        for project, rate in held.items():
            if project not in self._meters:
                self.change(project, rate)

    def change(self, project: str, rate: Held) -> list[UsageRecord]:
        """From now on the project holds this; returns what is to be stored with that."""
        meter = self._meters.get(project)
        if meter is None:
            wall = self._clock.wall()
            empty = UsageRecord(project, int(wall // HOUR_SECONDS), 0.0, 0.0, 0.0, wall)
            meter = self._meters[project] = _Meter(NOTHING, self._clock.monotonic(), empty)
        records = self._count(meter)
        meter.rate = rate
        return records

    def cut(self) -> list[UsageRecord]:
        """Closes hours that are over."""
        hour = int(self._clock.wall() // HOUR_SECONDS)
        records: list[UsageRecord] = []
        for meter in self._meters.values():
            if meter.record.hour < hour and meter.rate != NOTHING:
                records += self._count(meter)
        return records

    def up_to_now(self) -> list[UsageRecord]:
        """Every project's newest records, counted up to now; nothing is changed by that."""
        now = self._clock.monotonic()
        return [r for m in self._meters.values() for r in self._counted(m, now)]

    def _count(self, meter: _Meter) -> list[UsageRecord]:
        now = self._clock.monotonic()
        records = self._counted(meter, now)
        meter.record = records[-1]
        meter.since = now
        return records

    def _counted(self, meter: _Meter, now: float) -> list[UsageRecord]:
        wall = self._clock.wall()
        left = max(0.0, now - meter.since)
        if meter.rate == NOTHING:
            left = 0.0
        newest = meter.record
        last = max(newest.hour, int(wall // HOUR_SECONDS))
        if not left and last > newest.hour:
            return [UsageRecord(newest.project, last, 0.0, 0.0, 0.0, wall)]
        parts: list[tuple[int, float]] = []
        for hour in range(last, newest.hour, -1):  # newest first: its part is what is sure
            inside = wall - hour * HOUR_SECONDS if hour == last else float(HOUR_SECONDS)
            part = min(left, inside)
            left -= part
            parts.append((hour, part))
            if not left:
                break
        records = []
        if left or not parts:
            records.append(_added(newest, meter.rate, left, wall))
        for hour, part in reversed(parts):
            empty = UsageRecord(newest.project, hour, 0.0, 0.0, 0.0, wall)
            records.append(_added(empty, meter.rate, part, wall))
        return records


def _added(record: UsageRecord, rate: Held, seconds: float, until: float) -> UsageRecord:
    return UsageRecord(
        record.project,
        record.hour,
        record.vgpu_seconds + rate.vgpus * seconds,
        record.memory_mib_seconds + rate.memory_mib * seconds,
        record.compute_percent_seconds + rate.compute_percent * seconds,
        until,
    )
