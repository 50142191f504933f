# SPDX-License-Identifier: Apache-2.0
"""Kueue in the rig's cluster, by its own chart: definitions, rights, webhooks, and its manager.

Used by tests/kubernetes/test_kueue.py. Program and chart are of one Go module (programs). The
rig has no names of Services and no certificate manager: the manager is on its node's network, the
API server asks its webhooks at an address, and their certificate is made here.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from free_ports import free_port

from tests.rigs.kubernetes.rig import PROGRAMS, KubernetesRig

NAMESPACE = "kueue-system"
IMAGE = "localhost/kueue:rig"
_LEFT_OUT = ("APIService", "Certificate", "Issuer", "Service")
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_CERTIFICATES = [f"kueue-{name}-server-cert" for name in ("webhook", "metrics", "visibility")]
_OWN = ("-l", "app.kubernetes.io/name=kueue")
_KINDS = ("workloads", "localqueues", "clusterqueues", "resourceflavors")
_CHART = {
    "enableCertManager": "true",
    "controllerManager.manager.image.repository": IMAGE.partition(":")[0],
    "controllerManager.manager.image.tag": IMAGE.partition(":")[2],
    "controllerManager.manager.image.pullPolicy": "Never",
}
_TRIED = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor",
    "metadata": {"name": "tried"},
}


@contextmanager
def kueue(rig: KubernetesRig, settings: Mapping[str, Any]) -> Iterator[None]:
    """It runs, with these settings of its configuration beside the rig's. Raises RigError."""
    rig.load_image(IMAGE, {"manager": PROGRAMS / "kueue"})
    with tempfile.TemporaryDirectory(prefix="kueue-") as folder:
        objects = _objects(rig, Path(folder), settings)
    asked = [each for each in objects if each["kind"] in _WEBHOOKS]
    try:
        _apply(rig, [each for each in objects if each["kind"] not in _WEBHOOKS])
        words = ("rollout", "status", "deployment/kueue-controller-manager", "--timeout=60s")
        rig.kubectl("-n", NAMESPACE, *words)
        # it says nothing of when its webhooks answer: they are asked until they do
        _apply(rig, asked)
        tried = ("apply", "--dry-run=server", "-f", "-")
        rig.wait("Kueue", lambda: rig.try_kubectl(*tried, stdin=json.dumps(_TRIED)), 60)
        yield
    finally:
        _remove(rig)


def _objects(rig: KubernetesRig, folder: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chart's, with what the rig has otherwise."""
    port = free_port()
    certificate, key = _make_certificate(folder)
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
        "metrics": {"bindAddress": f"127.0.0.1:{free_port()}"},
        "webhook": {"host": "127.0.0.1", "port": port},
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["batch/job"]},
        **settings,
    }
    (folder / "configuration").write_text(json.dumps(configuration))
    configured = f"managerConfig.controllerManagerConfigYaml={folder}/configuration"
    given = [word for name, value in _CHART.items() for word in ("--set", f"{name}={value}")]
    words = ["template", "kueue", str(PROGRAMS / "kueue-chart"), "-n", NAMESPACE, *given]
    text = subprocess.run(
        [str(PROGRAMS / "helm"), *words, "--set-file", configured],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    listed = [each for each in yaml.load_all(text, loader) if each]

    def direct(client: dict[str, Any]) -> dict[str, Any]:
        path = client["service"].get("path", "/convert")
        return {
            "url": f"https://127.0.0.1:{port}{path}",
            "caBundle": b64encode(certificate).decode(),
        }

    found = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
    data = {
        "tls.crt": certificate.decode(),
        "tls.key": key.decode(),
        "ca.crt": certificate.decode(),
    }
    for name in _CERTIFICATES:
        metadata = {"name": name, "namespace": NAMESPACE}
        found.append(
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}
        )
    for each in listed:
        for webhook in each.get("webhooks", ()):
            webhook["clientConfig"] = direct(webhook["clientConfig"])
        if conversion := each.get("spec", {}).get("conversion", {}).get("webhook"):
            conversion["clientConfig"] = direct(conversion["clientConfig"])
        if each["kind"] == "Deployment":
            _place(rig, each["spec"]["template"]["spec"])
        if each["kind"] not in _LEFT_OUT:
            found.append(each)
    return found


def _place(rig: KubernetesRig, spec: dict[str, Any]) -> None:
    """The manager's pod on its node's network, where its ports are the rig's."""
    spec["hostNetwork"] = True
    [container] = spec["containers"]
    for field in ("ports", "livenessProbe", "readinessProbe"):
        container.pop(field)
    container["securityContext"]["runAsUser"] = 65532
    container["env"] = [{"name": name, "value": value} for name, value in rig.api_place.items()]


def _make_certificate(folder: Path) -> tuple[bytes, bytes]:
    """And its key."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=kueue"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", folder / "tls.key", "-out", folder / "tls.crt"),
        ],
        check=True,
        capture_output=True,
    )
    return (folder / "tls.crt").read_bytes(), (folder / "tls.key").read_bytes()


def _apply(rig: KubernetesRig, objects: list[dict[str, Any]]) -> None:
    """Server-side: the definition of a Workload is larger than an annotation may be."""
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    rig.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=listed)


def _remove(rig: KubernetesRig) -> None:
    """While it runs it lets go what it has; then the webhooks, as nobody answers them any more."""
    for kind in _KINDS:
        name = f"{kind}.kueue.x-k8s.io"
        rig.try_kubectl("delete", name, "-A", "--all", "--ignore-not-found", "--timeout=30s")
    for kind in _WEBHOOKS:
        rig.kubectl("delete", kind, *_OWN, "--ignore-not-found")
    rig.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
    rig.kubectl("delete", "crd", *_OWN, "--ignore-not-found", "--wait=false")
    rights = "clusterrole,clusterrolebinding"
    rig.kubectl("delete", rights, *_OWN, "--ignore-not-found", "--wait=false")
