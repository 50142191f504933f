# SPDX-License-Identifier: Apache-2.0
"""What sessions share with one another by CUDA IPC: descriptors under keys, and who may have them.

Used by sessions.lifecycle, which tells it of every session's begin and end and of what workers ask.
It owns the descriptors. It promises that a key opens nothing outside the trust domain of the
session that shared it, and that a session's descriptors are closed when it ends. The keys are
random and minted by workers; a worker that was taken over can offer things of its own and fetch
what its session's domain shared, nothing else.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sluice.config.peer_lines import SERVER as PEERS
from sluice.server.workers.packets import Message

#: A shared allocation or a session's events take one descriptor each.
MOST_PER_SESSION = 1024
KEY_DIGITS = 32
KINDS = ("memory", "events")


class _NotShared(Exception):
    """What is asked for is not done; the text says why, to the worker that asked."""


class SharingWorker(Protocol):
    """The worker of a session, as far as it is told things here."""

    def tell(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Says something to it; copies of the descriptors go with it."""
        ...


@dataclass(slots=True)
class Party:
    """A session that can share; `domains` are those that it belongs to, never empty."""

    session_id: str
    domains: frozenset[str]
    worker: SharingWorker
    shared: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Shared:
    """Something under a key."""

    owner: Party
    kind: str
    gpu: str
    size: int
    descriptor: int
    fetched_by: set[str] = field(default_factory=set)


class Sharing:
    """Everything that the sessions of this host share."""

    def __init__(self) -> None:
        self._parties: dict[str, Party] = {}
        self._shared: dict[str, Shared] = {}
        #: Whether a session's context has left its GPUs, or may have: nobody knows what becomes of
        #: its memory where another process opens it then.
        self.is_away: Callable[[str], bool] = lambda session_id: False
        _allow_many_descriptors()

    def __len__(self) -> int:
        return len(self._shared)

    def join(self, session_id: str, domains: frozenset[str], worker: SharingWorker) -> None:
        """A session begins."""
        self._parties[session_id] = Party(session_id, domains, worker)

    def leave(self, session_id: str) -> None:
        """A session has ended: forgets what it shared, and tells who may wait for its events."""
        party = self._parties.pop(session_id, None)
        if party is None:
            return
        for key in list(party.shared):
            self._forget(key, tell=True)
        for shared in self._shared.values():
            shared.fetched_by.discard(session_id)

    def take(self, session_id: str, message: Message) -> None:
        """What a session's worker asks; closes the message's descriptors."""
        try:
            if party := self._parties.get(session_id):
                self._do(party, message)
        finally:
            message.close_descriptors()

    def _do(self, party: Party, message: Message) -> None:
        try:
            if message.verb == "share":
                self._share(party, message)
            elif message.verb == "fetch":
                self._fetch(party, message)
            elif message.get("key") in party.shared:
                self._forget(message.get("key"), tell=False)
        except _NotShared as why:
            text, name = "session %s: `%s` was refused: %s", party.session_id
            PEERS.info("sharing refused", name, text, name, message.verb, why)
            self._answer(party, message, "refused", {"message": str(why)})

    def _share(self, party: Party, message: Message) -> None:
        """Keeps something. Raises _NotShared."""
        key, size = message.get("key"), message.number("bytes")
        if len(message.descriptors) != 1 or message.get("kind") not in KINDS or size <= 0:
            raise _NotShared("it came without its descriptor, its kind or its size")
        if len(key) != KEY_DIGITS or key in self._shared:
            raise _NotShared("its key is none, or taken")
        if len(party.shared) >= MOST_PER_SESSION:
            raise _NotShared(f"this session shares {MOST_PER_SESSION} things already")
        try:
            descriptor = os.dup(message.descriptors[0])
        except OSError as error:
            why = f"the server has no descriptor left ({error.strerror})"
            raise _NotShared(why) from error
        kind, gpu = message.get("kind"), message.get("gpu")
        self._shared[key] = Shared(party, kind, gpu, size, descriptor)
        party.shared.add(key)
        self._answer(party, message, "shared")

    def _fetch(self, party: Party, message: Message) -> None:
        """Hands out what another shares. Raises _NotShared."""
        shared = self._shared.get(message.get("key"))
        # a key of another domain is answered like one that there is not
        if (
            shared is None
            or shared.kind != message.get("kind")
            or not shared.owner.domains & party.domains
        ):
            raise _NotShared(
                "no session of the same user, VM or job on this node shares it: its process has "
                "ended or freed it, or its session is on another node"
            )
        if shared.kind == "memory" and self.is_away(shared.owner.session_id):
            raise _NotShared(
                "its session is suspended, and its context has left the GPU: open it when it runs"
            )
        shared.fetched_by.add(party.session_id)
        fields = {"gpu": shared.gpu, "bytes": str(shared.size)}
        self._answer(party, message, "fetched", fields, [shared.descriptor])

    def _forget(self, key: str, *, tell: bool) -> None:
        shared = self._shared.pop(key)
        shared.owner.shared.discard(key)
        os.close(shared.descriptor)
        if tell and shared.kind == "events":
            for session_id in shared.fetched_by:
                if reader := self._parties.get(session_id):
                    reader.worker.tell(Message("gone", {"key": key}))

    def _answer(
        self,
        party: Party,
        message: Message,
        verb: str,
        fields: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        request = {"request": message.get("request", "0")}
        party.worker.tell(Message(verb, {**request, **(fields or {})}), descriptors)


def _allow_many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or soft < hard:
        most = 1 << 16 if hard == resource.RLIM_INFINITY else hard
        if soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
