# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document: FastAPI's, with what this API answers to every request added.

Used by app.py. Anybody may read it, without a token, so its text is made once. Errors are problem
documents of type application/problem+json, whoever raises them; FastAPI by itself would describe
its own validation errors, which nobody gets here.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from sluice.controller.api.problems import ProblemDocument

PATH = "/v1/openapi.json"
EVERYWHERE = {
    "401": "no token, or not a valid one",
    "403": "not for the caller's role",
    "429": "too many requests; Retry-After says when",
    "default": "any other refusal",
}
PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "a name for this creation, good for 24 hours: sent again with it, the answer is "
    "repeated and nothing is created anew",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}


def describe(app: FastAPI) -> None:
    """Makes the application answer with the completed document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(
                get_openapi(
                    title=app.title,
                    version=app.version,
                    description=app.description,
                    routes=app.routes,
                )
            )
        return app.openapi_schema

    made: list[bytes] = []
    making = asyncio.Lock()

    def make() -> bytes:
        return json.dumps(document(), ensure_ascii=False, separators=(",", ":")).encode()

    async def show(_: Request) -> Response:
        async with making:
            if not made:  # in a thread: it takes half a second
                made.append(await asyncio.to_thread(make))
        return Response(made[0], media_type="application/json")

    app.openapi = document  # type: ignore[method-assign]
    app.add_route(PATH, show, include_in_schema=False)


def _complete(document: dict[str, Any]) -> dict[str, Any]:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.setdefault("ProblemDocument", ProblemDocument.model_json_schema())
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for path in document["paths"].values():
        for method, operation in path.items():
            answers = operation["responses"]
            for status, text in EVERYWHERE.items():
                answers.setdefault(status, {"description": text})
            for status, answer in answers.items():
                if status == "default" or int(status) >= 400:
                    answer["content"] = PROBLEM
            if method == "post":
                operation.setdefault("parameters", []).append(IDEMPOTENCY_KEY)
    return document
