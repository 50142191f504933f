# SPDX-License-Identifier: Apache-2.0
"""REST of reservations' parts: who may, on whose account, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from control_plane import ControlPlane

pytestmark = pytest.mark.control_plane(shared=True, guarded=True, requests_per_second=0)


class Reserved:
    """A reservation for the label k8s, and callers."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        wanted = {"owner_kind": "label", "owner": "k8s", "project": "k8s", "memory_mib": 4000}
        made = plane.rest.post("/reservations", json={**wanted, "compute_percent": 100})
        assert made.status_code == 201, made.text
        self.whole: dict[str, Any] = made.json()
        self.gpu = self.whole["slots"][0]["gpu"]

    def caller(self, **terms: str) -> httpx.Client:
        made = self.plane.rest.post("/tokens", json=terms)
        assert made.status_code == 201, made.text
        return self.plane.rest_as(made.json()["secret"])

    def keep(
        self, caller: httpx.Client, owner: str, memory_mib: int = 1000, **more: Any
    ) -> httpx.Response:
        size = {"gpu": self.gpu, "memory_mib": memory_mib, "compute_percent": 10}
        path = f"/reservations/{self.whole['id']}/parts/{owner}"
        return caller.put(path, json={"vgpus": [size], **more})


@pytest.fixture
def reserved(shared_plane: ControlPlane) -> Iterator[Reserved]:
    found = Reserved(shared_plane)
    yield found
    shared_plane.rest.delete(f"/reservations/{found.whole['id']}")
    for each in shared_plane.rest.get("/reservations").json()["reservations"]:
        shared_plane.rest.delete(f"/reservations/{each['id']}")


def test_the_labels_tenant_makes_parts_and_gives_them_back(reserved: Reserved) -> None:
    cluster = reserved.caller(role="tenant", project="k8s", label="k8s")
    kept = reserved.keep(cluster, "claim-1", project="k8s.red")
    assert kept.status_code == 200, kept.text
    part = kept.json()
    assert (part["within"], part["owner"]) == (reserved.whole["id"], "claim-1")
    assert part["slots"] == [{"gpu": reserved.gpu, "memory_mib": 1000, "compute_percent": 10}]
    assert reserved.keep(cluster, "claim-1", project="k8s.red").json() == part
    listed = cluster.get(f"/reservations/{reserved.whole['id']}/parts").json()
    assert listed["parts"] == [part]
    assert listed["reservation"]["id"] == reserved.whole["id"]
    answer = cluster.delete(f"/reservations/{reserved.whole['id']}/parts/claim-1")
    assert (answer.status_code, answer.json()["state"]) == (200, "ended")
    assert cluster.delete("/parts/claim-1").status_code == 404


def test_others_see_nothing_of_it(reserved: Reserved) -> None:
    cluster = reserved.caller(role="tenant", project="k8s", label="k8s")
    assert reserved.keep(cluster, "claim-1").status_code == 200
    for terms in (
        {"role": "tenant", "project": "k8s"},
        {"role": "tenant", "project": "k8s", "label": "other"},
        {"role": "tenant", "project": "other", "label": "other"},
    ):
        other = reserved.caller(**terms)
        path = f"/reservations/{reserved.whole['id']}/parts"
        assert other.get(path).status_code == 404
        assert reserved.keep(other, "claim-2").status_code == 404
        assert other.delete(f"{path}/claim-1").status_code == 404
        assert other.delete("/parts/claim-1").status_code == 404
    viewer = reserved.caller(role="viewer")
    assert reserved.keep(viewer, "claim-2").status_code == 403
    assert viewer.delete("/parts/claim-1").status_code == 403


def test_parts_are_on_the_tokens_project_or_below(reserved: Reserved) -> None:
    cluster = reserved.caller(role="tenant", project="k8s", label="k8s")
    for project in ("default", "k8sred", "other.k8s"):
        refused = reserved.keep(cluster, "claim-1", project=project)
        assert refused.status_code == 403, project
        assert "below it such as k8s.team" in refused.json()["detail"]
    assert reserved.keep(cluster, "claim-1").json()["project"] == "k8s"
    assert reserved.keep(reserved.plane.rest, "claim-2", project="any").status_code == 200


def test_what_cannot_be_says_why(reserved: Reserved) -> None:
    cluster = reserved.caller(role="tenant", project="k8s", label="k8s")
    refused = reserved.keep(cluster, "claim-1", memory_mib=5000)
    assert refused.status_code == 409
    assert "has 4000 MiB and 100 % free there" in refused.json()["detail"]
    reserved.gpu = "nowhere:GPU-1"
    assert reserved.keep(cluster, "claim-1").status_code == 404
    path = f"/reservations/{reserved.whole['id']}/parts/claim-1"
    assert cluster.put(path, json={"vgpus": []}).status_code == 422


def test_a_part_that_outlived_its_whole_is_still_given_back(reserved: Reserved) -> None:
    cluster = reserved.caller(role="tenant", project="k8s", label="k8s")
    assert reserved.keep(cluster, "claim-1", project="k8s.red").status_code == 200
    whole = f"/reservations/{reserved.whole['id']}"
    assert reserved.plane.rest.delete(whole).status_code == 200
    assert (
        reserved.caller(role="tenant", project="x", label="k8s")
        .delete("/parts/claim-1")
        .status_code
        == 404
    )
    assert cluster.delete("/parts/claim-1").status_code == 200
