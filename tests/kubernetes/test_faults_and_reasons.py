# SPDX-License-Identifier: Apache-2.0
"""A cluster sees what becomes of the pool's GPUs, and its pods are told why they wait."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kubernetes.cluster_pool import ClusterPool, container, pod, template
from tests.kubernetes.waits import wait_for

pytestmark = pytest.mark.kubernetes

#: Its session may end, and the pod goes on.
HOLDS_ON = ("/bin/sh", "-c", "/bin/hold_vgpu 600; exec sleep 600")
TAINT = "vgpu.sluice.io/condition"


def health_of(cluster: ClusterPool, name: str) -> tuple[str, str]:
    """What the kubelet says of a pod's device in its status."""
    statuses = cluster.rig.get("pod", name)["status"].get("containerStatuses") or [{}]
    for listed in statuses[0].get("allocatedResourcesStatus") or ():
        for each in listed["resources"]:
            return each["health"], each.get("message", "")
    return "", ""


def taints(cluster: ClusterPool) -> list[tuple[str, str]]:
    return [
        (taint["value"], taint["effect"])
        for spec in cluster.slices()
        for device in spec["devices"]
        for taint in device.get("taints", ())
    ]


def test_a_gpu_that_fails_is_seen_in_the_cluster(cluster: ClusterPool) -> None:
    tolerations: list[dict[str, Any]] = [
        {"key": TAINT, "operator": "Exists", "effect": "NoExecute"}
    ]
    cluster.apply(
        template("small", "500Mi", "10"),
        template("tolerant", "500Mi", "10", tolerations=tolerations),
        pod("goes", container("cuda", *HOLDS_ON), claim_template="small"),
        pod("stays", container("cuda", *HOLDS_ON), claim_template="tolerant"),
    )
    wait_for(lambda: len(cluster.plane.sessions("running")) == 2, 120, cluster.state)
    wait_for(lambda: health_of(cluster, "stays")[0] == "Healthy", 60, cluster.state)
    assert taints(cluster) == []
    cluster.fail_gpu(79)
    wait_for(lambda: taints(cluster) == [("fault", "NoExecute")], 60, cluster.state)
    # whoever does not say that it may stay is evicted, to be made anew where there is a GPU
    wait_for(lambda: not cluster.phase("goes"), 60, cluster.state)
    wait_for(lambda: health_of(cluster, "stays")[0] == "Unhealthy", 60, cluster.state)
    assert "XID 79" in health_of(cluster, "stays")[1]
    assert cluster.phase("stays") == "Running"
    ended = cluster.plane.sessions("ended")[-2:]
    assert all("has failed: XID 79" in each["reason"] for each in ended)
    cluster.apply(pod("later", container("cuda", "/bin/vector_add"), claim_template="small"))
    said = "no GPU of what the pool has reserved for this cluster can be used now"
    wait_for(lambda: cluster.reasons("later") == [said], 60, cluster.state)
    cluster.clear_fault()
    assert "wrong 0" in cluster.finished("later")
    assert taints(cluster) == []
    wait_for(lambda: health_of(cluster, "stays")[0] == "Healthy", 60, cluster.state)


def test_a_pod_that_waits_is_told_what_is_missing(cluster: ClusterPool) -> None:
    cluster.apply(
        template("large", "2000Mi", "10"),
        template("never", selectors=[{"cel": {"expression": "false"}}]),
        pod("first", container("cuda", *HOLDS_ON), claim_template="large"),
    )
    cluster.wait_for_phase("first", "Running")
    by_limits = {"resources": {"limits": {"sluice.io/vgpu": "4"}}}
    cluster.apply(
        pod("second", container("cuda", "/bin/vector_add"), claim_template="large"),
        pod("plain", container("cuda", "/bin/vector_add", claim="", **by_limits)),
        pod("never", container("cuda", "/bin/vector_add"), claim_template="never"),
    )
    free = "of what the pool has reserved for this cluster at most 1600 MiB, 70 % and 3 vGPU(s)"
    for name, wants in (
        ("second", "wants 1 vGPU(s) of 2000 MiB and 10 %; "),
        ("plain", "container cuda wants 4 vGPU(s) of 900 MiB and 20 %; "),
        ("never", "the pool has room for what it asks for, and the scheduler takes none of it"),
    ):
        wait_for(lambda pod=name: cluster.reasons(pod), 60, cluster.state)
        [said] = cluster.reasons(name)
        assert wants in said
        assert (free in said) == (name != "never")
