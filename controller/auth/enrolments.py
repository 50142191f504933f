# SPDX-License-Identifier: Apache-2.0
"""Enrolments: one-time secrets with which a machine gets a token of its own; the store has hashes.

Used by access.py, which asks whose a secret is, and by the REST handlers for enrolments. Whoever
creates VMs (an adapter of a platform, cloud-init's user data, a person) puts an enrolment's secret
where the new machine reads it. Such places are often readable by others too, so a secret is good
for minutes and once: the machine shows it, gets its own token, and the secret is worth nothing.

It promises that a secret is handed out once, after its hash is stored; that of two that show the
same secret one gets a token; and that an enrolment which is withdrawn takes its token along.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sluice.controller.auth.tokens import Role, Token, TokenBook
from sluice.controller.pool.model import Document, DocumentRemoved, Event
from sluice.controller.store.store import Store, StoreError
from sluice.resources.first_tokens import hash_of

log = logging.getLogger("sluice.controller")

COLLECTION = "enrolments"
PREFIX = "sluice_enrol_"  # so that it is not taken for a token, by people or by us
KEPT_SECONDS = 7 * 86400.0  # what is over is kept so long for people to look at

State = Literal["open", "used", "expired", "withdrawn"]


class NotOpen(Exception):
    """The enrolment was used, or withdrawn, by another call; the message says which."""


class Enrolment(BaseModel):
    """All that is kept of an enrolment, and what its token will be."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    hash: str
    role: Role
    name: str = ""
    project: str = ""  # of a tenant's
    node: str = ""  # of a node's
    vm: str = ""  # the VM's UUID whose reservations a tenant's draws on
    label: str = ""  # the same for a label
    reservation: str = ""  # that it was made for; it is over with it
    created: float
    created_by: str = ""
    expires: float
    token_seconds: int | None = None  # how long its token is good for; None: until it is revoked
    used: float | None = None
    token_id: str = ""
    withdrawn: float | None = None
    generation: int = 1

    def state(self, now: float) -> State:
        """Whether it may be used now."""
        if self.withdrawn is not None:
            return "withdrawn"
        if self.used is not None:
            return "used"
        return "expired" if self.expires <= now else "open"


class EnrolmentBook:
    """Every enrolment of the pool."""

    def __init__(self, store: Store, tokens: TokenBook, documents: Iterable[Document] = ()) -> None:
        self._store = store
        self._tokens = tokens
        found = [
            Enrolment.model_validate_json(document.value)
            for document in documents
            if document.collection == COLLECTION
        ]
        self.enrolments = {each.id: each for each in sorted(found, key=lambda e: e.created)}
        self._by_hash = {each.hash: each.id for each in found}
        self._in_use: dict[str, asyncio.Event] = {}  # tokens being stored, by enrolment

    def find(self, secret: str) -> Enrolment | None:
        """The enrolment with this secret, open or not."""
        enrolment_id = self._by_hash.get(hash_of(secret))
        return self.enrolments[enrolment_id] if enrolment_id else None

    async def create(
        self,
        role: Role,
        *,
        by: str,
        seconds: int,
        name: str = "",
        project: str = "",
        node: str = "",
        vm: str = "",
        label: str = "",
        reservation: str = "",
        token_seconds: int | None = None,
    ) -> tuple[Enrolment, str]:
        """A new enrolment and its secret; raises StoreError, and then there is none."""
        secret = PREFIX + secrets.token_urlsafe(32)
        now = self._tokens.wall()
        enrolment = Enrolment(
            id=secrets.token_hex(6),
            hash=hash_of(secret),
            role=role,
            name=name,
            project=project,
            node=node,
            vm=vm,
            label=label,
            reservation=reservation,
            created=now,
            created_by=by,
            expires=now + seconds,
            token_seconds=token_seconds,
        )
        forgotten = self._over(now)
        event = Event(now, "enrolment.made", enrolment.id, f"{role} {_whose(enrolment)}, by {by}")
        removed = [DocumentRemoved(COLLECTION, each.id) for each in forgotten]
        await self._store.commit([_document(enrolment), event, *removed])
        for each in forgotten:
            self.enrolments.pop(each.id, None)
            self._by_hash.pop(each.hash, None)
        self.enrolments[enrolment.id] = enrolment
        self._by_hash[enrolment.hash] = enrolment.id
        return enrolment, secret

    async def use(self, enrolment_id: str) -> tuple[Token, str]:
        """Its token and the token's secret, once; raises NotOpen or StoreError."""
        before = self.enrolments[enrolment_id]
        now = self._tokens.wall()
        if (state := before.state(now)) != "open":
            raise NotOpen(f"enrolment {enrolment_id} is {state}")
        # before anything is waited for: whoever comes next finds it used
        token_id = self._tokens.new_id()
        used = self._changed(before, used=now, token_id=token_id)
        event = Event(now, "enrolment.used", used.id, f"token {token_id} for {_whose(used)}")
        over = self._in_use[used.id] = asyncio.Event()
        try:
            return await self._tokens.create(
                used.role,
                by=f"enrolment {used.id}",
                name=used.name,
                project=used.project,
                node=used.node,
                vm=used.vm,
                label=used.label,
                expires=now + used.token_seconds if used.token_seconds else None,
                token_id=token_id,
                along=(_document(used), event),
            )
        except BaseException:
            if self.enrolments.get(enrolment_id) is used:
                self.enrolments[enrolment_id] = before
            raise
        finally:
            del self._in_use[enrolment_id]
            over.set()

    async def withdraw(self, enrolment_id: str, by: str) -> Enrolment:
        """It is not used any more, and its token is revoked; raises StoreError."""
        known = self.enrolments[enrolment_id]
        now = self._tokens.wall()
        if known.withdrawn is None:
            known = self._changed(known, withdrawn=now)
        if in_use := self._in_use.get(enrolment_id):
            await in_use.wait()  # whatever token comes of it ends with the others
        if known.token_id in self._tokens.tokens:
            await self._tokens.revoke(known.token_id, f"{by}, with enrolment {known.id}")
        event = Event(now, "enrolment.withdrawn", known.id, f"by {by}")
        await self._store.commit([_document(known), event])
        return known

    async def note(self, events: Iterable[Event]) -> None:
        """Lines of the audit trail for what was done here: done it is, even if they are lost."""
        lines = list(events)
        try:
            await self._store.commit(lines)
        except StoreError as error:
            log.error("the audit trail lacks %d line(s): %s", len(lines), error)

    def _changed(self, enrolment: Enrolment, **changes: object) -> Enrolment:
        changed = enrolment.model_copy(update={**changes, "generation": enrolment.generation + 1})
        self.enrolments[enrolment.id] = changed
        return changed

    def _over(self, now: float) -> list[Enrolment]:
        """Those that nobody needs: one whose token is good is needed to revoke it."""
        return [
            each
            for each in self.enrolments.values()
            if each.expires + KEPT_SECONDS <= now and not self._has_good_token(each, now)
        ]

    def _has_good_token(self, enrolment: Enrolment, now: float) -> bool:
        token = self._tokens.tokens.get(enrolment.token_id)
        return token is not None and token.state(now) == "valid"


def _whose(enrolment: Enrolment) -> str:
    of = enrolment.node or enrolment.project
    return f"{enrolment.name or '(no name)'} of {of}"


def _document(enrolment: Enrolment) -> Document:
    return Document(COLLECTION, enrolment.id, enrolment.model_dump_json())
