# SPDX-License-Identifier: Apache-2.0
"""What the chart has is what a cluster takes, whichever values are chosen."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.kubernetes.chart import pod_of, rendered
from tests.kubernetes.cluster_pool import ClusterPool

pytestmark = pytest.mark.kubernetes


@pytest.mark.parametrize(
    "values",
    [
        {"mode": "dra", "pool__enabled": True, "tokens__cluster": "x"},
        {
            "mode": "extended-resources",
            "extender__caBundle": "QUJD",
            "pool__enabled": True,
            "pool__store": "etcd",
            "server__enabled": True,
        },
    ],
    ids=["dra", "extended-resources"],
)
def test_the_cluster_takes_all_that_the_chart_has(
    cluster: ClusterPool, values: dict[str, Any]
) -> None:
    """Each object is valid, and every pod but the nodes' parts is admitted as `restricted`."""
    objects = rendered(**values)
    listed = {"apiVersion": "v1", "kind": "List", "items": objects}
    cluster.rig.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"),
        *("-f", "-"),
        stdin=json.dumps(listed),
    )
    confined = set()
    for each in objects:
        if (tried := pod_of(each)) and each["metadata"]["namespace"] == "sluice":
            tried["spec"].pop("serviceAccountName", None)
            cluster.rig.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(tried))
            confined.add(each["metadata"]["name"])
    part = "sluice-controller" if values["mode"] == "dra" else "sluice-extender"
    assert confined == {part, "sluice-pool"}


def test_a_chart_with_a_wrong_value_says_which() -> None:
    for values, says in (
        ({"mode": "both"}, "mode=both: give dra or extended-resources"),
        ({"pool__store": "files"}, "pool.store=files: give sqlite or etcd"),
        ({"mode": "extended-resources"}, "extender.caBundle: give the base64"),
    ):
        with pytest.raises(ValueError, match=re.escape(says)):
            rendered(**values)


def test_a_chart_for_a_cluster_without_services_says_so_everywhere() -> None:
    objects = rendered(
        mode="extended-resources",
        hostNetwork=True,
        environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": 6443},
        extender__caBundle="QUJD",
        extender__url="https://10.0.0.1:9443",
    )
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for each in objects:
        by_kind.setdefault(each["kind"], []).append(each)
    for each in (*by_kind["Deployment"], *by_kind["DaemonSet"]):
        spec = each["spec"]["template"]["spec"]
        assert spec["hostNetwork"] is True
        [container] = spec["containers"]
        assert container["envFrom"][0]["configMapRef"]["name"] == "sluice-environment"
    said = [m for m in by_kind["ConfigMap"] if m["metadata"]["name"] == "sluice-environment"]
    assert {each["metadata"]["namespace"] for each in said} == {"sluice", "sluice-node"}
    assert said[0]["data"]["KUBERNETES_SERVICE_PORT"] == "6443"  # a text, as a ConfigMap has it
    labels = {each["metadata"]["name"]: each["metadata"]["labels"] for each in by_kind["Namespace"]}
    assert labels["sluice"] == {"pod-security.kubernetes.io/enforce": "privileged"}
    [webhook] = by_kind["MutatingWebhookConfiguration"][0]["webhooks"]
    assert webhook["clientConfig"]["url"] == "https://10.0.0.1:9443/mutate"
    assert "service" not in webhook["clientConfig"]
