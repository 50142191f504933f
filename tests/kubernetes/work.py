# SPDX-License-Identifier: Apache-2.0
"""Pods that work while tests take things away, and how it is seen that they do.

Used by the tests of what a cluster does to a pool, with DRA and without.
"""

from __future__ import annotations

import os
from typing import Any

from control_plane import wait_for

from tests.kubernetes.cluster_pool import ClusterPool, container, pod, template

#: Adds two vectors, says so, and waits a little, for ever: its sessions come and go. A program that
#: begins while there is no server has no vGPU, and is begun anew.
WORKS = ("sh", "-c", "while :; do /bin/vector_add; sleep 0.3; done")
#: Has one session, which is to outlive what is restarted.
HOLDS = ("/bin/hold_vgpu", "600")
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


def served_job(cluster: ClusterPool, pods: int, spec: dict[str, Any]) -> None:
    """A job of so many pods at once is served, and the pool never gives more than is reserved."""
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "many"},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "backoffLimit": 0,
            "template": {"spec": spec},
        },
    }
    cluster.apply(job)

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
