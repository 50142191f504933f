# SPDX-License-Identifier: Apache-2.0
"""A pool beside a cluster: controller, server, and Sluice's two parts in the cluster, as processes.

Used by tests/kubernetes. The server runs on the machine, outside the rig's namespaces, as on a real
node beside the kubelet.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from control_plane import PYTHON_PATH, ControlPlane
from faulty_driver import make_faulty_driver
from scrapes import Scrape

from tests.kubernetes.waits import wait_for
from tests.rigs.kubernetes.image import libraries_of
from tests.rigs.kubernetes.rig import NODE, KubernetesRig

LABEL = "kubernetes"
DRIVER = "vgpu.sluice.io"
CUDA_IMAGE = "localhost/cuda:rig"
#: What is the cluster's, of a software GPU of 4,096 MiB.
COUNT, MEMORY_MIB, COMPUTE_PERCENT = 4, 900, 20


class ClusterPool:
    """The pool of one cluster."""

    def __init__(self, rig: KubernetesRig, bundle: Path) -> None:
        self.rig = rig
        self.folder = Path(tempfile.mkdtemp(prefix="sluice-k8s-", dir="/tmp"))
        self.bundle = bundle
        self._nvml = self.folder / "nvml"
        self._nvml.touch()
        driver = self.folder / "driver"
        driver.mkdir()
        self.plane = ControlPlane(
            self.folder,
            auth={"required": "yes", "requests_per_second": 0},
            token_file=self.folder / "node.token",
            # a server that is killed in a test is away for a moment, not lost
            server={
                "node_name": NODE,
                "prestart_workers": 1,
                "driver": make_faulty_driver(driver),
            },
            environment={"SLUICE_FAKE_NVML": str(self._nvml)},
            metrics={},
            suspend={"swap_mib": 64, "drain_seconds": 60},
            patience=10,
        )
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.whole: dict[str, Any] = {}

    @staticmethod
    def load_images(rig: KubernetesRig, programs: Path, bundle: Path) -> None:
        """An image as a user makes one: programs, a libc, a shell."""
        names = ("vector_add", "hold_vgpu", "counts", "device_query", "oom")
        files: dict[str, Path | str] = {f"bin/{name}": programs / name for name in names}
        ours = [bundle / "lib" / name for name in ("libcuda.so.1", "libcudart.so.13")]
        files.update(libraries_of(*(programs / name for name in names), *ours))
        files.update({"bin/busybox": Path("/bin/busybox"), "bin/sh": "busybox"})
        files.update({f"bin/{tool}": "busybox" for tool in ("sleep", "cat", "env", "ls", "true")})
        # none of them heeds SIGTERM: what comes a second after it comes at once
        rig.load_image(CUDA_IMAGE, files, stop_signal="SIGKILL")

    # life

    def start(self) -> None:
        """Everything, and the slices of what is reserved are there."""
        self.plane.start_controller()
        self.join(self.plane.first_token())

    def join(self, admin: str) -> None:
        """The pool's controller is there: server and parts come; the token is an admin's."""
        plane = self.plane
        plane.rest = plane.rest_as(admin, follow_redirects=True)
        self._token("node.token", role="node", node=NODE)
        self._token("viewer.token", role="viewer")
        self._token("cluster.token", role="tenant", project=LABEL, label=LABEL)
        plane.start_server()
        self.begin()

    def begin(self) -> None:
        """What is reserved, and the parts."""
        self.whole = self.reserve(COUNT, MEMORY_MIB, COMPUTE_PERCENT)
        for name, account, place in (
            ("node", "sluice-node", "sluice-node"),
            ("controller", "sluice-controller", "sluice"),
        ):
            token = self.rig.kubectl("-n", place, "create", "token", account).strip()
            self.rig.write_kubeconfig(self.folder / f"{name}.kubeconfig", token)
            self.configure(name)
            self.start_part(name)
        self.wait_for_slices()

    def close(self) -> None:
        """Ends everything."""
        for name in list(self.parts):
            self.stop_part(name)
        self.plane.close()

    def clear(self) -> None:
        """Removes what tests made in the cluster; nothing of it is left in the pool."""
        kinds = ("job", "pod", "resourceclaim", "resourceclaimtemplate")
        self.rig.delete_all(*kinds)
        wait_for(lambda: not self.rig.get(",".join(kinds))["items"], 120, self.state)
        wait_for(lambda: not self.parts_of_reservation(), 120, self.state)
        wait_for(lambda: not self.plane.grants(), 120, self.state)
        wait_for(lambda: not self.plane.session_worker_pids(), 120, self.state)
        claims = self.folder / "run" / "claims"
        wait_for(lambda: not list(claims.glob("*")), 120, self.state)
        wait_for(lambda: not list(self.rig.cdi.glob("sluice-claim-*")), 120, self.state)

    def state(self) -> str:
        """How things stand, for a test that fails."""
        listed = self.rig.kubectl("get", "pod,resourceclaim,resourceslice", "-A")
        events = self.rig.kubectl("get", "events", "--sort-by=.lastTimestamp")
        logs = "".join(
            f"\n--- {name}\n" + (self.folder / f"{name}.out").read_text()[-3000:]
            for name in ("node", "controller-part", "device-plugin", "extender", "server")
            if (self.folder / f"{name}.out").exists()
        )
        return f"{listed}\n{events[-3000:]}\n{json.dumps(self.plane.grants())[:2000]}{logs}"

    def start_part(self, name: str) -> None:
        """A part of `sluice-kubernetes`."""
        out = self.folder / ("controller-part.out" if name == "controller" else f"{name}.out")
        configuration = self.folder / f"{name}-part.conf"
        with out.open("ab") as file:
            self.parts[name] = subprocess.Popen(
                [sys.executable, "-m", "sluice.kubernetes", name, "--config", str(configuration)],
                stdout=file,
                stderr=file,
                env={**os.environ, "PYTHONPATH": str(PYTHON_PATH)},
            )

    def stop_part(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends it as a container is ended, or at once."""
        process = self.parts.pop(name)
        process.send_signal(number)
        process.wait(30)

    def _token(self, name: str, **terms: str) -> None:
        answer = self.plane.rest.post("/tokens", json=terms)
        assert answer.status_code == 201, answer.text
        path = self.folder / name
        path.write_text(answer.json()["secret"])
        path.chmod(0o600)

    @property
    def addresses(self) -> str:
        """Where the pool's controllers are."""
        return f"127.0.0.1:{self.plane.rest_port}"

    def configure(self, name: str) -> None:
        """A part's kubernetes.conf."""
        (self.folder / f"{name}-part.conf").write_text(
            f"""[log]
log_dir = {self.folder}/log
log_to_file = false
[controller]
addresses = {self.addresses}
token_file = {self.folder}/cluster.token
viewer_token_file = {self.folder}/viewer.token
[kubernetes]
kubeconfig = {self.folder}/{name}.kubeconfig
label = {LABEL}
project = {LABEL}
priorities = urgent=20, batch=-5
publish_seconds = 2
[node]
server_run_dir = {self.folder}/run
bundle = {self.bundle}
cdi_dir = {self.rig.cdi}
kubelet_dir = {self.rig.kubelet}
"""
        )

    # the pool

    def reserve(self, count: int, memory_mib: int, compute_percent: int) -> dict[str, Any]:
        """What is the cluster's."""
        answer = self.plane.rest.post(
            "/reservations",
            json={
                "owner_kind": "label",
                "owner": LABEL,
                "project": LABEL,
                "count": count,
                "memory_mib": memory_mib,
                "compute_percent": compute_percent,
                "node": NODE,
            },
        )
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def parts_of_reservation(self) -> list[dict[str, Any]]:
        """The parts that live."""
        answer = self.plane.rest.get(f"/reservations/{self.whole['id']}/parts")
        found: list[dict[str, Any]] = answer.json()["parts"]
        return found

    def pods_of_vgpus(self) -> list[dict[str, str]]:
        """The labels of sluice_vgpu_pod in what the server shows Prometheus."""
        text = httpx.get(f"{self.plane.metrics_url}/metrics").text
        return [dict(labels) for labels in Scrape(text).series("sluice_vgpu_pod")]

    def fail_gpu(self, xid: int) -> None:
        """Its card reports an error."""
        with self._nvml.open("a") as file:
            file.write(f"xid 0 {xid}\n")

    def clear_fault(self) -> None:
        """An operator says that the card is well; a server that restarts reads nothing else."""
        self._nvml.write_text("#" * (self._nvml.stat().st_size - 1) + "\n")
        [gpu] = self.plane.rest.get("/gpus").json()["gpus"]
        assert self.plane.rest.delete(f"/gpus/{gpu['uuid']}/fault").status_code == 202

    # the cluster

    def slices(self) -> list[dict[str, Any]]:
        """The specs that are published."""
        found = self.rig.get("resourceslices", "--field-selector", f"spec.driver={DRIVER}")
        return [each["spec"] for each in found["items"]]

    def wait_for_slices(self) -> None:
        """Until what is reserved is published, and the kubelet has the plugin."""
        wait_for(lambda: any(s.get("devices") for s in self.slices()), 120, self.state)
        registered = self.rig.kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"
        wait_for(registered.exists, 120, self.state)

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Makes objects, all at once."""
        self.rig.create(*objects)

    def phase(self, pod: str, namespace: str = "default") -> str:
        """Of a pod; "" where it is gone."""
        with contextlib.suppress(Exception):
            return str(self.rig.get("-n", namespace, "pod", pod)["status"].get("phase", ""))
        return ""

    def events(self, pod: str) -> str:
        """What is said of a pod by anybody, a line each."""
        words = ("events", "--field-selector", f"involvedObject.name={pod}")
        return "\n".join(each["message"] for each in self.rig.get(*words)["items"])

    def reasons(self, pod: str) -> list[str]:
        """What Sluice's own events say of why a pod waits."""
        return [text for reason, text in self.told(pod) if reason == "WaitsForVGPU"]

    def told(self, pod: str) -> list[tuple[str, str]]:
        """The events of a pod that Sluice's own wrote, reason and text, oldest first."""
        listed = self.rig.get("events", "--field-selector", f"involvedObject.name={pod}")["items"]
        own = [each for each in listed if each["source"].get("component") == "sluice-kubernetes"]
        own.sort(key=lambda each: int(each["metadata"]["resourceVersion"]))
        return [(each["reason"], each["message"]) for each in own]

    def wait_for_phase(self, pod: str, *phases: str, namespace: str = "default") -> str:
        """Until a pod is in one of them; which."""
        wait_for(lambda: self.phase(pod, namespace) in phases, 180, self.state)
        return self.phase(pod, namespace)

    def finished(self, pod: str, namespace: str = "default") -> str:
        """The log of a pod that succeeds."""
        reached = self.wait_for_phase(pod, "Succeeded", "Failed", namespace=namespace)
        log = self.rig.kubectl("-n", namespace, "logs", pod)
        assert reached == "Succeeded", f"{log}\n{self.state()}"
        return log


def template(name: str, memory: str = "", compute: str = "", **exactly: Any) -> dict[str, Any]:
    """A ResourceClaimTemplate of one device."""
    wanted = {"memory": memory, "compute": compute}
    requests = {key: value for key, value in wanted.items() if value}
    request = {"deviceClassName": DRIVER, **exactly}
    if requests:
        request["capacity"] = {"requests": requests}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": request}]}}},
    }


def container(name: str, *command: str, claim: str = "gpu", **more: Any) -> dict[str, Any]:
    """A container that has the pod's claim of that name, or none."""
    return {
        "name": name,
        "image": CUDA_IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
        **({"resources": {"claims": [{"name": claim}]}} if claim else {}),
        **more,
    }


def pod(
    name: str, *containers: dict[str, Any], claim_template: str = "", claim: str = "", **spec: Any
) -> dict[str, Any]:
    """A pod on the host's network, which needs no network plugin."""
    claims = []
    if claim_template:
        claims = [{"name": "gpu", "resourceClaimTemplateName": claim_template}]
    elif claim:
        claims = [{"name": "gpu", "resourceClaimName": claim}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "hostNetwork": True,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": list(containers),
            **({"resourceClaims": claims} if claims else {}),
            **spec,
        },
    }
