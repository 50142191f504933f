# SPDX-License-Identifier: Apache-2.0
"""server.conf: on whose account a host's users and guests work.

[projects]; part of config.server's ServerConfig.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

from sluice.config.ini import Section
from sluice.config.sections import pairs
from sluice.resources.vgpu_request import PROJECT


def _words(value: object) -> object:
    """ "a = x y, b = z" as a mapping to words."""
    if not isinstance(value, str):
        return value
    found = pairs(value, "names somebody twice; give each one entry")
    return {name: text.split() for name, text in found.items()}


def _label_owners(value: object) -> object:
    found = _words(value)
    if isinstance(found, dict):
        for name, labels in found.items():
            if not re.fullmatch(r"(user|group|vm):.+", name):
                raise ValueError(f"{name}: write user:NAME, group:NAME or vm:NAME")
            if isinstance(labels, list) and len(labels) != 1:
                raise ValueError(f"{name}: give one label")
    return found


ProjectName = Annotated[str, Field(pattern=f"^{PROJECT.pattern}$")]
Projects = Annotated[
    dict[str, Annotated[list[ProjectName], Field(min_length=1)]], BeforeValidator(_words)
]


class ProjectsSection(Section):
    """[projects]: on whose account this host's users and guests work, and what they may choose.

    Of several projects the first is theirs unless they choose another (SLUICE_PROJECT).
    """

    default: ProjectName = Field(
        "default", description="the project of whom nothing else is said of"
    )
    users: Projects = Field(
        default_factory=dict,
        description="user (name or number) = projects, with commas: alice=vision nlp, 1001=speech",
    )
    groups: Projects = Field(
        default_factory=dict, description="group (name or number) = projects, with commas"
    )
    vms: Projects = Field(
        default_factory=dict, description="guest (name or UUID) = projects, with commas"
    )
    labels: Annotated[dict[str, list[ProjectName]], BeforeValidator(_label_owners)] = Field(
        default_factory=dict,
        description="who draws on reservations for a label: user:alice=team-a, group:nlp=team-b, "
        "vm:web=team-c",
    )
