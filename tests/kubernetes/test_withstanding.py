# SPDX-License-Identifier: Apache-2.0
"""What a cluster does to a pool, on purpose or not: nothing is lost, doubled or left behind."""

from __future__ import annotations

import json
import signal

import pytest

from tests.kubernetes.cluster_pool import ClusterPool, container, pod, template
from tests.kubernetes.orders import every_order
from tests.kubernetes.waits import wait_for
from tests.kubernetes.work import (
    HOLDS,
    LEAVES,
    PODS,
    WORKS,
    held_sessions,
    holding,
    is_leaving,
    job,
    names_of_job,
    restart,
    served_job,
    still_works,
    working,
)
from tests.rigs.kubernetes.rig import NODE
from tests.rigs.kubernetes.second_node import second_node

pytestmark = pytest.mark.kubernetes


def test_every_part_restarts_in_every_order_while_pods_come_and_work(cluster: ClusterPool) -> None:
    working(cluster, "works")
    held = held_sessions(cluster)
    comes = []
    for number, part in enumerate(every_order(("kubelet", "node", "sluice-controller"))):
        restart(cluster, part)
        if number % 2:
            comes.append(f"comes-{number}")
            added = container("cuda", "/bin/vector_add")
            cluster.apply(pod(comes[-1], added, claim_template="small"))
    still_works(cluster, "works")
    for part in ("sluice-server", "controller", "kube-apiserver", "kube-scheduler"):
        restart(cluster, part)
        wait_for(cluster.rig.is_ready, 120, cluster.state)
        still_works(cluster, "works")
    for name in comes:
        assert "wrong 0" in cluster.finished(name)
    assert held_sessions(cluster) == held


def test_a_pod_is_prepared_once_what_was_down_is_back(cluster: ClusterPool) -> None:
    cluster.stop_part("node", signal.SIGKILL)
    cluster.plane.stop("controller", signal.SIGKILL)
    cluster.apply(
        template("small", "500Mi", "10"),
        pod("waits", container("cuda", "/bin/vector_add"), claim_template="small"),
    )
    wait_for(lambda: cluster.rig.get("pod", "waits")["spec"].get("nodeName"), 60, cluster.state)
    assert cluster.phase("waits") == "Pending"
    cluster.start_part("node")
    cluster.plane.start_controller()
    assert "wrong 0" in cluster.finished("waits")


def test_more_pods_than_there_is_room_for_are_all_served(cluster: ClusterPool) -> None:
    cluster.apply(template("large", "1800Mi", "40"))  # two at a time
    computes = pod("", container("cuda", "/bin/vector_add"), claim_template="large")
    served_job(cluster, PODS, computes["spec"])


def test_a_claim_that_is_deleted_stays_until_its_pod_ends(cluster: ClusterPool) -> None:
    spec = template("own", "500Mi", "10")["spec"]["spec"]
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "own"},
        "spec": spec,
    }
    cluster.apply(claim, pod("works", container("cuda", *WORKS), claim="own"))
    still_works(cluster, "works")
    cluster.rig.kubectl("delete", "resourceclaim", "own", "--wait=false")
    still_works(cluster, "works")
    cluster.rig.kubectl("delete", "pod", "works")
    wait_for(lambda: not cluster.rig.get("resourceclaim")["items"], 60, cluster.state)


def test_a_pod_that_is_killed_in_its_init_container_leaves_nothing(cluster: ClusterPool) -> None:
    inits = [container("first", *HOLDS)]
    cluster.apply(
        template("small", "500Mi", "10"),
        pod(
            "inits",
            container("cuda", "/bin/vector_add"),
            claim_template="small",
            initContainers=inits,
        ),
    )
    wait_for(lambda: cluster.plane.session_worker_pids(), 120, cluster.state)
    cluster.rig.kubectl("delete", "pod", "inits", "--force", "--grace-period=0")
    # clear() looks for what is left


