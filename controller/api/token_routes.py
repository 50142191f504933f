# SPDX-License-Identifier: Apache-2.0
"""REST handlers for tokens: made, listed, revoked by admins; and who a caller is, for everybody.

Mounted by controller.api.app. The secret of a token is in the answer that made it and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field, model_validator

from sluice.controller.api.authorisation import Admin, needs
from sluice.controller.api.generations import IfMatch, check_generation, set_etag
from sluice.controller.api.pages import DEFAULT_LIMIT, Limit, Marker, Page, page
from sluice.controller.api.problems import SHOW_PROBLEMS, Problem, not_found, problem_responses
from sluice.controller.api.routing import REST
from sluice.controller.api.schemas import Line, Name, Time, time_of
from sluice.controller.auth.access import CLIENT, Caller
from sluice.controller.auth.tokens import Role, Token, TokenBook
from sluice.resources.problem_types import ProblemType
from sluice.resources.vgpu_request import I32

TEN_YEARS_SECONDS = 10 * 366 * 86400

RoleName = Literal["admin", "operator", "viewer", "node", "tenant"]


class TokenRequest(BaseModel):
    """The token that is wanted."""

    role: RoleName
    name: Line = Field("", description="for people: whose it is, or what for")
    project: Name | None = Field(None, description="of a tenant, who must have one")
    node: Name | None = Field(None, description="of a node, which speaks for no other")
    expires_seconds: int | None = Field(
        None, ge=1, le=TEN_YEARS_SECONDS, description="from now on; null: when it is revoked"
    )

    max_priority: int | None = Field(
        None,
        ge=I32.low,
        le=I32.high,
        description="the highest priority of a tenant's requests; null: its project's limit, or 0",
    )
    may_preempt: bool | None = Field(
        None, description="whether a tenant may end lower-priority work; null: as its project"
    )
    label: Name | None = Field(
        None, description="a tenant's: draws on reservations for this label too"
    )
    vm: Name | None = Field(
        None, description="a tenant's: the UUID of the VM that it is of, and draws on those for"
    )
    person: Line = Field(
        "", max_length=100, description="whose usage it is that is begun with it; empty: its name's"
    )

    @model_validator(mode="after")
    def _whose(self) -> TokenRequest:
        if (self.role == "tenant") != (self.project is not None):
            raise ValueError("a tenant's token has a project, and no other has: give `project`")
        if (self.role == "node") != (self.node is not None):
            raise ValueError("a node's token has the node's name, and no other has: give `node`")
        rights = (self.max_priority, self.may_preempt, self.label, self.vm)
        if self.role != "tenant" and any(right is not None for right in rights):
            raise ValueError(
                "only a tenant's token has max_priority, may_preempt, label or vm: leave them out"
            )
        return self


class TokenView(BaseModel):
    """A token, without its secret, which nobody knows but its owner."""

    id: str
    role: RoleName
    name: str
    project: str
    node: str
    state: Literal["valid", "expired", "revoked"]
    created: Time
    created_by: str
    expires: Time | None
    revoked: Time | None
    generation: int
    max_priority: int | None
    may_preempt: bool | None
    label: str
    vm: str
    person: str


class TokenMade(TokenView):
    """A new token."""

    secret: str = Field(description="shown this once")


class TokenList(Page):
    """Tokens, oldest first."""

    tokens: list[TokenView]


class CallerView(BaseModel):
    """Who the caller is to this controller."""

    id: str = Field(description="the token's id; local or anyone without one")
    name: str
    roles: list[str]
    project: str | None
    node: str
    address: str


def token_routes(tokens: TokenBook) -> APIRouter:
    """The handlers, bound to one pool's tokens."""
    routes = APIRouter(prefix=REST)
    _add_whoami(routes)
    _add_reading(routes, tokens)
    _add_making(routes, tokens)
    _add_revoking(routes, tokens)
    return routes


def _add_whoami(routes: APIRouter) -> None:
    """Who calls."""

    @routes.get("/whoami", tags=["tokens"])
    async def whoami(
        caller: Annotated[Caller, needs(Role.VIEWER, Role.TENANT, Role.NODE, CLIENT)],
    ) -> CallerView:
        """Who the caller is, and what it may do."""
        return CallerView(
            id=caller.id,
            name=caller.name,
            roles=sorted(caller.roles),
            project=caller.project,
            node=caller.node,
            address=caller.address,
        )


