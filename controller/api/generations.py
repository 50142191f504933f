# SPDX-License-Identifier: Apache-2.0
"""Generations against lost updates: an ETag on what is shown, `If-Match` on what is changed.

Used by every handler that shows or changes one thing. Who sends no `If-Match` changes what is there
now; who sends one changes what it has read, or nothing.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Response

from sluice.controller.api.problems import Problem
from sluice.resources.problem_types import ProblemType

IfMatch = Annotated[
    str | None, Header(description="the ETag of what was read: change that, or nothing")
]


def etag(generation: int) -> str:
    """The ETag of a generation."""
    return f'"{generation}"'


def set_etag(response: Response, generation: int) -> None:
    """Says which generation an answer shows."""
    response.headers["ETag"] = etag(generation)


def check_generation(if_match: str | None, kind: str, name: str, generation: int) -> None:
    """Raises Problem 412 if the caller has read another generation."""
    if if_match is None or if_match.strip() == "*":
        return
    if etag(generation) not in (each.strip() for each in if_match.split(",")):
        raise Problem(
            412,
            ProblemType.GENERATION_CHANGED,
            f"If-Match is {if_match} but {kind} {name} is at generation {etag(generation)}; "
            "read it again and decide anew",
        )
