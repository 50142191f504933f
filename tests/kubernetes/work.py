# SPDX-License-Identifier: Apache-2.0
"""Pods that work while tests take things away, and how it is seen that they do.

Used by the tests of what a cluster does to a pool, with DRA and without.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Any

from tests.kubernetes.cluster_pool import ClusterPool, container, pod, template
from tests.kubernetes.waits import wait_for

#: Adds two vectors, says so, and waits a little, for ever: its sessions come and go. A program that
#: begins while there is no server has no vGPU, and is begun anew.
WORKS = ("sh", "-c", "while :; do /bin/vector_add; sleep 0.3; done")
#: Has one session, which is to outlive what is restarted.
HOLDS = ("/bin/hold_vgpu", "600")
#: Counts on the device in one session: a round that went wrong, or a session that ended, ends it.
COUNTS = ("/bin/counts", "0", "100")
#: A pod that leaves a node which is gone at once, and not after five minutes.
LEAVES = {
    "tolerations": [
        {
            "key": f"node.kubernetes.io/{key}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 1,
        }
        for key in ("not-ready", "unreachable")
    ]
}
#: The API groups of what rights are asked for; the others are of the core's.
GROUPS = dict.fromkeys(("resourceclaims", "resourceslices", "deviceclasses"), "resource.k8s.io")
PODS = int(os.environ.get("SLUICE_KUBERNETES_PODS", "12"))


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


def restart(cluster: ClusterPool, part: str) -> None:
    """Kills a part of Sluice's or of the cluster's, and has it begin anew."""
    kill = signal.SIGKILL
    if part in cluster.parts:
        cluster.stop_part(part, kill)
        cluster.start_part(part)
    elif part == "sluice-controller":
        cluster.plane.stop("controller", kill)
        cluster.plane.start_controller()
    elif part == "sluice-server":
        cluster.plane.stop("server", kill)
        cluster.plane.start_server()
    else:
        cluster.rig.restart(part)


def held_sessions(cluster: ClusterPool) -> list[str]:
    running = cluster.plane.sessions("running")
    return [each["id"] for each in running if each["program"] == "hold_vgpu"]


def still_works(cluster: ClusterPool, name: str) -> None:
    """It says of more additions than before that they are right."""
    before = additions(cluster, name)
    wait_for(lambda: additions(cluster, name) > before + 1, 180, cluster.state)
    assert cluster.phase(name) == "Running"


def additions(cluster: ClusterPool, name: str) -> int:
    log = cluster.rig.log_of(name, "cuda")
    assert "wrong" not in log.replace("wrong 0", "")
    return log.count("wrong 0")


def counting(cluster: ClusterPool, name: str, **more: Any) -> dict[str, Any]:
    """A pod that counts, once it does."""
    cluster.apply(
        template("small", "500Mi", "10"),
        pod(name, container("cuda", *COUNTS), claim_template="small", **more),
    )
    wait_for(lambda: counted(cluster, name), 180, cluster.state)
    found: dict[str, Any] = cluster.rig.get("pod", name)
    return found


def counted(cluster: ClusterPool, name: str) -> int:
    """How far it has counted; it counts right, and from the beginning only once."""
    lines = cluster.rig.log_of(name, "cuda").splitlines()
    assert lines == [f"count {number}, wrong 0" for number in range(1, len(lines) + 1)]
    return len(lines)


def goes_on_counting(cluster: ClusterPool, name: str) -> None:
    """It does, in the same container."""
    before = counted(cluster, name)
    wait_for(lambda: counted(cluster, name) > before + 2, 180, cluster.state)
    status = cluster.rig.get("pod", name)["status"]
    assert [each["restartCount"] for each in status["containerStatuses"]] == [0]


def job(name: str, pod_spec: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A Job."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**spec, "template": {"spec": pod_spec}},
    }


def names_of_job(cluster: ClusterPool, name: str) -> list[str]:
    """The pods of a Job."""
    listed = cluster.rig.get("pods", "-l", f"job-name={name}")["items"]
    return [each["metadata"]["name"] for each in listed]


def is_leaving(cluster: ClusterPool, name: str) -> bool:
    """Whether a pod is to end, and is there still."""
    return bool(cluster.rig.get("pod", name)["metadata"].get("deletionTimestamp"))


def served_job(cluster: ClusterPool, pods: int, spec: dict[str, Any]) -> None:
    """A job of so many pods at once is served, and the pool never gives more than is reserved."""
    cluster.apply(job("many", spec, completions=pods, parallelism=pods, backoffLimit=0))

    def finished() -> bool:
        parts = cluster.parts_of_reservation()
        held = [slot for part in parts for slot in part["slots"]]
        assert sum(slot["memory_mib"] for slot in held) <= 3600
        assert sum(slot["compute_percent"] for slot in held) <= 80
        status = cluster.rig.get("job", "many")["status"]
        assert not status.get("failed"), cluster.state()
        return bool(status.get("succeeded") == pods)

    wait_for(finished, 60 + 20 * pods, cluster.state)
    logs = cluster.rig.kubectl("logs", "-l", "job-name=many", "--tail=-1", "--max-log-requests=500")
    assert logs.count("wrong 0") == pods


def rights_of(cluster: ClusterPool, account: str, asked: Iterable[str]) -> set[str]:
    """Which of these a service account (NAMESPACE:NAME) has, each `VERB RESOURCE[/PART]`."""
    found = set()
    for right in asked:
        verb, _, resource = right.partition(" ")
        name, _, part = resource.partition("/")
        if cluster.rig.may(account, verb, name, part, GROUPS.get(name, "")):
            found.add(right)
    return found
