# SPDX-License-Identifier: Apache-2.0
"""The node's part and sluice-server as DaemonSets, which are updated while a pod computes.

As kubernetes/manifests/node.yaml and server.yaml have them, but for the rig's folders, its software
GPU, and how its pods reach the API server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.kubernetes.cluster_pool import ClusterPool, container, pod
from tests.kubernetes.pages import MANIFESTS
from tests.kubernetes.pages import pods as own_pods
from tests.kubernetes.waits import wait_for
from tests.kubernetes.work import counting, goes_on_counting
from tests.rigs.kubernetes.rig import NODE

pytestmark = pytest.mark.kubernetes

RUN = "/run/sluice"


def in_namespace(kind: str, name: str, **data: str) -> dict[str, Any]:
    """A ConfigMap, or a Secret."""
    metadata = {"name": name, "namespace": "sluice-node"}
    field = "data" if kind == "ConfigMap" else "stringData"
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, field: data}


def settings(cluster: ClusterPool) -> list[dict[str, Any]]:
    """What the manifests leave to the operator."""
    token, node_token = (
        (cluster.folder / name).read_text() for name in ("cluster.token", "node.token")
    )
    conf = f"""[log]
log_to_file = false
[controller]
addresses = {cluster.addresses}
token_file = /etc/sluice-token/token
[kubernetes]
label = kubernetes
project = kubernetes
[node]
bundle = {cluster.bundle}
server_run_dir = {cluster.folder}/run
"""
    return [
        in_namespace("ConfigMap", "sluice-kubernetes", **{"kubernetes.conf": conf}),
        in_namespace("ConfigMap", "sluice-environment", **cluster.rig.api_place),
        in_namespace("Secret", "sluice-cluster-token", token=token),
        in_namespace("Secret", "sluice-node-tokens", **{NODE: node_token}),
    ]


def manifest(cluster: ClusterPool, name: str) -> list[dict[str, Any]]:
    """One of the manifests, with the folders of the rig."""
    found = [each for each in yaml.safe_load_all((MANIFESTS / name).read_text()) if each]
    places = {
        RUN: str(cluster.folder / "run"),
        "/var/lib/sluice-server": str(cluster.folder / "state"),
        "/var/run/cdi": str(cluster.rig.cdi),
    }
    for each in found:
        if each["kind"] == "ConfigMap":
            text = each["data"]["server.conf"].replace(
                "sluice-pool.sluice.svc:9123",
                f"127.0.0.1:{cluster.plane.rest_port}\n"
                f"    grpc_addr = 127.0.0.1:{cluster.plane.grpc_port}",
            )
            own = {"driver": "softgpu", "node_name": NODE, "enable_kvm": "false"}
            own["run_dir"] = places[RUN]
            lines = "".join(f"    {name} = {value}\n" for name, value in own.items())
            each["data"]["server.conf"] = f"{text}[server]\n{lines}"
        else:
            spec = each["spec"]["template"]["spec"]
            for volume in spec["volumes"]:
                if where := volume.get("hostPath"):
                    where["path"] = places.get(where["path"], where["path"])
            for mount in spec["containers"][0]["volumeMounts"]:
                if mount["mountPath"] == RUN:  # the container runtime is told of it, too
                    mount["mountPath"] = places[RUN]
    return found


@pytest.fixture
def in_pods(cluster: ClusterPool, service_image: None) -> Iterator[ClusterPool]:
    """The node's part and the server are DaemonSets, and the processes beside it are gone."""
    rig = cluster.rig
    cluster.stop_part("node")
    cluster.plane.stop("server")
    objects = [
        *settings(cluster),
        *manifest(cluster, "server.yaml"),
        *manifest(cluster, "node.yaml"),
    ]
    cluster.apply(*objects)
    rig.kubectl("label", "node", NODE, "sluice.io/server=true")
    try:
        for name in ("sluice-server", "sluice-node"):
            rolled_out(cluster, name)
        wait_for(lambda: cluster.plane.node_state() == "up", 120, cluster.state)
        yield cluster
        cluster.clear()
    finally:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        for words in (
            ("daemonset,pod", "--all", "-n", "sluice-node", "--grace-period=2"),
            ("-f", "-"),
        ):
            rig.kubectl("delete", "--ignore-not-found", *words, "--timeout=120s", stdin=text)
        rig.try_kubectl("label", "node", NODE, "sluice.io/server-")
        cluster.plane.start_server()
        cluster.start_part("node")
        cluster.wait_for_slices()


def rolled_out(cluster: ClusterPool, name: str) -> None:
    words = ("-n", "sluice-node", "rollout", "status", f"daemonset/{name}", "--timeout=90s")
    assert cluster.rig.try_kubectl(*words), own_pods(cluster)


def test_an_update_ends_no_session(in_pods: ClusterPool) -> None:
    counting(in_pods, "counts")
    [session] = [each["id"] for each in in_pods.plane.sessions("running")]
    for name in ("sluice-node", "sluice-server"):
        [before] = uids(in_pods, name)
        in_pods.rig.kubectl("-n", "sluice-node", "rollout", "restart", f"daemonset/{name}")
        wait_for(lambda name=name, old=before: uids(in_pods, name) not in ([], [old]), 120)
        rolled_out(in_pods, name)
        goes_on_counting(in_pods, "counts")
        wait_for(lambda: in_pods.plane.node_state() == "up", 60, in_pods.state)
        comes = container("cuda", "/bin/vector_add")
        in_pods.apply(pod(f"comes-{name}", comes, claim_template="small"))
        assert "wrong 0" in in_pods.finished(f"comes-{name}")
        assert session in [each["id"] for each in in_pods.plane.sessions("running")]
    goes_on_counting(in_pods, "counts")


def uids(cluster: ClusterPool, name: str) -> list[str]:
    """Of the pods of a DaemonSet."""
    words = ("-n", "sluice-node", "pods", "-l", f"app.kubernetes.io/name={name}")
    return [each["metadata"]["uid"] for each in cluster.rig.get(*words)["items"]]
