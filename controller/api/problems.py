# SPDX-License-Identifier: Apache-2.0
"""Errors of the REST API as RFC 9457 problem documents.

Raised by the handlers of controller.api; app.py turns them, and FastAPI's own errors, into
application/problem+json. Every document says what was wanted, what was found, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from sluice.config.log_ids import request_id
from sluice.config.places import Full
from sluice.resources.problem_types import ProblemType


class ProblemDocument(BaseModel):
    """The body of every error."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str = ""
    cuda_error: int | None = None
    request_id: str | None = None  # by which the controller's log and audit trail name it


def problem_responses(*statuses: int | tuple[int, str]) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, for its `responses`; a status may come with what it means there."""
    found: dict[int | str, dict[str, Any]] = {}
    for each in statuses:
        status, meaning = (each, "") if isinstance(each, int) else each
        found[status] = {"model": ProblemDocument} | ({"description": meaning} if meaning else {})
    return found


#: Of a route that shows what the path names, and of one that changes it.
SHOW_PROBLEMS = problem_responses(404)
CHANGE_PROBLEMS = problem_responses(404, 409, 412)


class Problem(Exception):
    """Ends a request with a problem document."""

    def __init__(
        self,
        status: int,
        kind: ProblemType | None,
        detail: str,
        *,
        cuda_error: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """`kind` is what callers decide by; None: the status says all."""
        super().__init__(detail)
        self.type = kind.uri if kind else "about:blank"
        self.status = status
        self.title = kind.title if kind else phrase_of(status)
        self.detail = detail
        self.cuda_error = cuda_error
        self.headers = headers


def phrase_of(status: int) -> str:
    """HTTP's own name of a status."""
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else "Error"


def not_found(kind: str, name: str) -> Problem:
    """There is no such resource."""
    return Problem(
        404, ProblemType.NOT_FOUND, f"there is no {kind} {name}; list them at /v1/{kind}s"
    )


def no_place(full: Full, kind: ProblemType, owner: str, what: str, do: str) -> Problem:
    """A caller has as many of something as it may have (429), or all are taken (503)."""
    of_owner = full is Full.OWNER
    detail = f"{owner} has {what} already" if of_owner else f"all {what} are taken"
    return Problem(
        429 if of_owner else 503,
        kind,
        f"{detail}; {do}",
        headers={"Retry-After": "10"},
    )


def store_problem(error: Exception) -> Problem:
    """What cannot be stored or read now."""
    return Problem(503, ProblemType.STORE_UNAVAILABLE, str(error), headers={"Retry-After": "1"})


def document_of(path: str, problem: Problem) -> ProblemDocument:
    """The problem of a request for a path, or of a part of it."""
    return ProblemDocument(
        type=problem.type,
        title=problem.title,
        status=problem.status,
        detail=problem.detail,
        instance=path,
        cuda_error=problem.cuda_error,
        request_id=request_id() or None,
    )


def problem_answer(path: str, problem: Problem) -> JSONResponse:
    """The problem as the answer to a request for a path."""
    return JSONResponse(
        document_of(path, problem).model_dump(exclude_none=True),
        status_code=problem.status,
        media_type="application/problem+json",
        headers=problem.headers,
    )


async def answer_problem(request: Request, error: Exception) -> Any:
    """Answers a Problem."""
    assert isinstance(error, Problem)
    return problem_answer(request.url.path, error)


async def answer_store_error(request: Request, error: Exception) -> Any:
    """Answers what cannot be stored or read now."""
    return problem_answer(request.url.path, store_problem(error))


async def answer_http_error(request: Request, error: Exception) -> Any:
    """Answers what the framework refuses: unknown paths, wrong methods."""
    assert isinstance(error, HTTPException)
    problem = Problem(
        error.status_code,
        None,
        f"{request.method} {request.url.path}: {error.detail}; the API is described at "
        "/v1/openapi.json",
        headers=dict(error.headers) if error.headers else None,
    )
    return problem_answer(request.url.path, problem)


async def answer_invalid(request: Request, error: Exception) -> Any:
    """Answers a body or parameter that is not as described."""
    assert isinstance(error, RequestValidationError)
    return problem_answer(request.url.path, invalid(error.errors()))


def invalid(errors: Iterable[Mapping[str, Any]], place: Sequence[str | int] = ()) -> Problem:
    """What pydantic finds wrong, by the place of each field; `place`: of what was looked at."""
    parts = [
        f"{'.'.join(str(step) for step in (*place, *e['loc']))}: {e['msg']} "
        f"(found {e.get('input')!r:.80})"
        for e in errors
    ]
    return Problem(422, ProblemType.INVALID_REQUEST, "; ".join(parts))
