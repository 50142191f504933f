# SPDX-License-Identifier: Apache-2.0
"""What projects have used: vGPU-seconds, MiB-seconds, percent-seconds and GPU-seconds, by the hour.

Owned by grants.bookings, which tells it of every change of what a project holds; grants.vgpu_times
tells it what nodes measured of GPUs' time. It promises that a record handed out with the change
that it comes with is exact up to its `until`, so that what is stored together adds up after a
crash: from `until` on the project held what the store says that it held. What was measured is
stored with the next change, or when it is a minute old. Durations come from the monotonic clock;
the wall clock only says which hour they belong to, and never goes back to an hour before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sluice.controller.pool.model import Clock
from sluice.controller.pool.projects.quotas import NOTHING, Held
from sluice.controller.pool.usage_records import UsageRecord

HOUR_SECONDS = 3600
KEEP_SECONDS = 60.0  # so much of what was measured may be lost with a controller


@dataclass(slots=True)
class _Meter:
    rate: Held
    since: float  # monotonic
    record: UsageRecord  # of the newest hour
    measured_since: float | None = None  # monotonic: what was measured from then on is not stored


class UsageMeters:
    """One meter for each project."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._meters: dict[str, _Meter] = {}
        self._closed: list[UsageRecord] = []  # by what was measured in a later hour

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

    def measured(self, project: str, used: float, waited: float) -> None:
        """The project's vGPUs had so many seconds more of GPUs' time, and waited so long for it."""
        if project not in self._meters:
            self.change(project, NOTHING)
        meter = self._meters[project]
        if meter.record.hour < int(self._clock.wall() // HOUR_SECONDS):
            self._closed += self._count(meter)
        meter.record = replace(
            meter.record,
            gpu_seconds=meter.record.gpu_seconds + used,
            gpu_wait_seconds=meter.record.gpu_wait_seconds + waited,
        )
        if meter.measured_since is None:
            meter.measured_since = self._clock.monotonic()

    def cut(self) -> list[UsageRecord]:
        """Closes hours that are over, and hands out what was measured a while ago."""
        hour = int(self._clock.wall() // HOUR_SECONDS)
        now = self._clock.monotonic()
        records, self._closed = self._closed, []
        for meter in self._meters.values():
            since = meter.measured_since
            over = meter.record.hour < hour and (meter.rate != NOTHING or since is not None)
            if over or (since is not None and now - since >= KEEP_SECONDS):
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
        meter.measured_since = None
        return records

    def _counted(self, meter: _Meter, now: float) -> list[UsageRecord]:
        wall = self._clock.wall()
        left = max(0.0, now - meter.since)
        if meter.rate == NOTHING:
            left = 0.0
        newest = meter.record
        last = max(newest.hour, int(wall // HOUR_SECONDS))
        if not left and last > newest.hour:
            empty = UsageRecord(newest.project, last, 0.0, 0.0, 0.0, wall)
            return [empty] if meter.measured_since is None else [newest, empty]
        parts: list[tuple[int, float]] = []
        for hour in range(last, newest.hour, -1):  # newest first: its part is what is sure
            inside = wall - hour * HOUR_SECONDS if hour == last else float(HOUR_SECONDS)
            part = min(left, inside)
            left -= part
            parts.append((hour, part))
            if not left:
                break
        records = []
        if left or not parts or meter.measured_since is not None:
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
        record.gpu_seconds,
        record.gpu_wait_seconds,
    )
