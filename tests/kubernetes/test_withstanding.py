# SPDX-License-Identifier: Apache-2.0
"""What a cluster does to a pool, on purpose or not: nothing is lost, doubled or left behind."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from control_plane import wait_for

from tests.kubernetes.cluster_pool import ClusterPool, container, pod, template

pytestmark = pytest.mark.kubernetes

#: Adds two vectors, says so, and waits a little, for ever: its sessions come and go. A program that
#: begins while there is no server has no vGPU, and is begun anew.
WORKS = ("sh", "-c", "while :; do /bin/vector_add; sleep 0.3; done")
#: Has one session, which is to outlive what is restarted.
HOLDS = ("/bin/hold_vgpu", "600")
PODS = int(os.environ.get("SLUICE_KUBERNETES_PODS", "30"))


def holding(cluster: ClusterPool, name: str, **more: Any) -> dict[str, Any]:
    """A pod that holds a session, once it does."""
    cluster.apply(
        template("small", "500Mi", "10"),
        pod(name, container("cuda", *HOLDS), claim_template="small", **more),
    )
    cluster.wait_for_phase(name, "Running")
    wait_for(lambda: cluster.plane.session_worker_pids(), 120, cluster.state)
    found: dict[str, Any] = cluster.rig.get("pod", name)
    return found


def working(cluster: ClusterPool, name: str) -> None:
    """A pod that works, once it does."""
    cluster.apply(
        template("small", "500Mi", "10"),
        pod(name, container("cuda", *WORKS), container("holds", *HOLDS), claim_template="small"),
    )
    wait_for(lambda: held_sessions(cluster), 120, cluster.state)
    still_works(cluster, name)


def held_sessions(cluster: ClusterPool) -> list[str]:
    running = cluster.plane.sessions("running")
    return [each["id"] for each in running if each["program"] == "hold_vgpu"]


def still_works(cluster: ClusterPool, name: str) -> None:
    """It says of more additions than before that they are right."""
    before = additions(cluster, name)
    wait_for(lambda: additions(cluster, name) > before + 1, 180, cluster.state)
    assert cluster.phase(name) == "Running"


def additions(cluster: ClusterPool, name: str) -> int:
    words = ("logs", name, "-c", "cuda")
    if not cluster.rig.try_kubectl(*words):
        return 0
    log = cluster.rig.kubectl(*words)
    assert "wrong" not in log.replace("wrong 0", "")
    return log.count("wrong 0")


def test_every_part_restarts_while_a_pod_works(cluster: ClusterPool) -> None:
    working(cluster, "works")
    held = held_sessions(cluster)
    kill = signal.SIGKILL
    for part in ("node", "controller", "node"):
        cluster.stop_part(part, kill)
        cluster.start_part(part)
        still_works(cluster, "works")
    cluster.plane.stop("server", kill)
    cluster.plane.start_server()
    still_works(cluster, "works")
    cluster.plane.stop("controller", kill)
    cluster.plane.start_controller()
    wait_for(lambda: cluster.plane.node_state() == "up")
    still_works(cluster, "works")
    for component in ("kubelet", "kube-apiserver", "kube-scheduler"):
        cluster.rig.end(component, kill)
        wait_for(lambda: cluster.rig.try_kubectl("get", "--raw", "/readyz"), 120, cluster.state)
        still_works(cluster, "works")
    assert held_sessions(cluster) == held
    # and a pod that comes afterwards is served as ever
    cluster.apply(pod("later", container("cuda", "/bin/vector_add"), claim_template="small"))
    assert "wrong 0" in cluster.finished("later")


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
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "many"},
        "spec": {
            "completions": PODS,
            "parallelism": PODS,
            "backoffLimit": 0,
            "template": {
                "spec": pod("", container("cuda", "/bin/vector_add"), claim_template="large")[
                    "spec"
                ]
            },
        },
    }
    cluster.apply(template("large", "1800Mi", "40"), job)  # two at a time

    def finished() -> bool:
        # while they are served, the pool never gives more than is reserved
        parts = cluster.parts_of_reservation()
        held = [slot for part in parts for slot in part["slots"]]
        assert sum(slot["memory_mib"] for slot in held) <= 3600
        assert sum(slot["compute_percent"] for slot in held) <= 80
        status = cluster.rig.get("job", "many")["status"]
        assert not status.get("failed"), cluster.state()
        return bool(status.get("succeeded") == PODS)

    wait_for(finished, 60 + 20 * PODS, cluster.state)
    logs = cluster.rig.kubectl("logs", "-l", "job-name=many", "--tail=-1", "--max-log-requests=500")
    assert logs.count("wrong 0") == PODS


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


def test_a_node_that_is_gone_holds_nothing_for_pods_that_are_elsewhere(
    cluster: ClusterPool,
) -> None:
    holding(cluster, "lost")
    [part] = cluster.parts_of_reservation()
    cluster.stop_part("node", signal.SIGKILL)
    cluster.rig.stop("kubelet")
    try:
        cluster.rig.kubectl("delete", "pod", "lost", "--force", "--grace-period=0")
        # the cluster has given the claim up, and so has the pool, though nobody is there to say so
        wait_for(lambda: not cluster.parts_of_reservation(), 120, cluster.state)
        wait_for(lambda: not cluster.plane.session_worker_pids(), 60, cluster.state)
    finally:
        cluster.rig.go_on("kubelet")
        cluster.start_part("node")
    left = cluster.folder / "run" / "claims" / part["owner"].removeprefix("claim-")
    wait_for(lambda: not left.exists(), 120, cluster.state)


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
        # whatever became of its program, it is in no grant of another's
        assert [each["id"] for each in cluster.plane.grants()] == [grant["id"]]
        sessions = cluster.plane.sessions("all")
        of_grant = [each for each in sessions if each["grant_id"] == grant["id"]]
        assert len(of_grant) == 1
        ended = cluster.plane.rest.get("/grants", params={"state": "all"}).json()["grants"]
        theirs_ended = [each for each in ended if each["project"] == "kubernetes.blue"]
        assert all(each["id"] != grant["id"] for each in theirs_ended)
    finally:
        cluster.rig.kubectl("delete", "namespace", "blue", "--timeout=120s")
