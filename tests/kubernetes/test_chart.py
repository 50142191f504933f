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
