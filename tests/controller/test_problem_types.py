# SPDX-License-Identifier: Apache-2.0
"""Every problem has a type, which the docs list; titles that clients of 0.1 read stay."""

from __future__ import annotations

import re
from pathlib import Path

from sluice.config import http_server
from sluice.resources.problem_types import PREFIX, ProblemType

CHECKOUT = Path(__file__).resolve().parents[2]
#: By these the client libraries of release 0.1 decide.
TITLES_OF_0_1 = {
    ProblemType.REQUEST_UNDER_WAY: "Request is under way",
    ProblemType.OUTCOME_UNKNOWN: "Outcome is not known",
    ProblemType.TOO_MANY_KEYS: "Too many keys",
}


def test_types_differ_and_are_listed() -> None:
    uris = [kind.uri for kind in ProblemType]
    assert len(set(uris)) == len(uris)
    page = (CHECKOUT / "docs" / "rest-problems.md").read_text()
    listed = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    known = [http_server.TOO_SLOW, http_server.TOO_MANY_CONNECTIONS, *uris]
    assert sorted(PREFIX + name for name in listed) == sorted(known)


def test_titles_that_old_clients_read_are_what_they_were() -> None:
    assert {kind: kind.title for kind in TITLES_OF_0_1} == TITLES_OF_0_1


def test_the_client_decides_by_types_that_there_are() -> None:
    source = (CHECKOUT / "native/client/core/controller_request.cc").read_text()
    named = re.findall(r'is_problem\(body, "([a-z-]+)"', source)
    assert len(named) == 3
    assert {PREFIX + name for name in named} <= {kind.uri for kind in ProblemType}
