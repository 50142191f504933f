# SPDX-License-Identifier: Apache-2.0
"""The console over two controllers and etcd: the leader has it, and sessions outlive the leader."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import etcd_members
import httpx
import pytest
from control_plane import wait_for
from controllers import Controllers, controllers

from tests.console.place import fields_of

pytestmark = pytest.mark.skipif(not etcd_members.is_there(), reason="etcd is not installed")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Controllers]:
    with etcd_members.etcd_members(tmp_path / "etcd") as one:
        store = {"kind": "etcd", "endpoints": one.endpoints[0]}
        with controllers(tmp_path, 2, store, auth={"required": "yes"}) as several:
            yield several


def test_a_session_outlives_the_leader(two: Controllers) -> None:
    leader, follower = two.both()
    first = f"http://{two.rest[leader]}"
    referred = httpx.get(f"http://{two.rest[follower]}/console/nodes?marker=x")
    assert referred.status_code == 307
    assert referred.headers["location"] == f"{first}/console/nodes?marker=x"
    with httpx.Client(timeout=60) as browser:
        form = fields_of(browser.get(f"{first}/console/sign-in").text)
        answer = browser.post(
            f"{first}/console/sign-in",
            data={**form, "token": two.first_token()},
            headers={"origin": first},
        )
        assert answer.status_code == 303, answer.text
        assert browser.get(f"{first}/console/nodes").status_code == 200
        two.signal(leader, signal.SIGTERM)
        second = f"http://{two.rest[follower]}"
        wait_for(lambda: two.leader() == follower, 120, "the other to lead")
        shown = browser.get(f"{second}/console/nodes")  # cookies do not tell ports apart
        assert shown.status_code == 200
        form = fields_of(shown.text, "/console/sign-out")
        ended = browser.post(
            f"{second}/console/sign-out",
            data={**form, "where": "everywhere"},
            headers={"origin": second},
        )
        assert ended.headers["location"] == "/console/sign-in"
        assert browser.get(f"{second}/console/nodes").status_code == 303
