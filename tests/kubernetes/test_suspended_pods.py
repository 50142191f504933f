# SPDX-License-Identifier: Apache-2.0
"""A pod whose vGPU is suspended stays where it is, keeps its claim, says so, and goes on."""

from __future__ import annotations

import signal

import pytest

from tests.kubernetes.cluster_pool import ClusterPool, container, pod, template
from tests.kubernetes.waits import wait_for
from tests.kubernetes.work import counted, counting, goes_on_counting, restart

pytestmark = pytest.mark.kubernetes


def order(cluster: ClusterPool, grant: str, what: str) -> None:
    """As `sluice grant suspend` and `resume` do."""
    answer = cluster.plane.rest.post(f"/grants/{grant}/{what}")
    assert answer.status_code == 202, answer.text


def state(cluster: ClusterPool, grant: str) -> str:
    """Of its suspension; "": it runs."""
    found = cluster.plane.rest.get(f"/grants/{grant}").json()
    assert found["state"] == "live", found
    return found["suspension"]["state"] if found["suspension"] else ""


def suspend(cluster: ClusterPool, grant: str) -> None:
    order(cluster, grant, "suspend")
    wait_for(lambda: state(cluster, grant) == "suspended", 120, cluster.state)


def resume(cluster: ClusterPool, grant: str) -> None:
    order(cluster, grant, "resume")
    wait_for(lambda: not state(cluster, grant), 120, cluster.state)


def reasons(cluster: ClusterPool, name: str) -> list[str]:
    return [reason for reason, _ in cluster.told(name)]


def test_a_suspended_pod_stays_bound_keeps_its_claim_and_goes_on(cluster: ClusterPool) -> None:
    before = counting(cluster, "counts")
    [grant] = [each["id"] for each in cluster.plane.grants()]
    parts, slices = cluster.parts_of_reservation(), cluster.slices()
    suspend(cluster, grant)
    stands_at = counted(cluster, "counts")
    wait_for(lambda: reasons(cluster, "counts") == ["VGPUSuspended"], 60, cluster.state)
    [(_, said)] = cluster.told("counts")
    assert "suspended by the operator" in said
    assert f"sluice grant resume {grant}" in said
    # two that need more than is reserved beside it find none, as its claim is allocated still
    cluster.apply(template("rest", "3200Mi", "20"), template("small", "500Mi", "10"))
    wants = container("cuda", "/bin/vector_add")
    cluster.apply(pod("waits", wants, claim_template="rest"))
    cluster.apply(pod("fits", wants, claim_template="small"))
    assert "wrong 0" in cluster.finished("fits")
    wait_for(lambda: cluster.reasons("waits"), 60, cluster.state)
    assert cluster.phase("waits") == "Pending"
    assert cluster.parts_of_reservation()[:1] != []
    kept = [each for each in cluster.parts_of_reservation() if each["id"] == parts[0]["id"]]
    assert [each["slots"] for each in kept] == [parts[0]["slots"]]
    assert cluster.slices() == slices
    now = cluster.rig.get("pod", "counts")
    assert (now["metadata"]["uid"], now["spec"]["nodeName"], now["status"]["phase"]) == (
        *(before["metadata"]["uid"], before["spec"]["nodeName"], "Running"),
    )
    assert counted(cluster, "counts") == stands_at
    cluster.rig.kubectl("delete", "pod", "waits", "--grace-period=1")
    resume(cluster, grant)
    goes_on_counting(cluster, "counts")
    wait_for(
        lambda: reasons(cluster, "counts") == ["VGPUSuspended", "VGPUResumed"], 60, cluster.state
    )


def test_a_suspended_pod_outlives_restarts_and_is_told_what_was_missed(
    cluster: ClusterPool,
) -> None:
    counting(cluster, "lasts")
    [grant] = [each["id"] for each in cluster.plane.grants()]
    cluster.stop_part("controller", signal.SIGKILL)
    suspend(cluster, grant)
    for part in ("kubelet", "node", "sluice-controller", "sluice-server"):
        restart(cluster, part)
    cluster.start_part("controller")
    wait_for(lambda: reasons(cluster, "lasts") == ["VGPUSuspended"], 60, cluster.state)
    wait_for(lambda: state(cluster, grant) == "suspended", 60, cluster.state)
    resume(cluster, grant)
    goes_on_counting(cluster, "lasts")


def test_a_suspended_pod_that_is_deleted_leaves_nothing(cluster: ClusterPool) -> None:
    counting(cluster, "leaves")
    [grant] = [each["id"] for each in cluster.plane.grants()]
    suspend(cluster, grant)
    cluster.rig.kubectl("delete", "pod", "leaves", "--timeout=60s")
    # clear() looks for what is left
