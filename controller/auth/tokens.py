# SPDX-License-Identifier: Apache-2.0
"""Bearer tokens: made, found, revoked; the store has their hashes only.

Used by access.py, which asks whose a token is, and by the REST handlers for tokens. A token is 256
random bits, so its SHA-256 cannot be searched: what bcrypt and its like add is time against the
guessing of what people choose, and nobody chooses these. A slow hash would cost each request that
time, though, and let anybody burn the controller's CPU with wrong tokens.

It promises that a secret is handed out once, after its hash is stored, and that a revoked token is
refused from the moment of the call on, stored or not.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sluice.controller.pool.model import Change, Document, Event
from sluice.controller.store.store import Store
from sluice.resources.first_tokens import FirstToken, hash_of, new_secret

COLLECTION = "tokens"


class Role(StrEnum):
    """What a token is for. Admins can do what operators can, and these what viewers can."""

    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"
    NODE = "node"
    TENANT = "tenant"


class Token(BaseModel):
    """All that is kept of a token."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    hash: str
    role: Role
    name: str = ""
    project: str = ""
    node: str = ""
    created: float
    created_by: str = ""
    expires: float | None = None
    revoked: float | None = None
    generation: int = 1
    max_priority: int | None = None  # of its requests; None: as its project
    may_preempt: bool | None = None  # None: as its project
    label: str = ""  # whose reservations its processes draw on besides its project's
    vm: str = ""  # the UUID of the VM that it is of, whose reservations they draw on too
    person: str = ""  # for whom what it uses counts; empty: for its name

    def state(self, now: float) -> Literal["valid", "expired", "revoked"]:
        """Whether it lets a caller in now."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "valid"


class TokenBook:
    """Every token of the pool."""

    def __init__(
        self,
        store: Store,
        documents: Iterable[Document] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.wall = wall
        tokens = [
            Token.model_validate_json(document.value)
            for document in documents
            if document.collection == COLLECTION
        ]
        self.tokens = {token.id: token for token in sorted(tokens, key=lambda t: t.created)}
        self._by_hash = {token.hash: token.id for token in tokens}

    def find(self, secret: str) -> Token | None:
        """The token with this secret, valid or not."""
        token_id = self._by_hash.get(hash_of(secret))
        return self.tokens[token_id] if token_id else None

    def new_id(self) -> str:
        """An id that no token has."""
        while (found := secrets.token_hex(4)) in self.tokens:
            pass
        return found

    async def create(
        self,
        role: Role,
        *,
        by: str,
        name: str = "",
        project: str = "",
        node: str = "",
        expires: float | None = None,
        max_priority: int | None = None,
        may_preempt: bool | None = None,
        label: str = "",
        vm: str = "",
        person: str = "",
        token_id: str = "",
        along: Sequence[Change] = (),
    ) -> tuple[Token, str]:
        """A new token and its secret; raises StoreError, and then there is none.

        What is given as `along` is stored with it, or neither is.
        """
        secret = new_secret()
        token = Token(
            id=token_id or self.new_id(),
            hash=hash_of(secret),
            role=role,
            name=name,
            project=project,
            node=node,
            created=self.wall(),
            created_by=by,
            expires=expires,
            max_priority=max_priority,
            may_preempt=may_preempt,
            label=label,
            vm=vm,
            person=person,
        )
        await self._put(token, "token.made", f"{role} {name or '(no name)'}, by {by}", along)
        self.tokens[token.id] = token
        self._by_hash[token.hash] = token.id
        return token, secret

    async def adopt(self, first: Iterable[FirstToken]) -> None:
        """Makes tokens whose secrets somebody has already, all or none; raises StoreError."""
        moment, made = self.wall(), list[Token]()
        changes: list[Change] = []
        for each in first:
            token_id = self.new_id()
            while any(token.id == token_id for token in made):
                token_id = self.new_id()
            token = Token(id=token_id, created=moment, created_by="first run", **each.model_dump())
            made.append(token)
            changes.append(Document(COLLECTION, token.id, token.model_dump_json()))
            said = f"{token.role} {token.name or '(no name)'}, by first run"
            changes.append(Event(moment, "token.made", token.id, said))
        await self.store.commit(changes)
        for token in made:
            self.tokens[token.id] = token
            self._by_hash[token.hash] = token.id

    async def revoke(self, token_id: str, by: str) -> Token:
        """Ends a token; raises StoreError, after which it is revoked until a restart only."""
        token = self.tokens[token_id]
        token = token.model_copy(
            update={"revoked": token.revoked or self.wall(), "generation": token.generation + 1}
        )
        self.tokens[token_id] = token
        await self._put(token, "token.revoked", f"by {by}")
        return token

    async def _put(self, token: Token, kind: str, text: str, along: Sequence[Change] = ()) -> None:
        document = Document(COLLECTION, token.id, token.model_dump_json())
        await self.store.commit([document, Event(self.wall(), kind, token.id, text), *along])