def test_a_node_that_is_gone_keeps_nothing_and_is_cleaned_when_it_is_back(
    cluster: ClusterPool,
) -> None:
    """As ten minutes: it is not ready, its pods are evicted, an operator says that it is off."""
    cluster.apply(
        template("small", "500Mi", "10"),
        job("moves", pod("", container("cuda", *HOLDS), claim_template="small", **LEAVES)["spec"]),
    )
    wait_for(lambda: held_sessions(cluster), 120, cluster.state)
    [session] = held_sessions(cluster)
    [part] = cluster.parts_of_reservation()
    [first] = names_of_job(cluster, "moves")
    cluster.stop_part("node", signal.SIGKILL)
    cluster.rig.stop("kubelet")
    cluster.plane.stop("server", signal.SIGKILL)
    off = "node.kubernetes.io/out-of-service"
    try:
        with second_node(cluster.rig):
            wait_for(lambda: is_leaving(cluster, first), 120, cluster.state)
        assert cluster.parts_of_reservation() == [part]  # it may be there still
        cluster.rig.kubectl("taint", "node", NODE, f"{off}=shut-down:NoExecute")
        # the cluster has given the claim up, and so has the pool, though nobody is there to say so
        wait_for(lambda: not cluster.parts_of_reservation(), 120, cluster.state)
        # its pod has failed by then, and is deleted behind that
        wait_for(lambda: first not in names_of_job(cluster, "moves"), 120, cluster.state)
    finally:
        cluster.rig.try_kubectl("taint", "node", NODE, f"{off}-")
        cluster.rig.go_on("kubelet")
        cluster.plane.start_server()
        cluster.start_part("node")
    left = cluster.folder / "run" / "claims" / part["owner"].removeprefix("claim-")
    wait_for(lambda: not left.exists(), 120, cluster.state)
    wait_for(lambda: held_sessions(cluster) not in ([], [session]), 120, cluster.state)
    [later] = held_sessions(cluster)  # of the pod in its place
    assert later != session


def test_containers_of_a_pod_share_its_claim(cluster: ClusterPool) -> None:
    cluster.apply(
        template("small", "500Mi", "10"),
        pod(
            "shares",
            container("one", *HOLDS),
            container("two", *HOLDS),
            claim_template="small",
        ),
    )
    wait_for(lambda: len(cluster.plane.sessions()) == 2, 120, cluster.state)
    [grant] = cluster.plane.grants()
    assert {each["grant_id"] for each in cluster.plane.sessions()} == {grant["id"]}
    containers = {each["container"]["id"] for each in cluster.plane.sessions()}
    assert len(containers) == 2
    uid = cluster.rig.get("pod", "shares")["metadata"]["uid"]
    assert {each["container"]["pod"] for each in cluster.plane.sessions()} == {uid}
    [shown] = cluster.pods_of_vgpus()
    assert (shown["namespace"], shown["pod"], shown["pod_uid"]) == ("default", "shares", uid)


def test_two_namespaces_do_not_reach_each_others_claims(cluster: ClusterPool) -> None:
    holding(cluster, "mine")
    [grant] = cluster.plane.grants()
    [record] = (cluster.folder / "run" / "claims").glob("*/claim.json")
    token = json.loads(record.read_text())["job"]
    if not cluster.rig.try_kubectl("get", "namespace", "blue"):
        cluster.rig.kubectl("create", "namespace", "blue")
    theirs = pod(
        "theirs",
        container(
            "cuda",
            "/bin/vector_add",
            env=[{"name": "SLUICE_JOB", "value": token}, {"name": "SLUICE_WAIT", "value": "0"}],
        ),
        claim_template="small",
    )
    for each in (template("small", "500Mi", "10"), theirs):
        cluster.rig.kubectl("-n", "blue", "apply", "-f", "-", stdin=json.dumps(each))
    try:
        cluster.wait_for_phase("theirs", "Succeeded", "Failed", namespace="blue")
        # whatever became of its program, it is in no grant of another's, and its own has ended
        wait_for(
            lambda: [each["id"] for each in cluster.plane.grants()] == [grant["id"]],
            60,
            cluster.state,
        )
        sessions = cluster.plane.sessions("all")
        of_grant = [each for each in sessions if each["grant_id"] == grant["id"]]
        assert len(of_grant) == 1
        ended = cluster.plane.rest.get("/grants", params={"state": "all"}).json()["grants"]
        theirs_ended = [each for each in ended if each["project"] == "kubernetes.blue"]
        assert all(each["id"] != grant["id"] for each in theirs_ended)
    finally:
        kinds = "pod,resourceclaimtemplate"
        cluster.rig.kubectl("-n", "blue", "delete", kinds, "--all", "--timeout=120s")
