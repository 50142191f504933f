# SPDX-License-Identifier: Apache-2.0
"""Whose a call is, and what its caller may do: the one place where that is decided.

Used by both APIs: controller.api for REST, node_guard for gRPC. Whoever shows a token is who the
token says, and nobody else even where none is needed. Without a token, `[auth] required` says
whether there is an answer at all, and `[auth] local` what the caller may do.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from sluice.config.controller import AuthSection
from sluice.config.places import owner_of_address
from sluice.controller.auth.audit import AuditTrail
from sluice.controller.auth.enrolments import PREFIX, EnrolmentBook
from sluice.controller.auth.people import ROLES, PeopleBook, RoleAssignment
from sluice.controller.auth.tokens import Role, Token, TokenBook

CLIENT = "client"  # may open sessions; no token's role, but what `[auth] local = user` gives
ENROLMENT = "enrolment"  # shows a one-time secret, and may exchange it for a token

_RIGHTS = {
    Role.ADMIN: ("admin", "operator", "viewer"),
    Role.OPERATOR: ("operator", "viewer"),
    Role.VIEWER: ("viewer",),
    Role.NODE: ("node",),
    Role.TENANT: ("tenant",),
}
_LOCAL_RIGHTS = {
    "operator": ("operator", "viewer", CLIENT, "node"),
    "user": ("viewer", CLIENT, "node"),
    "nothing": (),
}


class Denied(Exception):
    """There is no such caller, or not without a token; the message says what to do."""

    def __init__(self, detail: str, subject: str = "") -> None:
        super().__init__(detail)
        self.subject = subject  # the id of a token or enrolment that was known once


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: a token's owner, or a person who signed in to the console by OpenID Connect.

    A tenant, or member, has a project; a node speaks for one node, or for any if it is empty.
    """

    id: str
    roles: frozenset[str]
    address: str = ""
    name: str = ""
    project: str | None = None
    node: str = ""
    max_priority: int | None = None  # None: as its project
    may_preempt: bool | None = None
    label: str = ""
    vm: str = ""
    enrolment: str = ""  # the one that it shows, if it shows no token
    origin: str = ""  # where a person comes from: the provider's host; empty: it is no person
    assignment: str = ""  # in what a person acts now, of several
    assignments: tuple[RoleAssignment, ...] = ()  # and could act
    person: str = ""  # for whom what it uses counts: a person's name, of a token what it says

    def __str__(self) -> str:
        whose = " of ".join(each for each in (self.name, self.origin) if each)
        name = f" ({whose})" if whose else ""
        acting = f" as {self.assignment}" if self.assignment else ""
        return f"{self.id}{name}{acting} from {self.address or 'nowhere'}"

    @property
    def owner(self) -> str:
        """By whom what it takes is bounded: its project, itself, or its address without a token."""
        if self.project is not None:
            return f"project {self.project}"
        if self.id in ("local", "anyone"):
            return f"address {owner_of_address(self.address)}"
        return self.id if self.origin else f"token {self.id}"

    @property
    def is_operator(self) -> bool:
        """Whether places that are kept are for it."""
        return Role.OPERATOR in self.roles

    def sees(self, project: str) -> bool:
        """Whether things of this project are shown to it."""
        return self.project is None or self.project == project


