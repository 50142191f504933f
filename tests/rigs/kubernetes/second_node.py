# SPDX-License-Identifier: Apache-2.0
"""A second node that is ready and takes no pods, while the rig's own one is away.

Used by tests of a node that is gone: where no node of a cluster answers, Kubernetes takes itself
for the one that is cut off, and evicts nobody. It is a Node object and the lease of a kubelet that
is renewed from here, with the API server's own word on both.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from tests.rigs.kubernetes.rig import KubernetesRig

NAME = "elsewhere"
RENEW_SECONDS = 2.0
LEASES = "kube-node-lease"


@contextlib.contextmanager
def second_node(rig: KubernetesRig) -> Iterator[None]:
    """It is there meanwhile; raises RigError."""
    over = threading.Event()

    def renew() -> None:
        while not over.wait(RENEW_SECONDS):
            rig.try_kubectl("apply", "-f", "-", stdin=json.dumps(_lease()))

    renewing = threading.Thread(target=renew)
    try:
        rig.kubectl("apply", "-f", "-", stdin=json.dumps(_node()))
        rig.kubectl("apply", "-f", "-", stdin=json.dumps(_lease()))
        status = json.dumps({"status": {"conditions": [_ready()]}})
        rig.kubectl("patch", "node", NAME, "--subresource=status", "-p", status)
        renewing.start()
        yield
    finally:
        over.set()
        if renewing.is_alive():
            renewing.join()
        rig.kubectl("delete", "--ignore-not-found", "node", NAME)
        rig.kubectl("-n", LEASES, "delete", "--ignore-not-found", "lease", NAME)


def _now(form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return datetime.now(UTC).strftime(form)


def _node() -> dict[str, Any]:
    taint = {"key": "example.com/takes-no-pods", "effect": "NoSchedule"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NAME},
        "spec": {"taints": [taint]},
    }


def _ready() -> dict[str, Any]:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "lastHeartbeatTime": _now(),
        "lastTransitionTime": _now(),
    }


def _lease() -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": NAME, "namespace": LEASES},
        "spec": {
            "holderIdentity": NAME,
            "leaseDurationSeconds": 40,
            "renewTime": _now("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }
