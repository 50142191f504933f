# SPDX-License-Identifier: Apache-2.0
"""Making and revoking tokens; for admins. Put beside console.actions by console.acting.

What is made is shown once: the page that answers the form has the secret, and nothing keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.console.inner_rest import RestCall
from sluice.console.parts import Hidden
from sluice.console.plans import Action, Field, Plan, number, several
from sluice.console.rendering import link
from sluice.console.rights import Rights
from sluice.controller.auth.browser_sessions import BrowserSessions
from sluice.controller.auth.tokens import Role, Token
from sluice.controller.pool.pool import Pool

DAY_SECONDS = 86_400
MOST_DAYS = 3660
ROLES = (
    ("viewer", "viewer: looks at everything, changes nothing"),
    ("operator", "operator: runs the pool"),
    ("admin", "admin: also tokens, people and the audit trail"),
    ("tenant", "tenant: a project's programs and members"),
    ("node", "node: a GPU host's server"),
)
PREEMPTS = (("", "as its project"), ("yes", "yes"), ("no", "no"))


def _admins(rights: Rights, _: Pool, __: str) -> bool:
    return rights.audits


def _make(_: Pool, project: str) -> Plan:
    """`project`: for whose tenants the form is filled in; empty: for none."""
    return Plan(
        title="Make a token",
        button="Make the token",
        will=[
            "The token is shown once, on the next page; the pool keeps no more than its hash.",
            "Whoever has it may do what its role may, until it expires or is revoked.",
        ],
        fields=[
            Field("role", "Role", "select", "tenant" if project else "viewer", options=ROLES),
            Field("name", "Whose it is, or what for"),
            Field("project", "Project (a tenant's)", value=project),
            Field("node", "Node (a node's)"),
            Field(
                "days", "Good for how many days (empty: until it is revoked)", "number",
                least=1, most=MOST_DAYS,
            ),
            Field("max_priority", "A tenant's highest priority (empty: as its project)", "number"),
            Field("may_preempt", "A tenant's requests may end work of lower priority", "select",
                  options=PREEMPTS),
            Field("label", "A tenant's label, whose reservations it draws on (empty: none)"),
            Field("vm", "A tenant's VM by UUID, whose reservations it draws on (empty: none)"),
            Field("person", "For whom its usage counts (empty: for its name)"),
        ],
        back=link("tokens"),
        creates=True,
    )  # fmt: skip


def _request(_: str, fields: Mapping[str, str]) -> RestCall:
    days = number(fields, "days")
    body: dict[str, object] = {
        "role": fields.get("role", ""),
        "name": fields.get("name", "").strip(),
        "person": fields.get("person", "").strip(),
        "expires_seconds": None if days is None else days * DAY_SECONDS,
        "max_priority": number(fields, "max_priority"),
        "may_preempt": {"yes": True, "no": False}.get(fields.get("may_preempt", "")),
    }
    for name in ("project", "node", "label", "vm"):
        if text := fields.get(name, "").strip():
            body[name] = text
    return RestCall("POST", ("tokens",), body=body)


def token_actions(browsers: BrowserSessions) -> dict[str, Action]:
    """The actions, bound to one pool's tokens."""
    tokens = browsers.access.tokens

    def revoke(_: Pool, token_id: str) -> Plan:
        if (token := tokens.tokens.get(token_id)) is None:
            raise Hidden
        state = token.state(tokens.wall())
        return Plan(
            title=f"Revoke token {token.id}",
            button="Revoke the token",
            will=[
                f"It is {_whose(token)}, made by {token.created_by or 'nobody known'}.",
                "Whoever shows it is refused from that moment on, by every controller.",
                (
                    f"Ended at once: {several(browsers.count(token.id), 'session')} of browsers "
                    "that signed in with it. What runs on GPUs goes on."
                ),
                *(
                    ["Its node's server is refused when it connects again, until it has another."]
                    if token.role is Role.NODE
                    else []
                ),
                "This cannot be undone.",
            ],
            back=link("tokens"),
            generation=token.generation,
            danger=True,
            obsolete="" if state == "valid" else f"It is {state} already.",
        )

    return {
        "token.make": Action("The token is made.", _admins, _make, _request, reveals=True),
        "token.revoke": Action(
            "The token is revoked.", _admins, revoke,
            lambda token, _: RestCall("DELETE", ("tokens", token)),
        ),
    }  # fmt: skip


def _whose(token: Token) -> str:
    of = f" of {token.project or token.node}" if token.project or token.node else ""
    article = "an" if token.role.value[0] in "ao" else "a"
    return f"{article} {token.role.value}'s{of}{f' ({token.name})' if token.name else ''}"
