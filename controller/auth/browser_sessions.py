# SPDX-License-Identifier: Apache-2.0
"""Who a browser is: sessions that a token or a person opened, each known by a secret in a cookie.

Used by the access middleware, which asks whose a request of the console is, and by console.sign_in
and person_sign_in, which open and end them. A session is no right of its own: it names a token or a
person, and is worth what they may at the moment of each request, so that revoking the token ends
it, and so does whatever changes what the person may. The store has the secrets' hashes only, and
keeps sessions over a restart or another leader.

It promises that what is ended is refused from the moment of the call on, that a token or person has
at most MOST_OF_TOKEN sessions (the oldest makes room), and all together MOST.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict
from starlette.requests import cookie_parser

from sluice.controller.auth.access import Access, Caller, Denied
from sluice.controller.auth.tokens import Role
from sluice.controller.pool.model import Change, Document, DocumentRemoved
from sluice.resources.first_tokens import hash_of

COLLECTION = "console_sessions"
#: Where browsers' sessions count, and nothing else does; "/" leads there.
PREFIX = "/console"
COOKIE = "sluice_console"
#: Of a cookie that came by TLS: the browser sends it to this host by TLS only.
TLS_COOKIE = "__Host-sluice_console"
MOST_OF_TOKEN = 20
MOST = 5000


class BrowserSession(BaseModel):
    """What is kept of a session."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hash: str
    token: str = ""  # empty: it is a person's
    created: float
    expires: float
    person: str = ""
    rights: str = ""  # what the person might when it was opened
    assignment: str = ""  # in which the person acts
    sid: str = ""  # the provider's session that it came of

    @property
    def owner(self) -> str:
        """The token or person."""
        return self.token or self.person


