# SPDX-License-Identifier: Apache-2.0
"""The store in etcd, for several controllers: one key per record, one transaction per group.

Used by the controller that leads. Under the prefix of [store]:

    format                the version of all that follows
    leader                who leads (controller.leadership.election); every write is guarded by it
    commit                the term and the number of the last write
    pool/KIND/KEY...      a record, as a JSON object of its fields
    events/NUMBER         the events of one write, as a JSON list; NUMBER is that of the first
    journal/PART          a write that is too large for one transaction, until it is applied

Each write expects the number of the one before it and sets its own, so that an attempt that is
repeated because no answer came is applied once, and one that arrives late not at all. A write that
is too large is first journalled as a whole, then applied piece by piece; the next leader finishes
it. The leader forgets old ended grants and events, and compacts etcd's history.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from pydantic_core import from_json

from sluice.controller.leadership.election import Term
from sluice.controller.pool.model import (
    Change,
    Event,
    GrantState,
    ReservationState,
)
from sluice.controller.pool.pool import Snapshot
from sluice.controller.pool.usage_records import UsageRecord, UsageShare
from sluice.controller.store import records
from sluice.controller.store.etcd_cluster import EtcdCluster, UnreachableError, prefix_end
from sluice.controller.store.group_commit import GroupCommit
from sluice.controller.store.records import Batch, Key, Kind
from sluice.controller.store.store import (
    USAGE_DAYS,
    USAGE_HOURS,
    DeposedError,
    EventQuery,
    NumberedEvent,
    RecordError,
    StoreError,
)

log = logging.getLogger("sluice.controller")

FORMAT = 1
MOST_OPERATIONS = 120  # etcd takes 128 in a transaction; some are our own
GROUP_MOST_CHANGES = 110
PART_CHARACTERS = 300_000  # of a journal; etcd takes requests of 1.5 MiB
FORGET_AT_ONCE = 8
EVENTS_IN_A_KEY = 200
EVENTS_SLACK = 1000
RETRY_SECONDS = 0.1
COMPACT_SECONDS = 300.0

#: Of records of usage, the field with the period that they are of.
_PERIODS = {records.USAGE: "hour", records.SHARES: "day"}

Write = tuple[str, str | None]  # a key and its value; None deletes it


class EtcdStore:
    """A Store for the length of one term."""

    def __init__(
        self,
        cluster: EtcdCluster,
        term: Term,
        prefix: str,
        *,
        ended_kept: int = 1000,
        events_kept: int = 100_000,
    ) -> None:
        self._cluster = cluster
        self._term = term
        self._prefix = prefix
        self._ended_kept = ended_kept
        self._events_kept = events_kept
        self._number = 0
        self._next_event = 1
        self._first_event = 1
        self._commit_value = ""
        self._ended: dict[str, None] = {}  # ids of ended grants, oldest first
        self._sessions: dict[str, set[str]] = {}  # by grant
        self._over: dict[str, None] = {}  # ids of ended reservations, oldest first
        #: Keys of usage records by their hour, and of shares by their day.
        self._periods: dict[Kind, dict[int, set[Key]]] = {kind: {} for kind in _PERIODS}
        self._compaction: asyncio.Task[None] | None = None
        self.group_commit = GroupCommit(self._write, GROUP_MOST_CHANGES)

    # Store

    async def load(self) -> Snapshot:
        """Takes the store over from the leader before and returns its state."""
        await self._check_format()
        await self._take_over()
        await self._finish_journal()
        found: dict[Kind, list[Any]] = {kind: [] for kind in records.KINDS.values()}
        kinds = {kind.name: kind for kind in found}
        base = f"{self._prefix}pool/"
        async for page in self._cluster.pages(base, prefix_end(base)):
            for key, value in page:
                if kind := kinds.get(key[len(base) :].partition("/")[0]):
                    found[kind].append(self._record(kind, key, value))
            await asyncio.sleep(0)  # the lease is renewed meanwhile
        found[records.GRANTS].sort(key=lambda grant: grant.created)
        found[records.SESSIONS].sort(key=lambda session: session.started)
        ended = [g for g in found[records.GRANTS] if g.state is GrantState.ENDED]
        self._ended = dict.fromkeys(g.id for g in sorted(ended, key=lambda g: g.ended or 0.0))
        over = [r for r in found[records.RESERVATIONS] if r.state is ReservationState.ENDED]
        self._over = dict.fromkeys(r.id for r in sorted(over, key=lambda r: r.ended or 0.0))
        by_hour = sorted(found[records.USAGE], key=lambda record: record.hour)
        for record in by_hour:
            self._of_period(records.USAGE, record)
        for share in found[records.SHARES]:
            self._of_period(records.SHARES, share)
        today = max(self._periods[records.SHARES], default=0)
        newest = {record.project: record for record in by_hour}
        for session in found[records.SESSIONS]:
            self._sessions.setdefault(session.grant_id, set()).add(session.id)
        self._compaction = asyncio.create_task(self._compact())
        return Snapshot(
            found[records.NODES],
            found[records.GPUS],
            found[records.GRANTS],
            found[records.SESSIONS],
            found[records.DOCUMENTS],
            sorted(found[records.RESERVATIONS], key=lambda reservation: reservation.created),
            found[records.SWITCHES],
            found[records.QUOTAS],
            list(newest.values()),
            found[records.ATTACHMENTS],
            [share for share in found[records.SHARES] if share.day == today],
        )

    def commit(self, changes: Sequence[Change]) -> asyncio.Future[None]:
        """Stores the changes; DeposedError once another controller may lead."""
        return self.group_commit.commit(changes)

    async def events(self, limit: int, subject: str | None = None) -> list[Event]:
        """Returns the newest events, newest first."""
        query = EventQuery(limit, subjects=(subject,) if subject else ())
        return [found.event for found in await self.find_events(query)]

    async def find_events(self, query: EventQuery) -> list[NumberedEvent]:
        """Returns the events that are asked for, read a window at a time."""
        found: list[NumberedEvent] = []
        low = max(self._first_event, query.after + 1)
        high = min(self._next_event, query.before or self._next_event)  # beyond the last
        window = max(query.limit, 1000)
        while low < high and len(found) < query.limit:
            if query.oldest_first:
                start, end = low, min(high, low + window)
                low = end
            else:
                start, end = max(low, high - window), high
                high = start
            some = [e for e in await self._events_between(start, end) if query.matches(*e)]
            if not query.oldest_first:
                some.reverse()
            found += [NumberedEvent(number, event) for number, event in some]
        return found[: query.limit]

    async def _events_between(self, start: int, end: int) -> list[tuple[int, Event]]:
        # a key has the number of its first event: what begins before may reach into the window
        first = self._event_key(max(0, start - EVENTS_IN_A_KEY + 1))
        found: list[tuple[int, Event]] = []
        for key, value in await self._cluster.get_range(first, self._event_key(end)):
            number = int(key.rpartition("/")[2], 16)
            for fields in json.loads(value):
                if start <= number < end:
                    found.append((number, records.EVENTS.build(fields)))
                number += 1
        return found

    async def usage(self, first: int, last: int, project: str | None = None) -> list[UsageRecord]:
        """Returns what was used in these hours, by hour, then by project."""
        base = f"{self._prefix}pool/{records.USAGE.name}/"
        base += f"{quote(project, safe='')}/" if project else ""
        entries = await self._cluster.get_range(base, prefix_end(base))
        found = [self._record(records.USAGE, key, value) for key, value in entries]
        inside = [record for record in found if first <= record.hour <= last]
        return sorted(inside, key=lambda record: (record.hour, record.project))

    async def shares(self, first: int, last: int, project: str | None = None) -> list[UsageShare]:
        """Returns the same by person and label, of these days, by day, project, person, label."""
        base = f"{self._prefix}pool/{records.SHARES.name}/"
        base += f"{quote(project, safe='')}/" if project else ""
        entries = await self._cluster.get_range(base, prefix_end(base))
        found = [self._record(records.SHARES, key, value) for key, value in entries]
        inside = [record for record in found if first <= record.day <= last]
        return sorted(inside, key=lambda r: (r.day, r.project, r.person, r.label))

    async def close(self) -> None:
        """Waits for commits under way; the cluster's line stays open."""
        await self.group_commit.drain()
        if self._compaction:
            self._compaction.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._compaction

    # taking over

    async def _check_format(self) -> None:
        entry = await self._cluster.get(f"{self._prefix}format")
        found = json.loads(entry.value) if entry else FORMAT
        if found > FORMAT:
            raise StoreError(
                f"{self._cluster.name}: {self._prefix} is of store format {found}, newer than "
                f"this controller's {FORMAT}; start the newer controller"
            )

    async def _take_over(self) -> None:
        entry = await self._cluster.get(f"{self._prefix}commit")
        last = json.loads(entry.value) if entry else {"first_event": 1, "next_event": 1}
        self._first_event, self._next_event = last["first_event"], last["next_event"]
        self._commit_value = entry.value.decode() if entry else ""
        await self._guarded([self._cluster.put(f"{self._prefix}format", str(FORMAT))])

    async def _finish_journal(self) -> None:
        base = f"{self._prefix}journal/"
        entries = dict(await self._cluster.get_range(base, prefix_end(base)))
        whole = entries.pop(f"{base}whole", None)
        if whole is not None:
            log.info("finishing a write that the leader before began")
            parts = [entries[key] for key in sorted(entries)]
            await self._apply([tuple(write) for part in parts for write in json.loads(part)])
        if entries or whole is not None:
            await self._guarded([self._cluster.delete(base, prefix_end(base))])

    def _record(self, kind: Kind, key: str, value: bytes) -> Any:
        try:
            return kind.build(from_json(value))  # there may be 100,000; json takes twice as long
        except (ValueError, TypeError) as error:
            raise StoreError(
                f"{self._cluster.name}: {key} cannot be read ({error}); restore etcd from a "
                "snapshot, or delete the key: servers report what they run"
            ) from None

    # writing

    async def _write(self, changes: list[Change]) -> None:
        batch = records.last_states(changes)
        writes: list[Write] = []
        for kind, puts in batch.puts.items():
            writes += [(self._key(kind, kind.key(put)), _json(kind, put)) for put in puts]
        for kind, keys in batch.removals.items():
            writes += [(self._key(kind, key), None) for key in keys]
        for number, some in _slices(batch.events, EVENTS_IN_A_KEY):
            events = ",".join(_json(records.EVENTS, event) for event in some)
            writes.append((self._event_key(self._next_event + number), f"[{events}]"))
        written = {key for key, _ in writes}
        old, over = self._old_grants(written), self._old_reservations()
        usage = [each for each in self._old_usage() if self._key(*each) not in written]
        forgotten = [
            *(key for keys in old.values() for key in keys),
            *(self._key(records.RESERVATIONS, (reservation,)) for reservation in over),
            *(self._key(*each) for each in usage),
        ]
        if len(forgotten) > MOST_OPERATIONS - len(writes):
            old, over, usage, forgotten = {}, [], [], []  # with one of the next writes
        writes += [(key, None) for key in forgotten]
        if len(writes) > MOST_OPERATIONS or _size(writes) > PART_CHARACTERS:
            await self._write_large(writes, len(batch.events))
        else:
            await self._guarded(self._operations(writes), events=len(batch.events))
        self._remember(batch)
        for grant_id in old:
            del self._ended[grant_id]
            self._sessions.pop(grant_id, None)
        for reservation in over:
            self._over.pop(reservation, None)
        for kind, key in usage:
            self._forget_usage(kind, key)
        await self._forget_events()

    async def _write_large(self, writes: list[Write], events: int) -> None:
        base = f"{self._prefix}journal/"
        await self._guarded([self._cluster.delete(base, prefix_end(base))])
        parts = [_joined(part) for part in _parts(writes)]
        for number, part in enumerate(parts):
            await self._guarded([self._cluster.put(f"{base}{number:06}", part)])
        # from here on it is stored, whoever leads
        await self._guarded([self._cluster.put(f"{base}whole", str(len(parts)))], events=events)
        await self._apply(writes)
        await self._guarded([self._cluster.delete(base, prefix_end(base))])

    async def _apply(self, writes: Sequence[Write]) -> None:
        for part in _parts(writes):
            await self._guarded(self._operations(part))

    def _operations(self, writes: Iterable[Write]) -> list[Any]:
        return [
            self._cluster.delete(key) if value is None else self._cluster.put(key, value)
            for key, value in writes
        ]

    async def _guarded(self, operations: list[Any], events: int = 0) -> None:
        """Applies the operations once, as the leader, or raises."""
        commit, cluster = f"{self._prefix}commit", self._cluster
        value = json.dumps(
            {
                "term": self._term.revision,
                "number": self._number + 1,
                "first_event": self._first_event,
                "next_event": self._next_event + events,
            }
        )
        expected = (
            cluster.if_value(commit, self._commit_value)
            if self._commit_value
            else cluster.if_created_at(commit, 0)
        )
        while True:
            self._term.check()
            try:
                answer = await cluster.transaction(
                    [self._term.guard, expected],
                    [*operations, cluster.put(commit, value)],
                    [cluster.read(commit)],
                )
                if answer.succeeded:
                    break
                # not applied now: either an attempt before was, or this controller is deposed
                entries = answer.responses[0].response_range.kvs
                if entries and entries[0].value.decode() == value:
                    break
                raise DeposedError(f"{cluster.name}: another controller leads")
            except UnreachableError as error:
                log.warning("a write is repeated: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            except (DeposedError, RecordError):
                raise
            except StoreError:
                # etcd applies a write even as it says that its space is used up by it
                entry = await cluster.get(commit)
                if entry and entry.value.decode() == value:
                    break
                raise
        self._number += 1
        self._next_event += events
        self._commit_value = value

    # forgetting

    def _remember(self, batch: Batch) -> None:
        for grant in batch.puts.get(records.GRANTS, ()):
            self._ended.pop(grant.id, None)
            if grant.state is GrantState.ENDED:
                self._ended[grant.id] = None
        for session in batch.puts.get(records.SESSIONS, ()):
            self._sessions.setdefault(session.grant_id, set()).add(session.id)
        for reservation in batch.puts.get(records.RESERVATIONS, ()):
            if reservation.state is ReservationState.ENDED:
                self._over[reservation.id] = None
        for kind in _PERIODS:
            for record in batch.puts.get(kind, ()):
                self._of_period(kind, record)

    def _of_period(self, kind: Kind, record: Any) -> None:
        period = getattr(record, _PERIODS[kind])
        self._periods[kind].setdefault(period, set()).add(kind.key(record))

    def _old_reservations(self) -> list[str]:
        """Ended reservations that are too many, a few at a time."""
        most = min(FORGET_AT_ONCE, len(self._over) - self._ended_kept)
        return list(itertools.islice(self._over, max(0, most)))

    def _old_usage(self) -> list[tuple[Kind, Key]]:
        """Records of hours and days that are over for too long, a few at a time."""
        old: list[tuple[Kind, Key]] = []
        for kind, most in ((records.USAGE, USAGE_HOURS), (records.SHARES, USAGE_DAYS)):
            periods = self._periods[kind]
            if periods and (oldest := min(periods)) < max(periods) - most:
                old += [(kind, key) for key in itertools.islice(periods[oldest], FORGET_AT_ONCE)]
        return old

    def _forget_usage(self, kind: Kind, key: Key) -> None:
        for period, keys in list(self._periods[kind].items()):
            keys.discard(key)
            if not keys:
                del self._periods[kind][period]

    def _old_grants(self, written: set[str]) -> dict[str, list[str]]:
        """Ended grants that are too many, a few at a time, with the keys that go with each."""
        old: dict[str, list[str]] = {}
        for grant_id in itertools.islice(self._ended, FORGET_AT_ONCE):
            key = self._key(records.GRANTS, (grant_id,))
            if len(self._ended) - len(old) > self._ended_kept and key not in written:
                sessions = sorted(self._sessions.get(grant_id, ()))[: MOST_OPERATIONS - 1]
                old[grant_id] = [key, *(self._key(records.SESSIONS, (s,)) for s in sessions)]
        return old

    async def _forget_events(self) -> None:
        first = self._next_event - self._events_kept
        if first < self._first_event + EVENTS_SLACK:
            return
        old = self._cluster.delete(self._event_key(0), self._event_key(first))
        try:
            await self._guarded([old])
        except StoreError as error:
            log.warning("old events are not forgotten yet: %s", error)
        else:
            self._first_event = first

    async def _compact(self) -> None:
        """Runs for ever: what keys were more than some minutes ago is of no use to us."""
        before = 0
        while True:
            await asyncio.sleep(COMPACT_SECONDS)
            try:
                if before:
                    await self._cluster.compact(before)
                before = await self._cluster.revision(f"{self._prefix}commit")
            except StoreError as error:
                log.warning("etcd's history is not compacted: %s", error)

    def _key(self, kind: Kind, key: Key) -> str:
        return f"{self._prefix}pool/{kind.name}/{'/'.join(quote(part, safe='') for part in key)}"

    def _event_key(self, number: int) -> str:
        return f"{self._prefix}events/{number:016x}"


def _json(kind: Kind, record: Any) -> str:
    return json.dumps(dict(zip(kind.fields, kind.values(record), strict=True)), ensure_ascii=False)


def _joined(writes: Sequence[Write]) -> str:
    return json.dumps(writes, ensure_ascii=False)


def _parts(writes: Sequence[Write]) -> Iterable[Sequence[Write]]:
    part: list[Write] = []
    size = 0
    for write in writes:
        length = len(write[0]) + len(write[1] or "")
        if part and (len(part) == MOST_OPERATIONS or size + length > PART_CHARACTERS):
            yield part
            part, size = [], 0
        part.append(write)
        size += length
    if part:
        yield part


def _slices(events: Sequence[Event], most: int) -> Iterable[tuple[int, Sequence[Event]]]:
    for start in range(0, len(events), most):
        yield start, events[start : start + most]


def _size(writes: Iterable[Write]) -> int:
    return sum(len(key) + len(value or "") for key, value in writes)
