# SPDX-License-Identifier: Apache-2.0
"""Pods whose claims name a slice compute on it, on a real cluster, and give it back."""

from __future__ import annotations

import pytest

from tests.kubernetes.cluster_pool import (
    COMPUTE_PERCENT,
    DRIVER,
    MEMORY_MIB,
    ClusterPool,
    container,
    pod,
    template,
)
from tests.kubernetes.waits import wait_for
from tests.kubernetes.work import job, names_of_job, rights_of

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
    assert device["capacity"]["memory"]["value"] == "3600Mi"
    assert device["capacity"]["compute"]["value"] == "80"
    assert device["attributes"]["software"] == {"bool": True}
    [gpu] = cluster.plane.rest.get("/gpus").json()["gpus"]
    assert device["attributes"]["model"]["string"] == gpu["model"][:64]


def test_slices_follow_the_reservation(cluster: ClusterPool) -> None:
    more = cluster.reserve(1, 200, 1)
    wait_for(lambda: sum(len(each["devices"]) for each in cluster.slices()) == 2, 60, cluster.state)
    assert cluster.plane.rest.delete(f"/reservations/{more['id']}").status_code == 200
    wait_for(lambda: sum(len(each["devices"]) for each in cluster.slices()) == 1, 60, cluster.state)


def test_a_claim_that_has_no_room_is_pending_until_there_is(cluster: ClusterPool) -> None:
    cluster.apply(
        template("large", "2000Mi", "10"),
        pod("first", container("cuda", "/bin/hold_vgpu", "600"), claim_template="large"),
    )
    cluster.wait_for_phase("first", "Running")
    cluster.apply(pod("second", container("cuda", "/bin/vector_add"), claim_template="large"))
    wait_for(lambda: unschedulable(cluster, "second"), 60, cluster.state)
    cluster.rig.kubectl("delete", "pod", "first")
    assert "wrong 0" in cluster.finished("second")


def unschedulable(cluster: ClusterPool, name: str) -> bool:
    conditions = cluster.rig.get("pod", name)["status"].get("conditions", [])
    return any(each.get("reason") == "Unschedulable" for each in conditions)


def test_a_program_gets_no_more_than_its_claim(cluster: ClusterPool) -> None:
    asks = [{"name": "SLUICE_GMEM", "value": "900"}, {"name": "SLUICE_WAIT", "value": "0"}]
    cluster.apply(
        template("small", "500Mi", "10"),
        pod("greedy", container("cuda", "/bin/vector_add", env=asks), claim_template="small"),
    )
    assert cluster.wait_for_phase("greedy", "Succeeded", "Failed") == "Failed"
    assert "none of its" in cluster.rig.kubectl("logs", "greedy")
    assert cluster.plane.grants() == []


def test_an_extended_resource_is_a_default_slice(cluster: ClusterPool) -> None:
    limits = {"resources": {"limits": {"sluice.io/vgpu": "1"}}}
    cluster.apply(pod("plain", container("cuda", "/bin/vector_add", claim="", **limits)))
    assert "wrong 0" in cluster.finished("plain")
    [grant] = cluster.plane.rest.get("/grants", params={"state": "ended"}).json()["grants"][-1:]
    [vgpu] = grant["vgpus"]
    assert (vgpu["memory_mib"], vgpu["compute_percent"]) == (MEMORY_MIB, COMPUTE_PERCENT)


def test_selectors_see_the_gpu(cluster: ClusterPool) -> None:
    def chosen(name: str, expression: str) -> None:
        cel = {"cel": {"expression": expression}}
        cluster.apply(
            template(name, "500Mi", "10", selectors=[cel]),
            pod(name, container("cuda", "/bin/vector_add"), claim_template=name),
        )

    own = f'device.attributes["{DRIVER}"]'
    chosen("fits", f'{own}.software && {own}.model.matches("Sluice") && {own}.node != ""')
    chosen("never", f'{own}.model.matches("H200")')
    assert "wrong 0" in cluster.finished("fits")
    wait_for(lambda: unschedulable(cluster, "never"), 60, cluster.state)


def test_a_priority_class_is_a_priority(cluster: ClusterPool) -> None:
    urgent = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "urgent"},
        "value": 1000,
    }
    holds = container("cuda", "/bin/hold_vgpu", "600")
    cluster.apply(
        urgent,
        template("small", "500Mi", "10"),
        pod("first", holds, claim_template="small", priorityClassName="urgent"),
    )
    wait_for(lambda: cluster.plane.grants(), 120, cluster.state)
    [grant] = cluster.plane.grants()
    assert grant["priority"] == 20