class BrowserSessions:
    """Every session of every browser."""

    def __init__(
        self, access: Access, documents: Iterable[Document] = (), *, seconds: float = 43_200.0
    ) -> None:
        """`seconds` is how long a session lasts at most."""
        self.access = access
        self._store = access.tokens.store
        self._wall = access.tokens.wall
        self.seconds = seconds
        found = [
            BrowserSession.model_validate_json(document.value)
            for document in documents
            if document.collection == COLLECTION
        ]
        self._sessions = {each.hash: each for each in sorted(found, key=lambda s: s.created)}

    def __len__(self) -> int:
        return len(self._sessions)

    @staticmethod
    def is_for(path: str) -> bool:
        """Whether a request for this path is a browser's."""
        return path in ("/", PREFIX) or path.startswith(PREFIX + "/")

    @staticmethod
    def secret_in(headers: Mapping[str, str], *, tls: bool) -> str:
        """The secret that a request's cookie has; empty: it has none."""
        # as browsers write them: what others set for this host may be anything
        cookies = cookie_parser(headers.get("cookie", ""))
        return cookies.get(TLS_COOKIE if tls else COOKIE, "")

    def caller(self, secret: str, address: str) -> Caller | None:
        """Whose the session is that has this secret; None: there is none, or no longer."""
        session = self._sessions.get(hash_of(secret)) if secret else None
        if session is None or session.expires <= self._wall():
            return None
        return self._owner(session, address)

    def _owner(self, session: BrowserSession, address: str) -> Caller | None:
        if session.token:
            return self.access.of_token(session.token, address)
        return self.access.of_person(session.person, session.rights, session.assignment, address)

    def may_sign_in(self, token: str, address: str) -> Caller:
        """The owner of a token that may open a session; raises Denied."""
        caller = self.access.by_token(token, address)
        if not caller.roles & {Role.VIEWER, Role.TENANT}:
            raise Denied("this token is not for people: the console wants one of an admin, "
                         "operator, viewer or tenant")  # fmt: skip
        return caller

    async def open(self, caller: Caller) -> str:
        """A new session of a token's owner: returns its secret; raises StoreError, and has none."""
        return await self._open(token=caller.id)

    async def open_person(
        self,
        person_id: str,
        rights: str,
        assignment: str,
        sid: str = "",
        until: float | None = None,
    ) -> str:
        """The same of a person in one role, until then at most (seconds since the epoch)."""
        whose = {"person": person_id, "rights": rights, "assignment": assignment, "sid": sid}
        return await self._open(until, **whose)

    async def _open(self, until: float | None = None, **whose: str) -> str:
        secret, now = secrets.token_urlsafe(32), self._wall()
        expires = now + self.seconds if until is None else min(until, now + self.seconds)
        session = BrowserSession(hash=hash_of(secret), created=now, expires=expires, **whose)
        gone = self._to_make_room(session.owner, now)
        stored: list[Change] = [DocumentRemoved(COLLECTION, each) for each in gone]
        stored.append(Document(COLLECTION, session.hash, session.model_dump_json()))
        for each in gone:
            self._sessions.pop(each, None)
        await self._store.commit(stored)
        self._sessions[session.hash] = session
        return secret

    def of_secret(self, secret: str) -> BrowserSession | None:
        """The session that has this secret, whatever it is worth."""
        return self._sessions.get(hash_of(secret)) if secret else None

    def count(self, owner: str) -> int:
        """How many sessions of a token or person are open."""
        return self.counts()[owner]

    def counts(self) -> Counter[str]:
        """The same of each that has any."""
        now = self._wall()
        return Counter(
            each.owner
            for each in self._sessions.values()
            if each.expires > now and self._owner(each, "") is not None
        )

    async def end_changed(self, person_id: str, rights: str) -> int:
        """Ends those of a person that were opened with other rights; raises StoreError."""
        found = [
            each.hash
            for each in self._sessions.values()
            if each.person == person_id and each.rights != rights
        ]
        await self._end(found)
        return len(found)

    async def end_at_provider(self, person_id: str, sid: str) -> int:
        """Ends those of a person, or that came of a session at the provider; raises StoreError."""
        found = [
            each.hash
            for each in self._sessions.values()
            if each.person
            and (each.person == person_id if person_id else True)
            # one of which the provider named no session is meant as well
            and (each.sid in ((sid, "") if person_id else (sid,)) if sid else True)
            and (person_id or sid)
        ]
        await self._end(found)
        return len(found)

    async def end(self, secret: str) -> None:
        """Ends one; raises StoreError, after which a restart would bring it back."""
        await self._end([hash_of(secret)])

    async def end_all(self, owner: str) -> int:
        """Ends all of a token or person, and says how many; raises StoreError, as above."""
        found = self._of(owner)
        await self._end(found)
        return len(found)

    async def _end(self, hashes: list[str]) -> None:
        known = [each for each in hashes if self._sessions.pop(each, None)]
        if known:
            await self._store.commit([DocumentRemoved(COLLECTION, each) for each in known])

    def _of(self, owner: str) -> list[str]:
        return [each.hash for each in self._sessions.values() if each.owner == owner]

    def _to_make_room(self, owner: str, now: float) -> list[str]:
        """What is over, and the oldest where there would be too many."""
        gone = [each.hash for each in self._sessions.values() if each.expires <= now]
        over = set(gone)
        own = [each for each in self._of(owner) if each not in over]
        gone += own[: max(0, len(own) - MOST_OF_TOKEN + 1)]
        over = set(gone)
        left = [each for each in self._sessions if each not in over]
        return gone + left[: max(0, len(left) - MOST + 1)]


def csrf_of(secret: str) -> str:
    """What forms of a session carry, so that no other site can send one."""
    return hash_of(f"sluice console form {secret}")


def is_csrf_of(secret: str, given: str) -> bool:
    """Whether a form came from a page of this session; takes as long wherever they differ."""
    return bool(secret) and hmac.compare_digest(csrf_of(secret).encode(), given.encode())
