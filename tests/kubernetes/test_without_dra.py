# SPDX-License-Identifier: Apache-2.0
"""Pods of a cluster without DRA ask by extended resources, and compute on what the pool gives."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest
from control_plane import wait_for

from tests.kubernetes.chart import in_rig, rendered
from tests.kubernetes.cluster_pool import (
    COMPUTE_PERCENT,
    LABEL,
    MEMORY_MIB,
    ClusterPool,
    container,
    pod,
)
from tests.kubernetes.extended_pool import (
    MANIFESTS,
    PARTS,
    SPELLINGS,
    SPELT,
    VGPU,
    ExtendedPool,
    asking,
    log_of,
)
from tests.kubernetes.work import HOLDS, PODS, WORKS, held_sessions, served_job, still_works
from tests.rigs.kubernetes.rig import NODE, RigError

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


def test_every_part_restarts_while_a_pod_works(
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
    kill = signal.SIGKILL
    for part in ("extender", "device-plugin"):
        cluster.stop_part(part, kill)
        cluster.start_part(part)
        still_works(cluster, "works")
    cluster.plane.stop("server", kill)
    cluster.plane.start_server()
    still_works(cluster, "works")
    cluster.plane.stop("controller", kill)
    cluster.plane.start_controller()
    said = "the kubelet has registered sluice.io/vgpu"
    before = log_of(cluster, "device-plugin").count(said)
    cluster.rig.end("kubelet", kill)
    wait_for(lambda: log_of(cluster, "device-plugin").count(said) > before, 60, cluster.state)
    extended.wait_for("device-plugin")
    still_works(cluster, "works")
    assert held_sessions(cluster) == held
    cluster.apply(pod("later", asking("cuda", "/bin/vector_add", count=1, memory=500)))
    assert "wrong 0" in cluster.finished("later")


def test_more_pods_than_there_is_room_for_are_all_served(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    computes = asking("cuda", "/bin/vector_add", count=1, memory=1800, compute=40)
    served_job(cluster, PODS // 2, pod("", computes)["spec"])  # two at a time


def test_a_webhook_that_is_down_stops_no_pod_without_vgpus_and_the_charts_pods_take_over(
    cluster: ClusterPool, extended: ExtendedPool, service_image: None
) -> None:
    """As `helm install` makes them, with the rights and the confinement that they have."""
    for part in PARTS:
        cluster.stop_part(part, signal.SIGKILL)
    cluster.apply(pod("plain", container("c", "/bin/true", claim="")))
    cluster.wait_for_phase("plain", "Succeeded")
    wants = pod("wants", asking("cuda", "/bin/vector_add", memory=500))
    with pytest.raises(RigError, match="failed calling webhook"):
        cluster.apply(wants)
    objects = rendered(
        mode="extended-resources",
        controllerAddresses=f"127.0.0.1:{cluster.plane.rest_port}",
        tokens__cluster=(cluster.folder / "cluster.token").read_text(),
        tokens__viewer=(cluster.folder / "viewer.token").read_text(),
        settings={"spellings": SPELLINGS, "label": LABEL, "project": LABEL},
        paths__run=str(cluster.folder / "run"),
        paths__cdi=str(cluster.rig.cdi),
        paths__bundle=str(cluster.bundle),
        extender__caBundle=extended.ca_bundle(),
        extender__otherResources=SPELT,
    )
    installed = [in_rig(each) for each in objects if each["kind"] != "MutatingWebhookConfiguration"]
    kubectl = cluster.rig.kubectl
    kubectl("label", "node", NODE, "sluice.io/server=true")
    secret = ("-n", "sluice", "create", "secret", "tls", "sluice-extender-tls")
    tls = cluster.folder / "tls"
    try:
        for namespace in ("sluice", "sluice-node"):
            level = "pod-security.kubernetes.io/enforce=privileged"  # of the node's network
            kubectl("label", "--overwrite", "namespace", namespace, level)
        kubectl(*secret, f"--cert={tls}/tls.crt", f"--key={tls}/tls.key")
        installed = [each for each in installed if each["kind"] != "Namespace"]
        cluster.apply(*installed)
        extended.move_to(9443)
        for kind, name in (("daemonset", "device-plugin"), ("deployment", "extender")):
            namespace = "sluice-node" if kind == "daemonset" else "sluice"
            words = ("rollout", "status", f"{kind}/sluice-{name}", "--timeout=120s")
            kubectl("-n", namespace, *words)
        extended.wait_for("extender")
        cluster.apply(wants)
        assert "wrong 0" in cluster.finished("wants")
        claims = cluster.folder / "run" / "claims"
        wait_for(lambda: not list(claims.glob("*")), 60, cluster.state)
        wait_for(lambda: not cluster.parts_of_reservation(), 60, cluster.state)
    finally:
        kept = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding")
        listed = [each for each in installed if each["kind"] not in kept]
        gone = json.dumps({"apiVersion": "v1", "kind": "List", "items": listed})
        kubectl("delete", "--ignore-not-found", "--cascade=foreground", "-f", "-", stdin=gone)
        kubectl("-n", "sluice", "delete", "--ignore-not-found", "secret", "sluice-extender-tls")
        kubectl("apply", "-f", str(MANIFESTS / "namespaces.yaml"))
        kubectl("label", "node", NODE, "sluice.io/server-")


def test_the_parts_may_do_what_they_need_and_nothing_else(
    cluster: ClusterPool, extended: ExtendedPool
) -> None:
    rights = {
        "sluice:sluice-extender": {"list pods", "watch nodes", "patch pods", "create pods/binding"},
        "sluice-node:sluice-device-plugin": {"get pods"},
    }
    others = {"get secrets", "create pods", "delete pods", "patch nodes", "patch nodes/status"}
    every = others.union(*rights.values())
    for account, may in rights.items():
        whose = f"--as=system:serviceaccount:{account}"
        can = {
            right
            for right in every
            if cluster.rig.try_kubectl("auth", "can-i", "-A", whose, *_resource(right))
        }
        assert can - {"get pods"} == may - {"get pods"}  # the extender gets what it lists
        assert may <= can


def _resource(right: str) -> list[str]:
    verb, resource = right.split()
    name, _, part = resource.partition("/")
    return [verb, name, *([f"--subresource={part}"] if part else [])]
