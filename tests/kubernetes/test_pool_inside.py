# SPDX-License-Identifier: Apache-2.0
"""The pool's controller inside a cluster, as kubernetes/manifests/pool.yaml has it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.kubernetes.pages import MANIFESTS
from tests.kubernetes.service_image import load
from tests.kubernetes.waits import wait_for
from tests.rigs.kubernetes.rig import KubernetesRig

pytestmark = pytest.mark.kubernetes

POOL = str(MANIFESTS / "pool.yaml")
USER = 64200
POD = ("-n", "sluice", "pod", "sluice-pool-0")
PODS = ("-n", "sluice", "pods", "--field-selector", "metadata.name=sluice-pool-0")


@pytest.fixture
def volume(rig: KubernetesRig, tmp_path: Path) -> Iterator[Path]:
    """What a provisioner makes for the store."""
    folder = tmp_path / "store"
    folder.mkdir()
    os.chown(folder, USER, USER)
    spec = {
        "capacity": {"storage": "2Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(folder)},
        "claimRef": {"namespace": "sluice", "name": "store-sluice-pool-0"},
    }
    made = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "pool"},
        "spec": spec,
    }
    rig.kubectl("apply", "-f", "-", stdin=json.dumps(made))
    try:
        yield folder
    finally:
        rig.kubectl("delete", "--ignore-not-found", "-f", POOL, "--timeout=120s")
        rig.kubectl("-n", "sluice", "delete", "--ignore-not-found", "pvc", "--all")
        rig.kubectl("delete", "--ignore-not-found", "persistentvolume", "pool", "--timeout=60s")


def address(rig: KubernetesRig) -> str:
    """Where the pod's REST is, once it is ready."""
    words = ("rollout", "status", "statefulset/sluice-pool", "--timeout=180s")
    rig.kubectl("-n", "sluice", *words)
    return f"http://{rig.get(*POD)['status']['podIP']}:9123/v1"


def uids(rig: KubernetesRig) -> list[str]:
    """Of the controller's pod; none in the moment in which there is none."""
    return [each["metadata"]["uid"] for each in rig.get(*PODS)["items"]]


def first_token(rig: KubernetesRig) -> str:
    """The admin token that it prints once."""
    said = rig.kubectl("-n", "sluice", "logs", "sluice-pool-0")
    found = re.search(r"^ +(sluice_\S+)$", said, re.MULTILINE)
    return found[1] if found else ""


def test_a_pool_inside_a_cluster_keeps_what_it_has(rig: KubernetesRig, volume: Path) -> None:
    """It is a pod that Pod Security `restricted` admits, and another one in its place goes on."""
    load(rig)
    rig.kubectl("apply", "-f", POOL)
    first = address(rig)
    admin = {"Authorization": f"Bearer {wait_for(lambda: first_token(rig), 60)}"}
    assert httpx.get(f"{first}/quotas").status_code == 401
    quota = {"memory_mib": 600}
    put = httpx.put(f"{first}/quotas/kubernetes.red", json=quota, headers=admin)
    assert put.status_code < 300, put.text
    before = uids(rig)
    rig.kubectl("-n", "sluice", "delete", "pod", "sluice-pool-0")
    wait_for(lambda: uids(rig) not in ([], before), 60)
    kept = httpx.get(f"{address(rig)}/quotas/kubernetes.red", headers=admin)
    assert kept.json()["memory_mib"] == 600
    assert (volume / "controller.db").exists()
