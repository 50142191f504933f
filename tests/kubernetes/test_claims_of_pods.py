# SPDX-License-Identifier: Apache-2.0
"""Pods whose claims name a slice compute on it, on a real cluster, and give it back."""

from __future__ import annotations

import pytest
from control_plane import wait_for

from tests.kubernetes.cluster_pool import DRIVER, ClusterPool, container, pod, template

pytestmark = pytest.mark.kubernetes


def test_a_pod_with_a_claim_computes(cluster: ClusterPool) -> None:
    cluster.apply(
        template("small", "500Mi", "10"),
        pod("adds", container("cuda", "/bin/vector_add"), claim_template="small"),
    )
    assert "wrong 0" in cluster.finished("adds")
    [grant] = cluster.plane.rest.get("/grants", params={"state": "ended"}).json()["grants"][-1:]
    assert grant["project"] == "kubernetes.default"
    [vgpu] = grant["vgpus"]
    assert (vgpu["memory_mib"], vgpu["compute_percent"]) == (500, 10)
    assert vgpu["gpu"] == cluster.whole["slots"][0]["gpu"]


def test_slices_say_what_is_reserved_and_no_more(cluster: ClusterPool) -> None:
    [published] = cluster.slices()
    assert published["driver"] == DRIVER
    assert published["nodeName"] == "127.0.0.1"
    [device] = published["devices"]
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["memory"]["value"] == "4000Mi"
    assert device["capacity"]["compute"]["value"] == "100"
    assert device["attributes"]["software"] == {"bool": True}
    [gpu] = cluster.plane.rest.get("/gpus").json()["gpus"]
    assert device["attributes"]["model"]["string"] == gpu["model"][:64]


def test_slices_follow_the_reservation(cluster: ClusterPool) -> None:
    more = cluster.reserve(1, 200, 1) if cluster.plane.rest.get("/gpus") else {}
    wait_for(lambda: sum(len(each["devices"]) for each in cluster.slices()) == 2, 60, cluster.state)
    assert cluster.plane.rest.delete(f"/reservations/{more['id']}").status_code == 200
    wait_for(lambda: sum(len(each["devices"]) for each in cluster.slices()) == 1, 60, cluster.state)