def _add_reading(routes: APIRouter, tokens: TokenBook) -> None:
    """Tokens, listed and shown."""

    @routes.get("/tokens", tags=["tokens"])
    async def list_tokens(
        _: Admin,
        state: Literal["valid", "expired", "revoked", "all"] = "valid",
        role: RoleName | None = None,
        project: str | None = None,
        limit: Limit = DEFAULT_LIMIT,
        marker: Marker = None,
    ) -> TokenList:
        """Tokens; valid ones unless told otherwise."""
        now = tokens.wall()
        wanted = (
            token
            for token in tokens.tokens.values()
            if state in ("all", token.state(now))
            and role in (None, token.role.value)
            and project in (None, token.project)
        )
        shown, marker = page(wanted, lambda t: (t.created, t.id), limit, marker)
        return TokenList(tokens=[_view(t, now) for t in shown], next_marker=marker)

    @routes.get("/tokens/{token_id}", tags=["tokens"], responses=SHOW_PROBLEMS)
    async def show_token(token_id: str, _: Admin, response: Response) -> TokenView:
        """One token."""
        token = _token_of(tokens, token_id)
        set_etag(response, token.generation)
        return _view(token, tokens.wall())


def _add_making(routes: APIRouter, tokens: TokenBook) -> None:
    """New tokens."""

    @routes.post("/tokens", tags=["tokens"], status_code=201)
    async def create_token(body: TokenRequest, caller: Admin, response: Response) -> TokenMade:
        """Makes a token; its secret is in this answer and nowhere else."""
        now = tokens.wall()
        token, secret = await tokens.create(
            Role(body.role),
            by=caller.id,
            name=body.name,
            project=body.project or "",
            node=body.node or "",
            expires=now + body.expires_seconds if body.expires_seconds else None,
            max_priority=body.max_priority,
            may_preempt=body.may_preempt,
            label=body.label or "",
            vm=body.vm or "",
            person=body.person,
        )
        set_etag(response, token.generation)
        response.headers["Cache-Control"] = "no-store"
        return TokenMade(**_view(token, now).model_dump(), secret=secret)


def _add_revoking(routes: APIRouter, tokens: TokenBook) -> None:
    """The end of tokens."""

    @routes.delete(
        "/tokens/{token_id}",
        tags=["tokens"],
        responses=problem_responses(404, (409, "it is the last admin's"), 412),
    )
    async def revoke_token(
        token_id: str,
        caller: Admin,
        response: Response,
        if_match: IfMatch = None,
        even_last: Annotated[
            bool, Query(description="even if no valid admin token is left")
        ] = False,
    ) -> TokenView:
        """Revokes a token: it is refused from now on, and its event streams end."""
        token = _token_of(tokens, token_id)
        check_generation(if_match, "token", token_id, token.generation)
        now = tokens.wall()
        if token.state(now) != "revoked":
            if not even_last:
                _refuse_last_admin(tokens, token, now)
            token = await tokens.revoke(token_id, caller.id)
        set_etag(response, token.generation)
        return _view(token, now)


def _token_of(tokens: TokenBook, token_id: str) -> Token:
    if (found := tokens.tokens.get(token_id)) is None:
        raise not_found("token", token_id)
    return found


def _refuse_last_admin(tokens: TokenBook, token: Token, now: float) -> None:
    """Raises Problem where no other valid token is an admin's."""
    others = (t for t in tokens.tokens.values() if t.id != token.id)
    admins = any(t.role is Role.ADMIN and t.state(now) == "valid" for t in others)
    if token.role is Role.ADMIN and not admins:
        raise Problem(
            409,
            ProblemType.LAST_ADMIN_TOKEN,
            f"without token {token.id} nobody could make tokens; make another admin "
            "token first, or say even_last=true",
        )


def _view(token: Token, now: float) -> TokenView:
    return TokenView(
        id=token.id,
        role=token.role.value,
        name=token.name,
        project=token.project,
        node=token.node,
        state=token.state(now),
        created=time_of(token.created),
        created_by=token.created_by,
        expires=None if token.expires is None else time_of(token.expires),
        revoked=None if token.revoked is None else time_of(token.revoked),
        generation=token.generation,
        max_priority=token.max_priority,
        may_preempt=token.may_preempt,
        label=token.label,
        vm=token.vm,
        person=token.person,
    )
