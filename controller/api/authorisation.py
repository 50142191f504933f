# SPDX-License-Identifier: Apache-2.0
"""Which route needs which role: declared at the route, checked here, shown in the OpenAPI document.

Used by every module of handlers. the access middleware has found out who calls before a handler is
chosen; `needs` then compares. A route that declares nothing is refused when the application is
assembled, so a forgotten declaration cannot let anyone in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Request, Security
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from sluice.controller.api.problems import Problem
from sluice.controller.auth.access import CLIENT, Caller
from sluice.controller.auth.tokens import Role
from sluice.resources.problem_types import ProblemType

BEARER = HTTPBearer(
    auto_error=False,
    scheme_name="bearer",
    description="A token of `sluice token create`. The scopes name the roles that may call: an "
    "admin may what operators may, an operator what viewers may.",
)


async def caller_of(
    request: Request,
    wanted: SecurityScopes,
    _: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
) -> Caller:
    """The caller, if it has one of the roles that the route declares; else 403."""
    caller: Caller = request.state.caller
    if not caller.roles.intersection(wanted.scopes):
        have = ", ".join(sorted(caller.roles)) or "no role"
        hint = (
            "; show a token of that role, or set [auth] local = operator in controller.conf"
            if caller.id in ("local", "anyone")
            else "; use another token"
        )
        raise Problem(
            403,
            ProblemType.NOT_ALLOWED,
            f"{request.method} {request.url.path} is for {' or '.join(wanted.scopes)}, and "
            f"{caller.id} is {have}{hint}",
        )
    return caller


def needs(*roles: Role | str) -> Any:
    """The declaration of a route: callers of any of these roles."""
    return Security(caller_of, scopes=[str(role) for role in roles])


Admin = Annotated[Caller, needs(Role.ADMIN)]
Operator = Annotated[Caller, needs(Role.OPERATOR)]
Viewer = Annotated[Caller, needs(Role.VIEWER)]
ViewerOrTenant = Annotated[Caller, needs(Role.VIEWER, Role.TENANT)]
OperatorOrTenant = Annotated[Caller, needs(Role.OPERATOR, Role.TENANT)]
Client = Annotated[Caller, needs(Role.OPERATOR, Role.TENANT, CLIENT)]


def undeclared(routers: Iterable[APIRouter]) -> list[str]:
    """The routes of these routers that declare no role, or of which that cannot be seen."""
    return [
        f"{'/'.join(sorted(route.methods or ()))} {route.path}"
        if isinstance(route, APIRoute)
        else repr(route)
        for router in routers
        for route in router.routes
        if not (isinstance(route, APIRoute) and _declares(route.dependant))
    ]


def _declares(dependant: Dependant) -> bool:
    return any(each.call is caller_of or _declares(each) for each in dependant.dependencies)
