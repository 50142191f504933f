# SPDX-License-Identifier: Apache-2.0
"""docs/kubernetes.md can be followed from nothing to `kubectl logs` of a CUDA program.

Its commands run as they stand there, in their order, with the manifests as they are but for what
the rig lacks, which is said beside each. The two parts run as pods, with the rights that they have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from walkthrough import Instead, Walkthrough

from tests.kubernetes.cluster_pool import ClusterPool
from tests.kubernetes.pages import INSTALLED, MANIFESTS, PAGE, forget, nothing_told, shell, values

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]


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


@pytest.fixture(scope="module")
def unused(cluster: ClusterPool, bundle: Path, service_image: None) -> Iterator[ClusterPool]:
    """A cluster that has been told nothing of Sluice, and a node with the guest bundle."""
    if INSTALLED.exists():
        pytest.skip(f"{INSTALLED} is this machine's own")
    with nothing_told(cluster, bundle):
        yield cluster
    cluster.clear()


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Looked for when the parts are back, which may have been away when a pod of a page ended."""


@pytest.fixture
def untold(unused: ClusterPool) -> Iterator[ClusterPool]:
    """The same before each test."""
    yield unused
    forget(unused)


def test_kubernetes_page(untold: ClusterPool, tmp_path: Path) -> None:
    run = shell(untold, tmp_path)
    folder = untold.folder / "run"
    places = f"s#path: /run/sluice#path: {folder}#; s#path: /var/run/cdi#path: {untold.rig.cdi}#"
    label = 'kubectl label node "$NODE" sluice.io/server=true'
    node = 'kubectl apply -f "$SOURCE/kubernetes/manifests/node.yaml"'
    controller = 'kubectl apply -f "$SOURCE/kubernetes/manifests/controller.yaml"'
    literals = " ".join(f"--from-literal={k}={v}" for k, v in untold.rig.api_place.items())
    environment = (
        "for namespace in sluice sluice-node; do "
        f"kubectl -n $namespace create configmap sluice-environment {literals}; done"
    )
    instead = {
        label: Instead(
            "the rig has no network of services: its pods reach the API server where it listens",
            f"{label}\n{environment}",
        ),
        node: Instead(
            "the rig's server and container runtime have folders of their own",
            f'sed -e "{places}" "$SOURCE/kubernetes/manifests/node.yaml" | kubectl apply -f -',
        ),
        controller: Instead(
            "pods of the rig reach nothing but their node: this one is on its network",
            "kubectl label --overwrite namespace sluice "
            "pod-security.kubernetes.io/enforce=privileged && "
            'sed -e "s#    spec:#    spec:\\n      hostNetwork: true#" '
            '"$SOURCE/kubernetes/manifests/controller.yaml" | kubectl apply -f -',
        ),
    }
    page = Walkthrough(PAGE, "From nothing to a CUDA program in a pod")
    page.follow({"pool": run, "cluster": run}, values(untold), instead)


def test_the_page_without_dra(untold: ClusterPool, tmp_path: Path) -> None:
    """By `helm install`; the scheduler is told of its extender as the page says."""
    run = shell(untold, tmp_path)
    rig = untold.rig
    own = {
        "hostNetwork": "true",
        "extender.replicas": "1",
        "extender.url": "https://127.0.0.1:9443",
        **{f"environment.{name}": value for name, value in rig.api_place.items()},
        "paths.run": str(untold.folder / "run"),
        "paths.cdi": str(rig.cdi),
    }
    ca = "/etc/kubernetes/sluice-extender-ca.crt"
    page = Walkthrough(PAGE, "Without DRA: from nothing to a CUDA program in a pod")
    commands = {command.split()[0]: command for block in page.blocks for command in block.commands}
    instead = {
        commands["openssl"]: Instead(
            "the API server of the rig reaches the extender at an address, not at its Service",
            commands["openssl"].replace("DNS:", "IP:127.0.0.1,DNS:"),
        ),
        commands["helm"]: Instead(
            "the rig has no network of services: pods are on their node's, which has folders of "
            "its own",
            commands["helm"] + "".join(f" --set {key}={value}" for key, value in own.items()),
        ),
        commands["install"]: Instead(
            "the scheduler of the rig has a folder of its own",
            commands["install"].replace(ca, f"{rig.run}/extender-ca.crt"),
        ),
        commands["sed"]: Instead(
            "it reaches the extender at its node's address",
            commands["sed"]
            .replace("$(cat extender.address)", "127.0.0.1:9443")
            .replace('sed "', f'sed "s#{ca}#{rig.run}/extender-ca.crt#; '),
        ),
        commands["systemctl"]: Instead(
            "the rig has no systemd", lambda: rig.restart("kube-scheduler") or ""
        ),
    }
    scheduler = rig.run / "scheduler.yaml"
    scheduler.write_text(scheduler.read_text().partition("extenders:")[0])
    try:
        given = {**values(untold), "SCHEDULER": str(scheduler)}
        page.follow({"pool": run, "cluster": run, "scheduler": run}, given, instead)
        [grant] = untold.plane.rest.get("/grants", params={"state": "ended"}).json()["grants"][-1:]
        [vgpu] = grant["vgpus"]
        assert (vgpu["memory_mib"], vgpu["compute_percent"]) == (512, 10)
    finally:
        rig.extend_scheduler()
        rig.kubectl("delete", "pod", "--all", "--timeout=120s")
        run("helm uninstall sluice --wait --timeout 120s", {})
        rig.forget_devices("sluice.io/vgpu")
