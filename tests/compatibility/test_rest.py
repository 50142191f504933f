# SPDX-License-Identifier: Apache-2.0
"""Programs that were written against a release's REST API find everything as it was."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .releases import NAMES, RELEASES
from .rest_changes import Comparison
from .rest_document import rest_document


@pytest.fixture(scope="module")
def today() -> dict[str, Any]:
    return rest_document()


@pytest.mark.parametrize("release", RELEASES, ids=NAMES)
def test_nothing_of_a_releases_api_is_gone_or_narrower(
    release: Path, today: dict[str, Any]
) -> None:
    released = json.loads((release / "openapi.json").read_text())
    assert len(released["paths"]) > 10, "the recording is empty"
    assert Comparison(released, today).breaks() == []


Change = Callable[[dict[str, Any]], Any]


def schema(document: dict[str, Any], name: str) -> Any:
    return document["components"]["schemas"][name]


BREAKS: dict[str, tuple[Change, str]] = {
    "a path": (lambda d: d["paths"].pop("/v1/queue"), "GET /v1/queue is gone"),
    "a method": (
        lambda d: d["paths"]["/v1/grants/{grant_id}"].pop("delete"),
        "DELETE /v1/grants/{grant_id} is gone",
    ),
    "an answer": (
        lambda d: d["paths"]["/v1/sessions"]["post"]["responses"].pop("409"),
        "POST /v1/sessions, answer 409 is gone",
    ),
    "a field of an answer": (
        lambda d: schema(d, "GrantView")["properties"].pop("project"),
        "project is gone",
    ),
    "a field that may be missing": (
        lambda d: schema(d, "GrantView")["required"].remove("node"),
        "node may be missing now",
    ),
    "another type": (
        lambda d: schema(d, "GpuView")["properties"]["memory_mib"].update(type="string"),
        "memory_mib is string instead of integer",
    ),
    "a field that may be nothing": (
        lambda d: schema(d, "GpuView")["properties"].update(
            mode={"anyOf": [{"type": "string"}, {"type": "null"}]}
        ),
        "mode is null instead of string",
    ),
    "a parameter": (
        lambda d: d["paths"]["/v1/grants"]["get"]["parameters"].pop(0),
        "is gone",
    ),
    "a parameter that is required": (
        lambda d: d["paths"]["/v1/grants"]["get"]["parameters"].append(
            {"name": "pool", "in": "query", "required": True, "schema": {"type": "string"}}
        ),
        "parameter pool is new and required",
    ),
    "a field that is required": (
        lambda d: schema(d, "SessionRequest").update(required=["project"]),
        "project is required now",
    ),
    "a field that is not taken": (
        lambda d: schema(d, "SessionRequest")["properties"].pop("labels"),
        "body.labels is gone",
    ),
    "a narrower bound": (
        lambda d: schema(d, "SessionRequest")["properties"]["vgpu_count"].update(maximum=8),
        "vgpu_count has maximum 8 instead of 64",
    ),
    "fewer values": (
        lambda d: schema(d, "SwitchRequest")["properties"]["to"].update(enum=["native", "pooled"]),
        "to takes only",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_would_break_a_caller_is_seen(name: str, today: dict[str, Any]) -> None:
    change, said = BREAKS[name]
    changed = copy.deepcopy(today)
    change(changed)
    assert any(said in each for each in Comparison(today, changed).breaks())


def test_what_is_added_breaks_nobody(today: dict[str, Any]) -> None:
    changed = copy.deepcopy(today)
    changed["paths"]["/v1/new"] = {"get": {"responses": {"200": {"description": "new"}}}}
    view = schema(changed, "GrantView")
    view["properties"]["colour"] = {"type": "string"}
    view["required"].append("colour")
    view["properties"]["state"]["enum"].append("paused")
    schema(changed, "SessionRequest")["properties"]["colour"] = {"type": "string"}
    schema(changed, "SessionRequest")["properties"]["vgpu_count"]["maximum"] = 128
    assert Comparison(today, changed).breaks() == []
