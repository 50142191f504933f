# SPDX-License-Identifier: Apache-2.0
"""REST handlers for people who sign in to the console by OpenID Connect: seen, and signed out.

Mounted by controller.api.app. People are made by signing in, and what they may is the settings'
([oidc]); there is nothing to change here but that their sessions end.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from sluice.controller.api.authorisation import Admin
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, Page, page
from sluice.controller.api.problems import SHOW_PROBLEMS, Problem
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Time, time_of
from sluice.controller.auth.browser_sessions import BrowserSessions
from sluice.controller.auth.people import PeopleBook, Person
from sluice.resources.problem_types import ProblemType

Find = Annotated[str, Query(max_length=100, description="a part of the name")]


class PersonView(BaseModel):
    """A person, as the provider named them at their last sign-in."""

    id: str
    name: str
    origin: str = Field(description="the provider's host")
    issuer: str
    subject: str = Field(description="the provider's id of the person, which never changes")
    groups: list[str] = Field(description="those that [oidc] groups says something of")
    assignments: list[str] = Field(
        description="in what they may act now: admin, operator, viewer, member:PROJECT; none: not "
        "at all"
    )
    created: Time = Field(description="when they signed in for the first time")
    signed_in: Time = Field(description="and for the last time")
    sessions: int = Field(description="of browsers, that are open")


class PersonList(Page):
    """People, whoever signed in last first."""

    people: list[PersonView]


class SignedOut(BaseModel):
    """What was ended."""

    sessions: int = Field(description="how many sessions of browsers")


def people_routes(people: PeopleBook, browsers: BrowserSessions) -> APIRouter:
    """The handlers, bound to one pool's people."""
    routes = APIRouter(prefix=REST)

    def view(person: Person, sessions: int) -> PersonView:
        return PersonView(
            id=person.id,
            name=person.name,
            origin=person.origin,
            issuer=person.issuer,
            subject=person.subject,
            groups=list(person.groups),
            assignments=[str(each) for each in people.assignments(person)],
            created=time_of(person.created),
            signed_in=time_of(person.signed_in),
            sessions=sessions,
        )

    def found(person_id: str) -> Person:
        if (person := people.people.get(person_id)) is None:
            raise Problem(
                404, ProblemType.NOT_FOUND, f"there is no {person_id}; list them at /v1/people"
            )
        return person

    @routes.get("/people", tags=["people"])
    async def list_people(
        _: Admin, name: Find = "", limit: Limit = DEFAULT_LIMIT, marker: Marker = None
    ) -> PersonList:
        """People who have signed in to the console by OpenID Connect."""
        wanted = (p for p in people.people.values() if name.lower() in p.name.lower())
        shown, following = page(wanted, lambda p: (-p.signed_in, p.id), limit, marker)
        counts = browsers.counts()
        return PersonList(
            people=[view(each, counts[each.id]) for each in shown], next_marker=following
        )

    @routes.get("/people/{person_id}", tags=["people"], responses=SHOW_PROBLEMS)
    async def show_person(person_id: str, _: Admin) -> PersonView:
        """One person."""
        person = found(person_id)
        return view(person, browsers.count(person.id))

    @routes.delete("/people/{person_id}/sessions", tags=["people"], responses=SHOW_PROBLEMS)
    async def sign_out_person(person_id: str, _: Admin) -> SignedOut:
        """Ends every session of a person; signing in again is the provider's to refuse."""
        return SignedOut(sessions=await browsers.end_all(found(person_id).id))

    return routes
