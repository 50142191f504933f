# SPDX-License-Identifier: Apache-2.0
"""Three of the pool's controllers over etcd as pods, as kubernetes/manifests/pool-etcd.yaml has it.

A pod with a vGPU counts on while the one that leads is deleted, and claims go on being prepared.
The rig has no names of Services: each controller says its pod's address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.kubernetes.cluster_pool import ClusterPool, container, pod
from tests.kubernetes.pages import MANIFESTS
from tests.kubernetes.service_image import load
from tests.kubernetes.waits import wait_for
from tests.kubernetes.work import counting, goes_on_counting
from tests.rigs.kubernetes.rig import PROGRAMS, KubernetesRig

pytestmark = pytest.mark.kubernetes

NAMES = [f"sluice-pool-{number}" for number in range(3)]
ETCD_IMAGE = "localhost/etcd:rig"
HERE = "@ADDRESS@"
SAYS_ITS_ADDRESS = (
    f'busybox sed "s/{HERE}/$ADDRESS/" /etc/sluice/$NAME.conf >/tmp/controller.conf && '
    "exec sluice-controller --config /tmp/controller.conf"
)
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
    "runAsNonRoot": True,
    "runAsUser": 64201,
}


class PoolOfThree(ClusterPool):
    """A pool whose controllers are pods of the cluster."""

    @property
    def addresses(self) -> str:
        """Of those that only follow: they name the leader, and outlive it in the test.

        At the address of a pod that is gone whatever is behind the rig may answer.
        """
        leader = self.leader()
        return ",".join(f"{ip}:9123" for name, ip in self.ips().items() if name != leader)

    def ips(self) -> dict[str, str]:
        """By name, of those that are ready."""
        found = {}
        for each in self.rig.get("-n", "sluice", "pods")["items"]:
            ready = {c["type"]: c["status"] for c in each["status"].get("conditions", ())}
            if each["metadata"]["name"] in NAMES and ready.get("Ready") == "True":
                found[each["metadata"]["name"]] = each["status"]["podIP"]
        return found

    def leader(self) -> str:
        """The name of the one that leads; "" while none does."""
        for name, ip in self.ips().items():
            try:
                said = httpx.get(f"http://{ip}:9123/v1/controller", timeout=2).json()
            except httpx.TransportError:
                continue
            if said["leads"]:
                return name
        return ""

    def first_token(self) -> str:
        """The admin's, from the log of whichever came first."""
        said = "".join(self.rig.kubectl("-n", "sluice", "logs", name) for name in NAMES)
        found = re.search(r"^ +(sluice_\S+)$", said, re.MULTILINE)
        return found[1] if found else ""

    def follow(self) -> None:
        """Asks whoever leads from now on."""
        wait_for(self.leader, 120, self.state)
        authorization = self.plane.rest.headers.get("Authorization", "")
        self.plane.url = f"http://{self.ips()[self.leader()]}:9123"
        token = authorization.removeprefix("Bearer ")
        self.plane.rest = self.plane.rest_as(token, follow_redirects=True)


def etcd_pod() -> dict[str, Any]:
    """An etcd of the cluster's."""
    everywhere = "http://0.0.0.0:2379"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "etcd", "namespace": "sluice"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "etcd",
                    "image": ETCD_IMAGE,
                    "imagePullPolicy": "Never",
                    "command": ["/etcd", "--data-dir", "/data", "--unsafe-no-fsync"],
                    "args": [
                        f"--listen-client-urls={everywhere}",
                        f"--advertise-client-urls={everywhere}",
                    ],
                    "readinessProbe": {"tcpSocket": {"port": 2379}, "periodSeconds": 1},
                    "securityContext": CONFINED,
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }


def manifests(etcd: str) -> list[dict[str, Any]]:
    """The page's, but for names: of Services there are none in the rig."""
    text = (MANIFESTS / "pool-etcd.yaml").read_text().replace("etcd.sluice.svc:2379", etcd)
    text, replaced = re.subn(r"sluice-pool-\d\.sluice-pools\.sluice\.svc", HERE, text)
    assert replaced == len(NAMES)
    found = list(yaml.safe_load_all(text))
    [made] = [each for each in found if each["kind"] == "StatefulSet"]
    [controller] = made["spec"]["template"]["spec"]["containers"]
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    controller["env"].append({"name": "ADDRESS", "valueFrom": address})
    controller["command"] = ["sh", "-c", SAYS_ITS_ADDRESS]
    del controller["args"]
    return found


@pytest.fixture
def three(rig: KubernetesRig, cluster: ClusterPool, bundle: Path) -> Iterator[PoolOfThree]:
    """The pool is in the cluster, and the one beside it has no parts there."""
    load(rig)
    rig.load_image(ETCD_IMAGE, {"etcd": PROGRAMS / "etcd"})
    for part in list(cluster.parts):
        cluster.stop_part(part)
    rig.kubectl("delete", "resourceslices", "--all")
    rig.kubectl("apply", "-f", "-", stdin=json.dumps(etcd_pod()))
    rig.kubectl("-n", "sluice", "wait", "--for=condition=Ready", "pod/etcd", "--timeout=120s")
    at = rig.get("-n", "sluice", "pod", "etcd")["status"]["podIP"]
    listed = {"apiVersion": "v1", "kind": "List", "items": manifests(f"{at}:2379")}
    made = PoolOfThree(rig, bundle)
    try:
        rig.kubectl("apply", "-f", "-", stdin=json.dumps(listed))
        words = ("rollout", "status", "statefulset/sluice-pool", "--timeout=180s")
        rig.kubectl("-n", "sluice", *words)
        made.follow()
        asked = made.plane.folder / "server.conf"
        lines = [each for each in asked.read_text().splitlines() if "_addr = 127" not in each]
        lines.insert(lines.index("[controller]") + 1, f"addresses = {made.addresses}")
        asked.write_text("\n".join(lines) + "\n")
        made.join(str(wait_for(made.first_token, 60)))
        yield made
        made.clear()
    finally:
        made.close()
        for each in ("statefulset", "pod", "configmap", "service", "pdb", "networkpolicy"):
            words = ("--ignore-not-found", "--timeout=60s", "--grace-period=1")
            name = "etcd" if each == "pod" else "sluice-pool"
            rig.kubectl("-n", "sluice", "delete", each, name, *words)
        rig.kubectl("-n", "sluice", "delete", "service", "sluice-pools", "--ignore-not-found")
        rig.kubectl("delete", "resourceslices", "--all")
        for part in ("node", "controller"):
            cluster.start_part(part)
        cluster.wait_for_slices()


def test_pods_go_on_and_come_while_the_leaders_pod_is_deleted(three: PoolOfThree) -> None:
    counting(three, "counts")
    [grant] = [each["id"] for each in three.plane.grants()]
    led = three.leader()
    before = three.rig.get("-n", "sluice", "pod", led)["metadata"]["uid"]
    three.rig.kubectl("-n", "sluice", "delete", "pod", led, "--wait=false")
    comes = container("cuda", "/bin/vector_add")
    three.apply(pod("comes", comes, claim_template="small"))
    assert "wrong 0" in three.finished("comes")
    goes_on_counting(three, "counts")
    three.follow()
    assert [each["id"] for each in three.plane.grants()] == [grant]
    wait_for(lambda: led in three.ips(), 120, three.state)
    assert three.rig.get("-n", "sluice", "pod", led)["metadata"]["uid"] != before
    goes_on_counting(three, "counts")