def test_a_projects_quota_holds_for_its_namespace(cluster: ClusterPool) -> None:
    quota = {"memory_mib": 600}
    assert cluster.plane.rest.put("/quotas/kubernetes.default", json=quota).status_code < 300
    try:
        cluster.apply(
            template("large", "700Mi", "10"),
            pod("over", container("cuda", "/bin/vector_add"), claim_template="large"),
        )
        said = "project kubernetes.default may hold 600 MiB"
        wait_for(lambda: said in cluster.events("over"), 60, cluster.state)
        assert cluster.phase("over") == "Pending"
    finally:
        assert cluster.plane.rest.delete("/quotas/kubernetes.default").status_code < 300
    assert "wrong 0" in cluster.finished("over")


def test_claims_that_are_queued_or_over_a_quota_take_nothing_of_the_pool(
    cluster: ClusterPool,
) -> None:
    """What a queue of jobs, such as Kueue, needs: suspended jobs, and a quota on the class."""
    kind = {"apiVersion": "v1", "kind": "ResourceQuota"}
    counted = f"{DRIVER}.deviceclass.resource.k8s.io/devices"
    cluster.apply({**kind, "metadata": {"name": "claims"}, "spec": {"hard": {counted: "1"}}})
    quota = ("resourcequota", "claims")
    try:
        wait_for(lambda: "used" in cluster.rig.get(*quota)["status"], 60, cluster.state)
        computes = pod("", container("cuda", "/bin/vector_add"), claim_template="small")["spec"]
        cluster.apply(
            template("small", "500Mi", "10"),
            job("queued", computes, suspend=True),
            pod("first", container("cuda", "/bin/hold_vgpu", "600"), claim_template="small"),
        )
        wait_for(cluster.plane.session_worker_pids, 120, cluster.state)
        assert cluster.rig.get(*quota)["status"]["used"] == {counted: "1"}
        assert names_of_job(cluster, "queued") == []
        cluster.apply(pod("beyond", container("cuda", "/bin/vector_add"), claim_template="small"))
        said = f"exceeded quota: claims, requested: {counted}=1"
        wait_for(lambda: said in cluster.events("beyond"), 60, cluster.state)
        assert len(cluster.parts_of_reservation()) == 1
        cluster.rig.kubectl("delete", "pod", "first", "beyond")
        go_on = '{"spec": {"suspend": false}}'
        cluster.rig.kubectl("patch", "job", "queued", "--type=merge", "-p", go_on)
        status = lambda: cluster.rig.get("job", "queued")["status"]  # noqa: E731
        wait_for(lambda: status().get("succeeded"), 120, cluster.state)
    finally:
        cluster.rig.kubectl("delete", *quota)


def test_the_longest_names_and_parameters_that_nobody_takes(cluster: ClusterPool) -> None:
    long = "x" * 253
    pod_name = "y" * 200  # the kubelet makes a folder of it, the namespace and the UID
    spec = template("own", "500Mi", "10")["spec"]["spec"]
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    opaque = {"driver": DRIVER, "parameters": {"memory": ["1Gi"], "size": {"of": 7}}}
    odd = {"devices": {**spec["devices"], "config": [{"opaque": opaque}]}}
    cluster.apply(
        {**made, "metadata": {"name": long}, "spec": spec},
        {**made, "metadata": {"name": "odd"}, "spec": odd},
        pod(pod_name, container("cuda", "/bin/vector_add"), claim=long),
        pod("odd", container("cuda", "/bin/vector_add"), claim="odd"),
    )
    assert "wrong 0" in cluster.finished(pod_name)
    said = f"the claim's devices.config has parameters for {DRIVER}, which takes none"
    wait_for(lambda: said in cluster.events("odd"), 60, cluster.state)
    assert cluster.phase("odd") == "Pending"
    assert cluster.parts_of_reservation() == []


def test_the_parts_may_do_what_they_need_and_nothing_else(cluster: ClusterPool) -> None:
    rights = {
        "sluice-node:sluice-node": {"get resourceclaims", "get pods"},
        "sluice:sluice-controller": {
            "get resourceclaims",
            "watch resourceclaims",
            "create resourceslices",
            "list deviceclasses",
            "list pods",
            "create events",
        },
    }
    others = {
        "get secrets",
        "delete pods",
        "patch pods",
        "patch resourceclaims",
        "patch resourceclaims/status",
        "patch nodes",
        "list events",
    }
    for account, may in rights.items():
        assert rights_of(cluster, account, others.union(*rights.values())) == may