class Access:
    """The policy of one controller."""

    def __init__(
        self,
        section: AuthSection,
        tokens: TokenBook,
        enrolments: EnrolmentBook,
        *,
        loopback_only: bool,
        people: PeopleBook | None = None,
    ) -> None:
        self.tokens = tokens
        self.people = people
        self.audit = AuditTrail(tokens.store, tokens.wall)
        self.enrolments = enrolments
        self._open_to_all = section.required == "no"
        self._open_to_local = section.required == "no" or (
            section.required == "auto" and loopback_only
        )
        self._rights = frozenset(_LOCAL_RIGHTS[section.local])

    def by_token(self, secret: str, address: str) -> Caller:
        """The owner of a token, or of an enrolment; raises Denied."""
        if secret.startswith(PREFIX):
            return self._by_enrolment(secret, address)
        token = self.tokens.find(secret)
        if token is None:
            raise Denied("the token is not one of this pool's; ask its operator for one")
        state = token.state(self.tokens.wall())
        if state != "valid":
            raise Denied(
                f"token {token.id} is {state}; ask the pool's operator for another", token.id
            )
        return self._caller(token, address)

    def of_token(self, token_id: str, address: str) -> Caller | None:
        """The owner of a token that is known by its id; None where it is not valid."""
        token = self.tokens.tokens.get(token_id)
        if token is None or token.state(self.tokens.wall()) != "valid":
            return None
        return self._caller(token, address)

    def of_person(
        self, person_id: str, rights: str, assignment: str, address: str
    ) -> Caller | None:
        """A person in one of its roles; None where it may not any more what `rights` says."""
        person = self.people.people.get(person_id) if self.people else None
        if self.people is None or person is None or self.people.rights(person) != rights:
            return None
        assignments = self.people.assignments(person)
        chosen = next((each for each in assignments if str(each) == assignment), None)
        if chosen is None:
            return None
        return Caller(
            id=person.id,
            roles=frozenset(_RIGHTS[ROLES[chosen.tier]]),
            address=address,
            name=person.name,
            project=chosen.project or None,
            origin=person.origin,
            assignment=chosen.text,
            assignments=assignments,
            person=person.name,
        )

    def _caller(self, token: Token, address: str) -> Caller:
        return Caller(
            id=token.id,
            roles=frozenset(_RIGHTS[token.role]),
            address=address,
            name=token.name,
            project=token.project if token.role is Role.TENANT else None,
            node=token.node,
            max_priority=token.max_priority,
            may_preempt=token.may_preempt,
            label=token.label,
            vm=token.vm,
            # a VM's is named by what made it, which is nobody
            person=token.person or ("" if token.vm else token.name[:100]),
        )

    def _by_enrolment(self, secret: str, address: str) -> Caller:
        enrolment = self.enrolments.find(secret)
        if enrolment is None:
            raise Denied("the enrolment is not one of this pool's; ask its operator for one")
        if (state := enrolment.state(self.tokens.wall())) != "open":
            raise Denied(
                f"enrolment {enrolment.id} is {state}; it is good once and for a short while: ask "
                "the pool's operator for another",
                enrolment.id,
            )
        return Caller(
            id=f"enrolment-{enrolment.id}",
            roles=frozenset((ENROLMENT,)),
            address=address,
            name=enrolment.name,
            project=enrolment.project or None,
            enrolment=enrolment.id,
        )

    def without_token(self, address: str, headers: Mapping[str, str] | None = None) -> Caller:
        """A caller that shows none; raises Denied."""
        local = _is_loopback(address) and not _came_by_proxy_or_browser(headers or {})
        if self._rights and (self._open_to_all or (self._open_to_local and local)):
            return Caller("local" if local else "anyone", self._rights, address)
        raise Denied(
            "this controller wants a token: set SLUICE_TOKEN or write it to ~/.sluice/token "
            "(`sluice token create` makes one)"
        )


def is_loopback(address: str) -> bool:
    """Whether only this host's processes reach the address."""
    return _is_loopback(address)


@lru_cache(maxsize=4096)  # every call of every server asks it
def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _came_by_proxy_or_browser(headers: Mapping[str, str]) -> bool:
    # a proxy on this host makes the world look local, and so does a web page whose name was made
    # to resolve to 127.0.0.1: both are told by what they send along
    if any(name in headers for name in ("forwarded", "x-forwarded-for", "x-real-ip", "origin")):
        return True
    host = headers.get("host", "localhost")
    host = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return host != "localhost" and not _is_loopback(host.strip("[]"))
