# SPDX-License-Identifier: Apache-2.0
"""The REST API asked whatever its own description allows, and what it does not: no answer is a 5xx
that is not meant, and every answer is as described.

Requests are made by schemathesis from /v1/openapi.json of a real controller with a real server. A
503 is an answer that is described (a node that is not connected, no node that took a session), so
only others count as errors of the server. SLUICE_LONG=1 asks much more.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
import schemathesis
from control_plane import ControlPlane
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.control_plane(
    shared=True, as_admin=True, fake=True, auth={"requests_per_second": 0}
)

LONG = bool(os.environ.get("SLUICE_LONG"))
EXAMPLES = 1000 if LONG else 25
MEANT = {503}
CHECKS = [
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]
# they answer when their caller has gone
WITHOUT_END = {"/v1/holds", "/v1/events/stream"}

load_all_checks()


@pytest.fixture(scope="module")
def described(shared_plane: ControlPlane) -> dict[str, Any]:
    """Every operation by its name."""
    schema = schemathesis.openapi.from_dict(shared_plane.rest.get("/openapi.json").json())
    operations = (result.ok() for result in schema.get_all_operations())
    return {operation.label: operation for operation in operations}


def test_every_operation_withstands_what_its_description_allows_and_more(
    plane: ControlPlane, described: dict[str, Any]
) -> None:
    secret = plane.first_token()
    ticket = plane.rest.post("/sessions", json={"gmem_mib": 1, "ratio_percent": 1}).json()
    there = {
        "grant_id": ticket["grant_id"],
        "session_id": ticket["session_id"],
        "name": plane.node,
        "gpu_id": plane.rest.get("/gpus").json()["gpus"][0]["id"],
        "token_id": plane.rest.post("/tokens", json={"role": "viewer"}).json()["id"],
    }
    asked: dict[str, int] = {}
    for label, operation in described.items():
        if operation.path in WITHOUT_END:
            continue
        asked[label] = fuzz(plane, operation, secret, there)
    assert len(asked) >= 15
    assert min(asked.values()) > 0, asked
    assert asked["GET /v1/grants"] >= EXAMPLES / 2, asked
    assert plane.rest.get("/pool").status_code == 200
    errors = [line for line in plane.log("controller").splitlines() if "Traceback" in line]
    assert errors == []


def fuzz(plane: ControlPlane, operation: Any, secret: str, there: dict[str, str]) -> int:
    count = 0
    modes = [operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode]

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=not LONG,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=st.one_of(modes), real=st.booleans())
    def ask(case: Any, real: bool) -> None:
        nonlocal count
        count += 1
        for name in case.path_parameters or {}:
            if real and name in there:  # what is made up is never there
                case.path_parameters[name] = there[name]
        if operation.path == "/v1/sessions" and isinstance(case.body, dict):
            case.body["wait_seconds"] = 0  # a second in the queue is a second of this test
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {secret}"}
        response = case.call(base_url=plane.url, timeout=20)
        assert response.status_code < 500 or response.status_code in MEANT, response.text
        case.validate_response(response, checks=CHECKS)

    ask()
    return count


def test_endless_operations_begin_as_described(plane: ControlPlane) -> None:
    for since in ("", "?since=0", "?since=99999999999", "?kind=x&subject=%00"):
        with plane.rest.stream("GET", f"/events/stream{since}") as stream:
            assert stream.status_code == 200
            assert next(stream.iter_lines()).startswith("retry: ")
    for since in ("-1", "x", str(2**63)):
        assert plane.rest.get(f"/events/stream?since={since}").status_code == 422
    for body in ({}, {"job": "x"}, {"job": None}, []):
        assert plane.rest.post("/holds", json=body).status_code == 422


def test_whatever_is_sent_concurrently_it_goes_on(plane: ControlPlane) -> None:
    paths = ["/pool", "/grants?limit=1", "/events", "/nodes/%00", "/gpus/%FF", "/tokens/../pool"]
    failed: list[int] = []

    def ask(path: str) -> None:
        client = plane.rest_as(plane.first_token())
        for _ in range(20):
            status = client.get(path).status_code
            if status >= 500:
                failed.append(status)

    threads = [threading.Thread(target=ask, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
