# SPDX-License-Identifier: Apache-2.0
"""People: who has signed in by OpenID Connect, where they come from, and what they may.

Used by access.py, which asks who a person is, and by browser_sessions, whose sessions name one. A
person is a subject of an issuer; the name is for people and may change. Groups are kept as the
provider said them at the last sign-in, and rights are made of them by the settings at each request:
so other settings count at once, and other groups from the next sign-in on.

Whoever has several tiers or projects works in one role assignment at a time: of the whole pool, or
of one project, and so sees and does no more than that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from sluice.config.oidc import OidcSection, Rights, Tier
from sluice.controller.auth.oidc import Identity
from sluice.controller.auth.tokens import Role
from sluice.controller.pool.model import Change, Document, DocumentRemoved, Event
from sluice.controller.store.store import Store

COLLECTION = "people"
PREFIX = "person-"
MOST_PEOPLE = 10_000
ROLES = {
    Tier.ADMIN: Role.ADMIN,
    Tier.OPERATOR: Role.OPERATOR,
    Tier.VIEWER: Role.VIEWER,
    Tier.MEMBER: Role.TENANT,
}


class Person(BaseModel):
    """All that is kept of a person."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    issuer: str
    subject: str
    name: str
    groups: tuple[str, ...] = ()  # those that the settings said something of
    created: float
    signed_in: float  # the last time

    @property
    def origin(self) -> str:
        """Where they come from, for people: the provider's host."""
        return urlsplit(self.issuer).netloc


@dataclass(frozen=True, slots=True)
class RoleAssignment:
    """In what somebody acts: a tier, and of a member the project."""

    tier: Tier
    project: str = ""

    def __str__(self) -> str:
        return f"member:{self.project}" if self.tier is Tier.MEMBER else self.tier.value

    @property
    def text(self) -> str:
        """For people."""
        return f"member of {self.project}" if self.tier is Tier.MEMBER else self.tier.value


class PeopleBook:
    """Every person of the pool."""

    def __init__(
        self, store: Store, section: OidcSection, documents: Iterable[Document] = ()
    ) -> None:
        self._store = store
        self._section = section
        found = [
            Person.model_validate_json(document.value)
            for document in documents
            if document.collection == COLLECTION
        ]
        self.people = {each.id: each for each in sorted(found, key=lambda p: p.signed_in)}

    def assignments(self, person: Person) -> tuple[RoleAssignment, ...]:
        """In what a person may act now, the highest first; none: not at all."""
        if not self._section.issuer or person.issuer != self._section.issuer:
            return ()
        own = [self._section.groups[name] for name in person.groups if name in self._section.groups]
        if not own and self._section.everybody is not None:
            own = [self._section.everybody]
        return _assignments(own)

    def rights(self, person: Person) -> str:
        """The same as a text, which differs when they do."""
        return " ".join(str(each) for each in self.assignments(person))

    def by_subject(self, subject: str) -> Person | None:
        """A subject of the provider that is asked now."""
        return self.people.get(id_of(self._section.issuer, subject))

    async def signed_in(self, identity: Identity, now: float) -> Person:
        """Notes who signed in; raises StoreError, and then knows what was known before."""
        known = self.people.get(id_of(identity.issuer, identity.subject))
        person = Person(
            id=id_of(identity.issuer, identity.subject),
            issuer=identity.issuer,
            subject=identity.subject,
            name=identity.name,
            groups=identity.groups,
            created=known.created if known else now,
            signed_in=now,
        )
        changes: list[Change] = [Document(COLLECTION, person.id, person.model_dump_json())]
        if known is None:
            text = f"{person.name} of {person.origin} signed in for the first time"
            changes.append(Event(now, "audit.person", person.id, text))
        elif self.rights(known) != self.rights(person):
            before, after = self.rights(known) or "nothing", self.rights(person) or "nothing"
            text = f"{person.name} of {person.origin} may now {after}, before {before}"
            changes.append(Event(now, "audit.person", person.id, text))
        gone = [each for each in self.people if each != person.id][: self._too_many(known)]
        changes += [DocumentRemoved(COLLECTION, each) for each in gone]
        await self._store.commit(changes)
        for each in gone:
            del self.people[each]
        self.people.pop(person.id, None)  # to the end: whoever has not come for longest goes first
        self.people[person.id] = person
        return person

    def _too_many(self, known: Person | None) -> int:
        return max(0, len(self.people) + (known is None) - MOST_PEOPLE)


def id_of(issuer: str, subject: str) -> str:
    """A person's id: the same whenever they come, and of one line whatever they are called."""
    text = f"{len(issuer)} {issuer} {subject}"
    return PREFIX + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _assignments(rights: Iterable[Rights]) -> tuple[RoleAssignment, ...]:
    every = list(rights)
    tiers = {tier for tier, _ in every}
    of_pool = [RoleAssignment(tier) for tier in Tier if tier in tiers and tier is not Tier.MEMBER][
        :1
    ]
    projects = sorted({project for _, of_member in every for project in of_member})
    return (*of_pool, *(RoleAssignment(Tier.MEMBER, project) for project in projects))
