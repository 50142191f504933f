# SPDX-License-Identifier: Apache-2.0
"""Kueue's own manager and the pool: a Job waits suspended for quota, and then for room as a pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from walkthrough import Walkthrough

from tests.kubernetes.cluster_pool import CUDA_IMAGE, ClusterPool, container, pod, template
from tests.kubernetes.pages import PAGE, shell
from tests.kubernetes.waits import wait_for
from tests.kubernetes.work import HOLDS, held_sessions, job, names_of_job
from tests.rigs.kubernetes.kueue import kueue

pytestmark = pytest.mark.kubernetes

QUEUE = "vgpus"
#: As docs/kubernetes.md has it for Jobs with claims.
SETTINGS = {
    "featureGates": {"DynamicResourceAllocation": True, "VisibilityOnDemand": False},
    "resources": {
        "deviceClassMappings": [{"name": "sluice.io/vgpu", "deviceClassNames": ["vgpu.sluice.io"]}]
    },
}
SLICE = {"resources": {"limits": {"sluice.io/vgpu": "1"}}}


@pytest.fixture(scope="module")
def queued(cluster: ClusterPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterPool]:
    """Kueue runs, and the page's queue is there: its Job has been through it."""
    with kueue(cluster.rig, SETTINGS):
        run = shell(cluster, tmp_path_factory.mktemp("home"))
        Walkthrough(PAGE, "Jobs in a queue: Kueue").follow({"cluster": run}, {"IMAGE": CUDA_IMAGE})
        yield cluster


def in_queue(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A Job of one pod in the page's queue."""
    made = job(name, spec)
    made["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": QUEUE}
    return made


def is_suspended(cluster: ClusterPool, name: str) -> bool:
    return bool(cluster.rig.get("job", name)["spec"].get("suspend"))


def why_not(cluster: ClusterPool, name: str) -> str:
    """What Kueue says of why a Job waits."""
    listed = json.loads(cluster.rig.kubectl("get", "workloads.kueue.x-k8s.io", "-o", "json"))
    for each in listed["items"]:
        if each["metadata"]["ownerReferences"][0]["name"] == name:
            for condition in each.get("status", {}).get("conditions", ()):
                if condition["type"] == "QuotaReserved" and condition["status"] == "False":
                    return str(condition["message"])
    return ""


def succeeds(cluster: ClusterPool, name: str) -> None:
    """With a vGPU that computes."""
    wait_for(lambda: cluster.rig.get("job", name)["status"].get("succeeded"), 180, cluster.state)
    assert "wrong 0" in cluster.rig.kubectl("logs", f"job/{name}")


def waits_for_quota(cluster: ClusterPool, first: dict[str, Any], second: dict[str, Any]) -> None:
    """The second is suspended, has no pods and takes nothing until the first is gone."""
    cluster.apply(in_queue("first", first))
    wait_for(lambda: held_sessions(cluster), 180, cluster.state)
    parts = cluster.parts_of_reservation()
    cluster.apply(in_queue("second", second))
    wait_for(lambda: why_not(cluster, "second"), 60, cluster.state)
    assert "insufficient unused quota for sluice.io/vgpu" in why_not(cluster, "second")
    assert is_suspended(cluster, "second")
    assert names_of_job(cluster, "second") == []
    assert cluster.parts_of_reservation() == parts
    cluster.rig.kubectl("delete", "job", "first")
    succeeds(cluster, "second")


def test_a_job_waits_suspended_until_quota_is_free(queued: ClusterPool) -> None:
    slices = [
        container("cuda", *words, claim="", **SLICE) for words in (HOLDS, ["/bin/vector_add"])
    ]
    waits_for_quota(queued, *(pod("", each)["spec"] for each in slices))


def test_a_job_with_a_claim_counts_where_kueue_is_told_of_the_class(queued: ClusterPool) -> None:
    queued.apply(template("small", "500Mi", "10"))
    both = [container("cuda", *words) for words in (HOLDS, ["/bin/vector_add"])]
    waits_for_quota(queued, *(pod("", each, claim_template="small")["spec"] for each in both))


def test_a_job_that_kueue_lets_go_without_room_is_pending_and_takes_nothing(
    queued: ClusterPool,
) -> None:
    more = '[{"op": "replace", "path": "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"'
    more += ', "value": 4}]'
    queued.rig.kubectl("patch", "clusterqueue", QUEUE, "--type=json", "-p", more)
    queued.apply(template("small", "500Mi", "10"), template("rest", "3200Mi", "20"))
    holds, computes = container("cuda", *HOLDS), container("cuda", "/bin/vector_add")
    queued.apply(in_queue("first", pod("", holds, claim_template="small")["spec"]))
    wait_for(lambda: held_sessions(queued), 180, queued.state)
    parts = queued.parts_of_reservation()
    queued.apply(in_queue("second", pod("", computes, claim_template="rest")["spec"]))
    wait_for(lambda: names_of_job(queued, "second"), 60, queued.state)
    assert not is_suspended(queued, "second")
    [name] = names_of_job(queued, "second")
    wait_for(lambda: queued.reasons(name), 60, queued.state)
    assert "wants 1 vGPU(s) of 3200 MiB" in queued.reasons(name)[0]
    assert queued.phase(name) == "Pending"
    assert queued.parts_of_reservation() == parts
    queued.rig.kubectl("delete", "job", "first")
    succeeds(queued, "second")
