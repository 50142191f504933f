# SPDX-License-Identifier: Apache-2.0
"""The pool's records as plain values, and back: what SQLite's and etcd's forms have in common.

Used by the stores only. A kind knows the fields of its record that are stored and which of them
identify it; a field that is added to a record of controller.pool.model is stored by both without a
change here, and takes its default where an older store does not have it.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cached_property
from operator import attrgetter
from typing import Any

from sluice.controller.pool.gpus.attachment import Attachment, AttachmentRemoved
from sluice.controller.pool.model import (
    Change,
    Document,
    DocumentRemoved,
    Event,
    Gpu,
    GpuRemoved,
    GpuSwitch,
    Grant,
    Node,
    Quota,
    QuotaRemoved,
    Reservation,
    Session,
)
from sluice.controller.pool.usage_records import UsageRecord, UsageShare

# monotonic times mean nothing after a restart; the others a node says anew when it returns
NEVER_STORED = {"last_seen", "held", "note", "data_tls", "takes_parts", "swap_mib"} | {
    "memory_oversubscription",
    "contexts",
    "moves_sessions",
}

Key = tuple[str, ...]


class Kind:
    """One type of record."""

    def __init__(self, name: str, record: type, *key: str) -> None:
        self.name = name
        self.record = record
        self.fields = tuple(f.name for f in fields(record) if f.name not in NEVER_STORED)
        self.key_fields = key
        self._values = attrgetter(*self.fields)
        # whether what is stored are the first arguments of the record
        self._is_positional = (
            self.fields == tuple(f.name for f in fields(record))[: len(self.fields)]
        )
        hints = typing.get_type_hints(record)
        self.nested = tuple(
            place
            for place, name in enumerate(self.fields)
            if typing.get_origin(hints[name]) is tuple
        )

    @cached_property
    def _readers(self) -> dict[str, Callable[[Any], Any]]:
        hints = typing.get_type_hints(self.record)
        readers = {name: _reader(hints[name]) for name in self.fields}
        return {name: reader for name, reader in readers.items() if reader}

    def key(self, record: Any) -> Key:
        """What identifies the record among those of its kind."""
        return tuple(str(getattr(record, name)) for name in self.key_fields)

    def values(self, record: Any) -> list[Any]:
        """The stored fields, as JSON has them; those at `nested` are lists."""
        values = list(self._values(record))
        for place in self.nested:
            values[place] = [_plain(item) for item in values[place]]
        return values

    def build_row(self, row: Sequence[Any]) -> Any:
        """A record from all of its stored fields, in their order; fast, for there may be many."""
        values = list(row)
        for place, read in self._readers_by_place:
            values[place] = read(values[place])
        if self._is_positional:
            return self.record(*values)
        return self.record(**dict(zip(self.fields, values, strict=True)))

    @cached_property
    def _readers_by_place(self) -> list[tuple[int, Callable[[Any], Any]]]:
        return [(self.fields.index(name), reader) for name, reader in self._readers.items()]

    def build(self, values: Mapping[str, Any]) -> Any:
        """A record from stored fields; what is missing takes its default."""
        if tuple(values) == self.fields:
            return self.build_row(tuple(values.values()))
        return self.record(
            **{
                name: self._readers[name](values[name]) if name in self._readers else values[name]
                for name in self.fields
                if name in values
            }
        )


NODES = Kind("nodes", Node, "name")
GPUS = Kind("gpus", Gpu, "node", "uuid")
GRANTS = Kind("grants", Grant, "id")
SESSIONS = Kind("sessions", Session, "id")
DOCUMENTS = Kind("documents", Document, "collection", "key")
RESERVATIONS = Kind("reservations", Reservation, "id")
SWITCHES = Kind("switches", GpuSwitch, "node", "uuid")
ATTACHMENTS = Kind("attachments", Attachment, "node", "uuid")
QUOTAS = Kind("quotas", Quota, "project")
USAGE = Kind("usage", UsageRecord, "project", "hour")
SHARES = Kind("usage_shares", UsageShare, "project", "person", "label", "day")
EVENTS = Kind("events", Event)

KINDS: dict[type, Kind] = {
    kind.record: kind
    for kind in (
        NODES,
        GPUS,
        GRANTS,
        SESSIONS,
        DOCUMENTS,
        RESERVATIONS,
        SWITCHES,
        ATTACHMENTS,
        QUOTAS,
        USAGE,
        SHARES,
        EVENTS,
    )
}
REMOVALS: dict[type, Kind] = {
    GpuRemoved: GPUS,
    DocumentRemoved: DOCUMENTS,
    QuotaRemoved: QUOTAS,
    AttachmentRemoved: ATTACHMENTS,
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes with one last state per record; events keep their order."""

    puts: dict[Kind, list[Any]]
    removals: dict[Kind, list[Key]]
    events: list[Event]


def kind_and_key(change: Change) -> tuple[Kind, Key]:
    """Which record a change is about; events have no key."""
    kind = KINDS.get(type(change)) or REMOVALS[type(change)]
    return kind, kind.key(change)


def last_states(changes: Iterable[Change]) -> Batch:
    """Leaves of several changes of one record the last one only."""
    events: list[Event] = []
    last: dict[tuple[Kind, Key], Change] = {}
    for change in changes:
        if isinstance(change, Event):
            events.append(change)
        else:
            last[kind_and_key(change)] = change
    puts: dict[Kind, list[Any]] = {}
    removals: dict[Kind, list[Key]] = {}
    for (kind, key), change in last.items():
        if type(change) in REMOVALS:
            removals.setdefault(kind, []).append(key)
        else:
            puts.setdefault(kind, []).append(change)
    return Batch(puts, removals, events)


_FIELDS: dict[type, tuple[str, ...]] = {}


def _plain(item: Any) -> Any:
    if not is_dataclass(item):
        return item
    names = _FIELDS.get(type(item))
    if names is None:
        names = _FIELDS[type(item)] = tuple(f.name for f in fields(item))
    return {name: getattr(item, name) for name in names}


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    """Turns a stored value into the field's type; None where JSON's own type is the right one."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = [_reader(argument) for argument in arguments if argument is not type(None)]
        if len(inner) != 1 or inner[0] is None:
            return None
        read = inner[0]
        return lambda value: None if value is None else read(value)
    if origin is tuple:
        item = _reader(arguments[0])

        def sequence(value: Any) -> Any:
            items = json.loads(value) if isinstance(value, str) else value
            return tuple(item(each) for each in items) if item else tuple(items)

        return sequence
    if isinstance(hint, type):
        if issubclass(hint, Enum):
            members = {member.value: member for member in hint}
            return lambda value: members.get(value) or hint(value)
        if hint is bool:
            return hint
        if is_dataclass(hint):
            known = {f.name for f in fields(hint)}
            hints = typing.get_type_hints(hint)
            inside = {name: each for name in known if (each := _reader(hints[name]))}

            def record(value: Any) -> Any:
                found = json.loads(value) if isinstance(value, str) else value
                if not found.keys() <= known:
                    found = {name: each for name, each in found.items() if name in known}
                typed = {name: inside[name](found[name]) for name in inside.keys() & found.keys()}
                return hint(**{**found, **typed})

            return record
    return None
