# SPDX-License-Identifier: Apache-2.0
"""Kueue's own manager in the rig's cluster: its chart's definitions, rights and webhooks.

Used by tests/kubernetes/test_kueue.py. The program and the chart are of one Go module
(programs/kueue). It is a process of this machine that is the chart's service account, as Sluice's
parts are in the tests, and the API server asks its webhooks at an address: the rig has no names of
Services. So the chart's Deployment, Services and API for looking at queues are left out.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from free_ports import free_port

from tests.rigs.kubernetes.rig import PROGRAMS, KubernetesRig

NAMESPACE = "kueue-system"
_LEFT_OUT = ("APIService", "ConfigMap", "Deployment", "Secret", "Service")
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


@contextmanager
def kueue(rig: KubernetesRig, settings: Mapping[str, Any]) -> Iterator[Path]:
    """It runs with these settings beside the chart's; gives its log. Raises RigError."""
    with tempfile.TemporaryDirectory(prefix="kueue-") as name:
        folder = Path(name)
        port, health = free_port(), free_port()
        certificate = _certificate(folder)
        objects = _objects(port, certificate)
        _apply(rig, [each for each in objects if each["kind"] not in _WEBHOOKS])
        established = ("wait", "--for=condition=Established", "crd", "--timeout=60s", "-l")
        rig.kubectl(*established, "app.kubernetes.io/name=kueue")
        account = "kueue-controller-manager"
        token = rig.kubectl("-n", NAMESPACE, "create", "token", account).strip()
        rig.write_kubeconfig(folder / "kubeconfig", token)
        (folder / "kueue.json").write_text(
            json.dumps(
                {
                    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
                    "kind": "Configuration",
                    "namespace": NAMESPACE,
                    "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
                    "metrics": {"bindAddress": "0"},
                    "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
                    "internalCertManagement": {"enable": False},
                    "leaderElection": {"leaderElect": False},
                    "integrations": {"frameworks": ["batch/job"]},
                    **settings,
                }
            )
        )
        log = folder / "kueue.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [PROGRAMS / "kueue", "--config", folder / "kueue.json"],
                env={**rig.environment, "KUBECONFIG": str(folder / "kubeconfig")},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            flavor = ("apply", "--dry-run=server", "-f", "-")
            tried = json.dumps(_FLAVOR)
            rig.wait("Kueue's webhooks", lambda: _listens(log, process), 60)
            _apply(rig, [each for each in objects if each["kind"] in _WEBHOOKS])
            rig.wait("Kueue", lambda: rig.try_kubectl(*flavor, stdin=tried), 60)
            yield log
        finally:
            process.terminate()
            process.wait(30)
            for each in reversed(objects):
                if each["kind"] in (*_WEBHOOKS, "CustomResourceDefinition"):
                    continue
            _remove(rig, objects)


_FLAVOR = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "ResourceFlavor",
    "metadata": {"name": "tried"},
}


def _listens(log: Path, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, log.read_text()[-3000:]
    return "Serving webhook server" in log.read_text()


def _certificate(folder: Path) -> str:
    """Of the webhooks; returns it in base64, as those who ask them have it."""
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ),
            *(
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=kueue",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
            ),
            *("-keyout", folder / "tls.key", "-out", folder / "tls.crt"),
        ],
        check=True,
        capture_output=True,
    )
    return base64.b64encode((folder / "tls.crt").read_bytes()).decode()


def _objects(port: int, certificate: str) -> list[dict[str, Any]]:
    """The chart's, with the webhooks where they are."""
    chart = PROGRAMS / "kueue-chart"
    words = [str(PROGRAMS / "helm"), "template", "kueue", str(chart), "-n", NAMESPACE]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    listed = [each for each in yaml.load_all(text, loader) if each]
    found = [namespace, *(each for each in listed if each["kind"] not in _LEFT_OUT)]

    def direct(client: dict[str, Any]) -> dict[str, Any]:
        path = client["service"].get("path", "/convert")
        return {"url": f"https://127.0.0.1:{port}{path}", "caBundle": certificate}

    for each in found:
        for webhook in each.get("webhooks", ()):
            webhook["clientConfig"] = direct(webhook["clientConfig"])
        if conversion := each.get("spec", {}).get("conversion", {}).get("webhook"):
            conversion["clientConfig"] = direct(conversion["clientConfig"])
    return found


def _apply(rig: KubernetesRig, objects: list[dict[str, Any]]) -> None:
    """Server-side: the definition of a Workload is larger than an annotation may be."""
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    rig.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=listed)


def _remove(rig: KubernetesRig, objects: list[dict[str, Any]]) -> None:
    """The webhooks first: nobody answers them any more; then what they were asked about."""
    for kind in _WEBHOOKS:
        rig.kubectl("delete", kind, "-l", "app.kubernetes.io/name=kueue", "--ignore-not-found")
    for kind in ("workloads", "localqueues", "clusterqueues", "resourceflavors"):
        found = rig.kubectl("get", f"{kind}.kueue.x-k8s.io", "-A", "-o", "json")
        for each in json.loads(found)["items"]:
            where = each["metadata"].get("namespace", "default")
            what = (f"{kind}.kueue.x-k8s.io", each["metadata"]["name"], "-n", where)
            free = '{"metadata": {"finalizers": null}}'
            rig.try_kubectl("patch", *what, "--type=merge", "-p", free)
            rig.try_kubectl("delete", *what, "--ignore-not-found", "--timeout=20s")
    del objects
    rig.kubectl("delete", "crd", "-l", "app.kubernetes.io/name=kueue", "--timeout=60s")
    rig.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=false")
