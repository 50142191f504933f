# SPDX-License-Identifier: Apache-2.0
"""docs/kubernetes.md can be followed from nothing to `kubectl logs` of a CUDA program.

Its commands run as they stand there, in their order, with the manifests as they are but for what
the rig lacks, which is said beside each. The two parts run as pods, with the rights that they have.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from control_plane import wait_for
from walkthrough import Instead, Walkthrough

from tests.kubernetes.cluster_pool import CUDA_IMAGE, ClusterPool
from tests.kubernetes.conftest import MANIFESTS
from tests.rigs.kubernetes.rig import API_PORT, CHECKOUT, NODE, PROGRAMS

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]

INSTALLED = Path("/opt/sluice")
OWN = ("namespaces.yaml", "rbac.yaml", "classes.yaml")
#: There is no service network in the rig: pods reach the API server where it listens.
ENVIRONMENT = (
    "env: [{name: KUBERNETES_SERVICE_HOST, value: 127.0.0.1}, "
    f'{{name: KUBERNETES_SERVICE_PORT, value: \\"{API_PORT}\\"}}]'
)
WITH_ENVIRONMENT = (
    "s#imagePullPolicy: IfNotPresent#imagePullPolicy: IfNotPresent\\n          " + ENVIRONMENT + "#"
)


@pytest.fixture
def untold(cluster: ClusterPool, bundle: Path, service_image: None) -> Iterator[ClusterPool]:
    """A cluster that has been told nothing of Sluice, and a node with the guest bundle."""
    rig = cluster.rig
    for part in list(cluster.parts):
        cluster.stop_part(part)
    cluster.plane.rest.delete(f"/reservations/{cluster.whole['id']}")
    rig.kubectl("delete", "resourceslices", "--all")
    for name in reversed(OWN):
        rig.kubectl("delete", "-f", str(MANIFESTS / name))
    if INSTALLED.exists():
        pytest.skip(f"{INSTALLED} is this machine's own")
    INSTALLED.symlink_to(bundle)
    try:
        yield cluster
    finally:
        INSTALLED.unlink()
        rig.kubectl("delete", "pod,resourceclaimtemplate", "--all", "--timeout=120s")
        wait_for(lambda: not rig.get("resourceclaims")["items"], 60, cluster.state)
        for name in ("node.yaml", "controller.yaml"):
            rig.kubectl("delete", "--ignore-not-found", "-f", str(MANIFESTS / name))
        rig.kubectl("delete", "--ignore-not-found", "resourceslices", "--all")
        for name in ("rbac.yaml", "namespaces.yaml"):
            rig.kubectl("delete", "-f", str(MANIFESTS / name), "--timeout=120s")
        for each in cluster.plane.rest.get("/reservations").json()["reservations"]:
            cluster.plane.rest.delete(f"/reservations/{each['id']}")
        for name in OWN:
            rig.kubectl("apply", "-f", str(MANIFESTS / name))
        cluster.begin()


def test_kubernetes_page(untold: ClusterPool, tmp_path: Path) -> None:
    rig = untold.rig
    (tmp_path / ".sluice").mkdir()
    token = tmp_path / ".sluice" / "token"
    token.touch(0o600)
    token.write_text(untold.plane.first_token())
    path = f"{CHECKOUT / 'build' / 'bin'}:{PROGRAMS}:{os.environ['PATH']}"
    environment = {**rig.environment, "HOME": str(tmp_path), "PATH": path}

    def run(command: str, variables: Mapping[str, str]) -> str:
        ran = subprocess.run(
            ["timeout", "200", "bash", "-e", "-o", "pipefail", "-c", command],
            env={**environment, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if ran.returncode:
            raise AssertionError(f"{ran.stdout}{ran.stderr}\n{untold.state()}\n{pods(untold)}")
        return ran.stdout

    folder = untold.folder / "run"
    places = f"s#path: /run/sluice#path: {folder}#; s#path: /var/run/cdi#path: {rig.cdi}#"
    node = 'kubectl apply -f "$SOURCE/kubernetes/manifests/node.yaml"'
    controller = 'kubectl apply -f "$SOURCE/kubernetes/manifests/controller.yaml"'
    instead = {
        node: Instead(
            "the rig's server and container runtime have folders of their own",
            f'sed -e "{WITH_ENVIRONMENT}; {places}" '
            '"$SOURCE/kubernetes/manifests/node.yaml" | kubectl apply -f -',
        ),
        controller: Instead(
            "pods of the rig reach nothing but their node: this one is on its network",
            "kubectl label --overwrite namespace sluice "
            "pod-security.kubernetes.io/enforce=privileged && "
            f'sed -e "{WITH_ENVIRONMENT}; s#    spec:#    spec:\\n      hostNetwork: true#" '
            '"$SOURCE/kubernetes/manifests/controller.yaml" | kubectl apply -f -',
        ),
    }
    values = {
        "SOURCE": str(CHECKOUT),
        "CONTROLLER": f"127.0.0.1:{untold.plane.rest_port}",
        "NODE": NODE,
        "IMAGE": CUDA_IMAGE,
    }
    page = Walkthrough(
        CHECKOUT / "docs" / "kubernetes.md", "From nothing to a CUDA program in a pod"
    )
    page.follow({"pool": run, "cluster": run}, values, instead)


def pods(cluster: ClusterPool) -> str:
    """What Sluice's own say."""
    found = ""
    for namespace in ("sluice", "sluice-node"):
        for each in cluster.rig.get("-n", namespace, "pods")["items"]:
            name = each["metadata"]["name"]
            found += f"\n{name}: {json.dumps(each['status'].get('containerStatuses'))}\n"
            for words in (("logs", name), ("logs", "--previous", name)):
                if cluster.rig.try_kubectl("-n", namespace, *words):
                    found += cluster.rig.kubectl("-n", namespace, *words)[-2000:]
    return found


def test_the_controllers_part_is_restricted(cluster: ClusterPool) -> None:
    """Its pod is admitted to a namespace of Pod Security `restricted`, as it stands."""
    documents = list(yaml.safe_load_all((MANIFESTS / "controller.yaml").read_text()))
    [deployment] = [each for each in documents if each["kind"] == "Deployment"]
    template = deployment["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "tried", "namespace": "sluice"},
        "spec": template["spec"],
    }
    cluster.rig.kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))
    pod["spec"]["hostNetwork"] = True
    assert not cluster.rig.try_kubectl(
        "apply", "--dry-run=server", "-f", "-", stdin=json.dumps(pod)
    )
