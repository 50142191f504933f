# SPDX-License-Identifier: Apache-2.0
"""controller.conf: people who sign in to the console by OpenID Connect, and what they may.

[oidc]; part of config.controller's ControllerConfig. A tier is what somebody may: of the whole pool
(admin, operator, viewer) or of projects (member). It is a role of REST's under its name for people:
a member is what a tenant's token is.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sluice.config.ini import Section
from sluice.config.sections import WebAddress, pairs, split_commas
from sluice.resources.vgpu_request import PROJECT


class Tier(StrEnum):
    """What people may, the highest first."""

    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"
    MEMBER = "member"


#: A tier, and of a member the projects.
Rights = tuple[Tier, tuple[str, ...]]
_FORM = "write admin, operator, viewer, or member with its projects: member vision speech"


def _rights(text: str) -> Rights:
    tier, *projects = text.split() or [""]
    if tier not in set(Tier):
        raise ValueError(f"{tier or 'nothing'} is no tier; {_FORM}")
    if (tier == Tier.MEMBER) != bool(projects):
        raise ValueError(f"a member has projects, and no other has; {_FORM}")
    for project in projects:
        if not re.fullmatch(PROJECT.pattern, project):
            raise ValueError(f"{project} is no project's name; {_FORM}")
    return Tier(tier), tuple(projects)


def _groups(value: object) -> object:
    if not isinstance(value, str):
        return value
    found = pairs(value, "names a group twice; give each one entry")
    return {name: _rights(text) for name, text in found.items()}


def _everybody(value: object) -> object:
    if not isinstance(value, str):
        return value
    if not value.strip():
        return None
    tier, projects = _rights(value)
    if tier in (Tier.ADMIN, Tier.OPERATOR):
        raise ValueError(f"{tier} for anybody with an account is too much; give that to a group")
    return tier, projects


def _issuer(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError("is not https://, without which anybody on the way is anybody")
    return value


Issuer = Annotated[WebAddress, AfterValidator(_issuer)]


class OidcSection(Section):
    """[oidc]: people who sign in to the console by OpenID Connect."""

    issuer: Issuer = Field(
        "",
        description="the provider's issuer, as its ID tokens name it, such as "
        "https://login.example.org/realms/gpu (empty: tokens only)",
    )
    client_id: str = Field("sluice", min_length=1, description="the console's id at the provider")
    client_secret_file: Path | None = Field(
        None, description="the file with the secret for that id (empty: a public client)"
    )
    ca_file: Path | None = Field(
        None, description="the CA of the provider's certificate (empty: the machine's)"
    )
    title: str = Field(
        "OpenID Connect",
        min_length=1,
        max_length=60,
        description="what the button to sign in says after `Sign in with`",
    )
    address: WebAddress = Field(
        "",
        description="the console's own address for browsers, such as https://gpus.example.org "
        "(empty: the one that the browser asked for)",
    )
    scopes: Annotated[list[str], BeforeValidator(split_commas)] = Field(
        default_factory=lambda: ["openid", "profile", "email"],
        description="what the provider is asked for, with commas; openid is always among them",
    )
    name_claim: str = Field(
        "preferred_username",
        min_length=1,
        description="the claim that names a person in the audit trail and in usage",
    )
    groups_claim: str = Field(
        "groups", min_length=1, description="the claim with a person's groups, a list of names"
    )
    groups: Annotated[dict[str, Rights], BeforeValidator(_groups)] = Field(
        default_factory=dict,
        description="group=admin, group=operator, group=viewer or group=member with its projects, "
        "with commas: gpu-ops=operator, nlp=member vision speech",
    )
    everybody: Annotated[Rights | None, BeforeValidator(_everybody)] = Field(
        None,
        description="the same for whom none of these groups is said: viewer, or member with its "
        "projects (empty: they are not let in)",
    )

    @model_validator(mode="after")
    def _whole(self) -> OidcSection:
        if self.issuer and not self.groups and self.everybody is None:
            raise ValueError("issuer without groups and everybody lets nobody in; give one of them")
        if any(not re.fullmatch(r"[\x21\x23-\x5b\x5d-\x7e]+", scope) for scope in self.scopes):
            raise ValueError("scopes are words of ASCII without quotes, with commas")
        return self
