# SPDX-License-Identifier: Apache-2.0
"""Pods of a cluster without DRA ask by extended resources, and compute on what the pool gives."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from tests.kubernetes.cluster_pool import (
    COMPUTE_PERCENT,
    MEMORY_MIB,
    ClusterPool,
    container,
    pod,
)
from tests.kubernetes.extended_pool import PARTS, VGPU, ExtendedPool, asking
from tests.kubernetes.orders import every_order
from tests.kubernetes.waits import wait_for
from tests.kubernetes.work import (
    HOLDS,
    LEAVES,
    PODS,
    WORKS,
    held_sessions,
    is_leaving,
    job,
    names_of_job,
    restart,
    rights_of,
    served_job,
    still_works,
)
from tests.rigs.kubernetes.rig import NODE, RigError
from tests.rigs.kubernetes.second_node import second_node

pytestmark = pytest.mark.kubernetes

MERGE = ("--type=merge",)


@pytest.fixture(scope="module")
def extended(cluster: ClusterPool) -> Iterator[ExtendedPool]:
    """The cluster without DRA."""
    pool = ExtendedPool(cluster)
    try:
        pool.begin()
        yield pool
    finally:
        pool.end()


def granted(cluster: ClusterPool, last: int) -> set[tuple[int, int, str]]:
    """Sizes and projects of what was granted last."""
    grants = cluster.plane.rest.get("/grants", params={"state": "ended"}).json()["grants"][-last:]
    return {
        (vgpu["memory_mib"], vgpu["compute_percent"], grant["project"])
        for grant in grants
        for vgpu in grant["vgpus"]
    }


def test_pods_get_what_they_name_and_else_the_reservations_own(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    cluster.apply(
        pod("both", asking("cuda", "/bin/vector_add", count=1, memory=500, compute=10)),
        pod("plain", asking("cuda", "/bin/vector_add", count=1)),
        pod("size", asking("cuda", "/bin/vector_add", memory=300)),  # which the webhook makes one
        pod("none", container("c", "/bin/true", claim="", resources={"limits": {VGPU: "0"}})),
    )
    made = cluster.rig.get("pod", "size")["spec"]["containers"][0]["resources"]
    assert made["limits"][VGPU] == made["requests"][VGPU] == "1"
    for name in ("both", "plain", "size"):
        assert "wrong 0" in cluster.finished(name)
    cluster.wait_for_phase("none", "Succeeded")
    assert granted(cluster, 3) == {
        (500, 10, "kubernetes.default"),
        (MEMORY_MIB, COMPUTE_PERCENT, "kubernetes.default"),
        (300, COMPUTE_PERCENT, "kubernetes.default"),
    }


def test_a_pod_without_room_is_pending_with_the_reason(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    cluster.apply(pod("first", asking("cuda", *HOLDS, count=1, memory=2000)))
    cluster.wait_for_phase("first", "Running")
    cluster.apply(pod("second", asking("cuda", "/bin/vector_add", count=1, memory=2000)))
    wait_for(lambda: extended.why_not_scheduled("second"), 60, cluster.state)
    said = extended.why_not_scheduled("second")
    assert "container cuda wants 1 vGPU(s) of 2000 MiB and 20 percent" in said
    assert "at most 1600 MiB, 60 percent and 3 vGPU(s) of a GPU are free" in said
    assert cluster.phase("second") == "Pending"
    cluster.rig.kubectl("delete", "pod", "first")
    assert "wrong 0" in cluster.finished("second")
    told = cluster.rig.get("pod", "second")["metadata"]["annotations"]
    assert "sluice.io/waiting" in told  # by which the scheduler looked again


def test_containers_of_a_pod_have_a_vgpu_each(cluster: ClusterPool, extended: ExtendedPool) -> None:
    cluster.apply(
        pod(
            "two",
            asking("one", *HOLDS, count=1, memory=400),
            asking("other", *HOLDS, count=1, memory=700),
            container("none", *HOLDS, claim=""),
        )
    )
    wait_for(lambda: len(cluster.plane.grants()) == 2, 120, cluster.state)
    sizes = {each["vgpus"][0]["memory_mib"] for each in cluster.plane.grants()}
    assert sizes == {400, 700}
    uid = cluster.rig.get("pod", "two")["metadata"]["uid"]
    assert {each["container"]["pod"] for each in cluster.plane.sessions()} == {uid}
    assert len(cluster.parts_of_reservation()) == 2
    shown = {
        (each["namespace"], each["pod"], each["pod_uid"], each["container"])
        for each in cluster.pods_of_vgpus()
    }
    assert shown == {("default", "two", uid, "one"), ("default", "two", uid, "other")}


def test_sidecars_containers_that_begin_anew_and_several_vgpus(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    twice = "/bin/vector_add; test -e /data/x || { touch /data/x; exit 1; }"
    mounts = [{"name": "data", "mountPath": "/data"}]
    sidecar = asking("side", *HOLDS, count=1, memory=200, compute=5, restartPolicy="Always")
    cluster.apply(
        pod("pair", asking("cuda", "/bin/device_query", count=2, memory=300, compute=5)),
        pod(
            "again",
            asking("cuda", "/bin/sh", "-c", twice, count=1, memory=300, volumeMounts=mounts),
            restartPolicy="OnFailure",
            volumes=[{"name": "data", "emptyDir": {}}],
        ),
    )
    assert "devices" in cluster.finished("pair")
    assert "wrong 0" in cluster.finished("again")
    [status] = cluster.rig.get("pod", "again")["status"]["containerStatuses"]
    assert status["restartCount"] == 1
    beside = asking("cuda", "/bin/vector_add", count=1, memory=300, compute=5)
    cluster.apply(pod("beside", beside, initContainers=[sidecar]))
    assert "wrong 0" in cluster.finished("beside")
    gated = asking("cuda", "/bin/vector_add", count=1, memory=300, compute=5)
    long = "x" * 180
    cluster.apply(pod(long, gated, schedulingGates=[{"name": "example.com/later"}]))
    assert not cluster.parts_of_reservation() or cluster.phase(long) == "Pending"
    cluster.rig.kubectl("patch", "pod", long, "-p", '{"spec": {"schedulingGates": []}}', *MERGE)
    assert "wrong 0" in cluster.finished(long)
    first = asking("first", "/bin/vector_add", count=1)
    with pytest.raises(RigError, match="an init container cannot have"):
        cluster.apply(pod("wrong", beside, initContainers=[first]))
    for quantity in ("65", "-1", "1500m"):
        wrong = container("c", "true", claim="", resources={"limits": {VGPU: quantity}})
        with pytest.raises(RigError, match=f"{quantity}: give a whole number, 0 to 64"):
            cluster.apply(pod("wrong", wrong))


def test_a_pod_that_is_bound_is_not_bound_again_and_keeps_its_room(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    cluster.apply(
        pod("holds", asking("cuda", *HOLDS, count=1, memory=500)),
        pod("other", container("c", "/bin/sleep", "600", claim="")),
    )
    wait_for(lambda: cluster.plane.session_worker_pids(), 120, cluster.state)
    held = cluster.plane.session_worker_pids()
    uids = {name: cluster.rig.get("pod", name)["metadata"]["uid"] for name in ("holds", "other")}
    for name, uid, node, says in (
        ("holds", uids["holds"], NODE, ""),  # as a scheduler asks that did not hear the answer
        ("holds", uids["holds"], "elsewhere", "the pod is on node 127.0.0.1 already"),
        ("holds", uids["other"], NODE, "is another one now"),
        ("other", uids["other"], NODE, "the pod names no vGPU"),
        ("gone", uids["other"], NODE, "404"),
    ):
        asked = {"PodNamespace": "default", "PodName": name, "PodUID": uid, "Node": node}
        error = extended.ask("bind", asked)["Error"]
        assert says in error
        assert bool(error) == bool(says)
    assert cluster.plane.session_worker_pids() == held
    assert len(cluster.parts_of_reservation()) == 1


def test_another_pods_process_is_not_let_in(cluster: ClusterPool, extended: ExtendedPool) -> None:
    cluster.apply(pod("mine", asking("cuda", *HOLDS, count=1, memory=500)))
    wait_for(lambda: cluster.plane.session_worker_pids(), 120, cluster.state)
    [folder] = (cluster.folder / "run" / "claims").iterdir()
    volumes = [
        {"name": "stolen", "hostPath": {"path": str(folder / "socket")}},
        {"name": "bundle", "hostPath": {"path": str(cluster.bundle)}},
    ]
    thief = container(
        "cuda",
        "/bin/vector_add",
        claim="",
        env=[
            {"name": "LD_AUDIT", "value": "/opt/sluice/lib/libsluice-audit.so"},
            {"name": "SLUICE_CHANNEL", "value": "shm"},
        ],
        volumeMounts=[
            {"name": "stolen", "mountPath": "/run/sluice"},
            {"name": "bundle", "mountPath": "/opt/sluice"},
        ],
    )
    cluster.apply(pod("thief", thief, volumes=volumes))
    assert cluster.wait_for_phase("thief", "Succeeded", "Failed") == "Failed"
    assert "this process is in no container of pod default/mine" in cluster.rig.kubectl(
        "logs", "thief"
    )


def test_other_systems_words_are_read_where_they_are_to_be(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    theirs = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "600", "nvidia.com/gpucores": "15"}
    hami = container("cuda", "/bin/vector_add", claim="", resources={"limits": theirs})
    cluster.apply(pod("hami", hami))
    assert "wrong 0" in cluster.finished("hami")
    assert granted(cluster, 1) == {(600, 15, "kubernetes.default")}
    wrong = container("cuda", "true", claim="", resources={"limits": {"nvidia.com/gpumem": "1"}})
    wrong["resources"]["limits"]["nvidia.com/gpumem-percentage"] = "50"
    with pytest.raises(RigError, match=r"give nvidia\.com/gpumem in MiB"):
        cluster.apply(pod("wrong", wrong))


def test_without_cdi_mounts_and_variables_do(cluster: ClusterPool, extended: ExtendedPool) -> None:
    extended.restart("device-plugin", cdi=False)  # and so for the tests below
    cluster.apply(pod("mounts", asking("cuda", "/bin/vector_add", count=1, memory=500)))
    assert "wrong 0" in cluster.finished("mounts")
    assert not list(cluster.rig.cdi.glob("sluice-claim-*"))


def test_every_part_restarts_in_every_order_while_pods_come_and_work(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    cluster.apply(
        pod(
            "works",
            asking("cuda", *WORKS, count=1, memory=500),
            asking("holds", *HOLDS, count=1, memory=500),
        )
    )
    wait_for(lambda: held_sessions(cluster), 120, cluster.state)
    held = held_sessions(cluster)
    comes = {}
    parts = ("kubelet", "device-plugin", "extender", "sluice-controller")
    for number, part in enumerate(every_order(parts)):
        restart(cluster, part)
        if number % 6 == 5:
            still_works(cluster, "works")
            wait_for(extended.answers, 60, cluster.state)  # who makes a pod tries again
            name = f"comes-{number}"
            comes[name] = pod(name, asking("cuda", "/bin/vector_add", count=1, memory=500))
            cluster.apply(comes[name])
    for part in PARTS:
        extended.wait_for(part)
    restart(cluster, "sluice-server")
    still_works(cluster, "works")
    assert held_sessions(cluster) == held
    cluster.apply(pod("later", asking("cuda", "/bin/vector_add", count=1, memory=500)))
    assert "wrong 0" in cluster.finished("later")
    for name, made in comes.items():
        cluster.wait_for_phase(name, "Succeeded", "Failed")
        if cluster.rig.get("pod", name)["status"].get("reason") == "UnexpectedAdmissionError":
            # a kubelet that began anew was given it before the plugin was there: Kubernetes ends
            # such pods, of every device plugin, and whoever made them makes them again
            cluster.rig.kubectl("delete", "pod", name)
            cluster.apply(made)
        assert "wrong 0" in cluster.finished(name)


def test_a_node_that_is_gone_and_comes_back_has_its_pods_anew(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    """As ten minutes: its pod is evicted, and nobody there hears of it until it is back."""
    spec = pod("", asking("cuda", *HOLDS, count=1, memory=500), **LEAVES)["spec"]
    cluster.apply(job("moves", spec))
    wait_for(lambda: held_sessions(cluster), 120, cluster.state)
    [session] = held_sessions(cluster)
    [part] = cluster.parts_of_reservation()
    [first] = names_of_job(cluster, "moves")
    cluster.stop_part("device-plugin", signal.SIGKILL)
    cluster.rig.stop("kubelet")
    cluster.plane.stop("server", signal.SIGKILL)
    try:
        with second_node(cluster.rig):
            wait_for(lambda: is_leaving(cluster, first), 120, cluster.state)
        assert cluster.parts_of_reservation() == [part]  # it may be there still
    finally:
        cluster.rig.go_on("kubelet")
        cluster.plane.start_server()
        cluster.start_part("device-plugin")
    wait_for(lambda: held_sessions(cluster) not in ([], [session]), 180, cluster.state)
    assert first not in names_of_job(cluster, "moves")
    [later] = held_sessions(cluster)  # of the pod in its place
    assert later != session
    [kept] = cluster.parts_of_reservation()
    assert kept["owner"] != part["owner"]


def test_a_pod_that_is_killed_in_its_init_container_leaves_nothing(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    sidecar = asking("side", *HOLDS, count=1, memory=200, restartPolicy="Always")
    first = container("first", "/bin/sleep", "600", claim="")
    cluster.apply(
        pod(
            "inits",
            asking("cuda", "/bin/vector_add", count=1, memory=300),
            initContainers=[sidecar, first],
        )
    )
    wait_for(lambda: held_sessions(cluster), 120, cluster.state)
    # of the container that has not begun there is room as well, and it is nobody else's
    assert {p["slots"][0]["memory_mib"] for p in cluster.parts_of_reservation()} == {200, 300}
    assert cluster.phase("inits") == "Pending"
    cluster.rig.kubectl("delete", "pod", "inits", "--force", "--grace-period=0")
    # clear() looks for what is left


def test_two_namespaces_do_not_reach_each_others_grants(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    cluster.apply(pod("mine", asking("cuda", *HOLDS, count=1, memory=500)))
    wait_for(lambda: held_sessions(cluster), 120, cluster.state)
    [grant] = cluster.plane.grants()
    [record] = (cluster.folder / "run" / "claims").glob("*/claim.json")
    token = json.loads(record.read_text())["job"]
    env = [{"name": "SLUICE_JOB", "value": token}, {"name": "SLUICE_WAIT", "value": "0"}]
    theirs = pod("theirs", asking("cuda", "/bin/vector_add", count=1, memory=300, env=env))
    kubectl = cluster.rig.kubectl
    if not cluster.rig.try_kubectl("get", "namespace", "green"):
        kubectl("create", "namespace", "green")
    kubectl("-n", "green", "apply", "-f", "-", stdin=json.dumps(theirs))
    try:
        cluster.wait_for_phase("theirs", "Succeeded", "Failed", namespace="green")
        # whatever became of its program, it is in no grant of another's, and its own has ended
        wait_for(
            lambda: [each["id"] for each in cluster.plane.grants()] == [grant["id"]],
            60,
            cluster.state,
        )
        of_grant = [s for s in cluster.plane.sessions("all") if s["grant_id"] == grant["id"]]
        assert len(of_grant) == 1
        # and on its own account and of its own size
        ended = cluster.plane.rest.get("/grants", params={"state": "all"}).json()["grants"]
        own = [each for each in ended if each["project"] == "kubernetes.green"]
        assert all(each["vgpus"][0]["memory_mib"] == 300 for each in own)
    finally:
        kubectl("-n", "green", "delete", "pod", "--all", "--timeout=120s")


def test_nobody_is_evicted_for_a_vgpu(cluster: ClusterPool, extended: ExtendedPool) -> None:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    cluster.apply({**kind, "metadata": {"name": "first-of-all"}, "value": 1_000_000})
    holds = [f"holds-{number}" for number in range(4)]
    cluster.apply(*(pod(n, asking("cuda", *HOLDS, count=1, memory=100)) for n in holds))
    wait_for(lambda: len(held_sessions(cluster)) == 4, 120, cluster.state)
    computes = asking("cuda", "/bin/vector_add", count=1, memory=100)
    cluster.apply(pod("urgent", computes, priorityClassName="first-of-all"))
    wait_for(lambda: extended.why_not_scheduled("urgent"), 60, cluster.state)
    assert "Insufficient sluice.io/vgpu" in extended.why_not_scheduled("urgent")
    assert all(not is_leaving(cluster, name) for name in holds)
    assert len(held_sessions(cluster)) == 4
    cluster.rig.kubectl("delete", "pod", holds[0])
    assert "wrong 0" in cluster.finished("urgent")


def test_what_is_queued_or_over_its_quota_takes_nothing_of_the_pool(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    """What a queue of jobs, such as Kueue, needs: suspended jobs, and quotas that count sizes."""
    kind = {"apiVersion": "v1", "kind": "ResourceQuota"}
    hard = {"requests.sluice.io/vgpu": "2", "requests.sluice.io/vgpu-memory-mib": "900"}
    cluster.apply({**kind, "metadata": {"name": "vgpus"}, "spec": {"hard": hard}})
    quota = ("resourcequota", "vgpus")
    try:
        wait_for(lambda: "used" in cluster.rig.get(*quota)["status"], 60, cluster.state)
        computes = pod("", asking("cuda", "/bin/vector_add", count=1, memory=500))["spec"]
        cluster.apply(job("queued", computes, suspend=True))
        holds = pod("holds", asking("cuda", *HOLDS, count=1, memory=500))
        cluster.apply(holds)
        wait_for(lambda: held_sessions(cluster), 120, cluster.state)
        with pytest.raises(RigError, match=r"exceeded quota.*vgpu-memory-mib=500"):
            cluster.apply({**holds, "metadata": {"name": "beyond"}})
        used = cluster.rig.get(*quota)["status"]["used"]
        assert used["requests.sluice.io/vgpu-memory-mib"] == "500"
        [part] = cluster.parts_of_reservation()  # and our own books say the same
        assert [slot["memory_mib"] for slot in part["slots"]] == [500]
        assert names_of_job(cluster, "queued") == []
        cluster.rig.kubectl("delete", "pod", "holds")
        cluster.rig.kubectl("patch", "job", "queued", "-p", '{"spec": {"suspend": false}}', *MERGE)
        succeeded = lambda: cluster.rig.get("job", "queued")["status"].get("succeeded")  # noqa: E731
        wait_for(succeeded, 120, cluster.state)
    finally:
        cluster.rig.kubectl("delete", *quota)


def test_more_pods_than_there_is_room_for_are_all_served(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    computes = asking("cuda", "/bin/vector_add", count=1, memory=1800, compute=40)
    served_job(cluster, PODS // 2, pod("", computes)["spec"])  # two at a time


def test_a_webhook_that_is_down_stops_no_pod_without_vgpus(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    cluster.stop_part("extender", signal.SIGKILL)
    cluster.apply(pod("plain", container("c", "/bin/true", claim="")))
    cluster.wait_for_phase("plain", "Succeeded")
    wants = pod("wants", asking("cuda", "/bin/vector_add", memory=500))
    with pytest.raises(RigError, match="failed calling webhook"):
        cluster.apply(wants)
    cluster.start_part("extender")
    extended.wait_for("extender")
    cluster.apply(wants)
    assert "wrong 0" in cluster.finished("wants")


def test_the_parts_may_do_what_they_need_and_nothing_else(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    rights = {
        "sluice:sluice-extender": {"list pods", "watch nodes", "patch pods", "create pods/binding"},
        "sluice-node:sluice-device-plugin": {"get pods"},
    }
    others = {"get secrets", "create pods", "delete pods", "patch nodes", "patch nodes/status"}
    for account, may in rights.items():
        can = rights_of(cluster, account, others.union(*rights.values()))
        assert can - {"get pods"} == may - {"get pods"}  # the extender gets what it lists
        assert may <= can
