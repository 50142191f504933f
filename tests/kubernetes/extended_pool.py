# SPDX-License-Identifier: Apache-2.0
"""The same cluster and pool without DRA: device plugin, extender and webhook, as processes.

Used by the tests of clusters without DRA. They are the service accounts of
kubernetes/manifests/extended-resources.yaml, and scheduler and API server ask them as the manifests
say, but for where they listen: pods of the rig reach nothing but their node.
"""

from __future__ import annotations

import base64
import json
import signal
import ssl
import subprocess
from typing import Any

import httpx
import yaml
from free_ports import free_port

from tests.kubernetes.cluster_pool import ClusterPool, container
from tests.kubernetes.waits import wait_for
from tests.rigs.kubernetes.rig import CHECKOUT, NODE, RigError

MANIFESTS = CHECKOUT / "kubernetes" / "manifests"
VGPU, MEMORY, COMPUTE = "sluice.io/vgpu", "sluice.io/vgpu-memory-mib", "sluice.io/vgpu-compute"
#: The systems whose words are read, and how their resources begin.
SPELLINGS, SPELT = "hami, orionx", ("nvidia.com/gpu", "virtaitech.com/gpu")
PARTS = {"device-plugin": "sluice-node", "extender": "sluice"}


class ExtendedPool:
    """What a cluster without DRA has instead."""

    def __init__(self, cluster: ClusterPool) -> None:
        self.cluster = cluster
        self.rig = cluster.rig
        self.port = free_port()
        self._tls = cluster.folder / "tls"

    # life

    def begin(self) -> None:
        """The parts are those of a cluster without DRA."""
        for part in list(self.cluster.parts):
            self.cluster.stop_part(part)
        self.rig.kubectl("delete", "-f", str(MANIFESTS / "classes.yaml"))
        self.rig.kubectl("delete", "resourceslices", "--all")
        self.rig.kubectl("apply", "-f", str(MANIFESTS / "extended-resources.yaml"))
        self._make_certificate()
        for part, namespace in PARTS.items():
            account = f"sluice-{part}"
            token = self.rig.kubectl("-n", namespace, "create", "token", account).strip()
            self.rig.write_kubeconfig(self.cluster.folder / f"{part}.kubeconfig", token)
            self.configure(part)
            self.cluster.start_part(part)
        self.rig.extend_scheduler(self.extender())
        self.put_webhook()
        for part in PARTS:
            self.wait_for(part)

    def end(self) -> None:
        """The cluster has DRA again."""
        self.rig.kubectl("delete", "--ignore-not-found", "mutatingwebhookconfiguration", "--all")
        self.rig.extend_scheduler()
        for part in PARTS:
            if part in self.cluster.parts:
                self.cluster.stop_part(part)
        self.rig.forget_devices(VGPU)
        self.rig.kubectl("delete", "-f", str(MANIFESTS / "extended-resources.yaml"))
        self.rig.kubectl("apply", "-f", str(MANIFESTS / "classes.yaml"))
        for part in ("node", "controller"):
            self.cluster.start_part(part)
        self.cluster.wait_for_slices()

    def configure(self, part: str, *, cdi: bool = True) -> None:
        """The part's kubernetes.conf."""
        self.cluster.configure(part)
        path = self.cluster.folder / f"{part}-part.conf"
        text = path.read_text().replace("[node]\n", f"[node]\nnode_name = {NODE}\ncdi = {cdi}\n")
        text = text.replace("[kubernetes]\n", f"[kubernetes]\nspellings = {SPELLINGS}\n")
        path.write_text(
            f"{text}[extender]\nbind_addr = 127.0.0.1\nport = {self.port}\n"
            f"cert_file = {self._tls}/tls.crt\nkey_file = {self._tls}/tls.key\n"
        )

    def restart(self, part: str, number: signal.Signals = signal.SIGKILL, **settings: Any) -> None:
        """Ends a part and starts it anew."""
        self.cluster.stop_part(part, number)
        self.configure(part, **settings)
        if part == "device-plugin":  # the node says so, before it says what there is again
            wait_for(lambda: self.allocatable() == "0", 60, self.cluster.state)
        self.cluster.start_part(part)
        self.wait_for(part)

    def wait_for(self, part: str) -> None:
        """Until a part that was started does its work."""
        if part == "extender":
            wait_for(self.answers, 60, self.cluster.state)
        else:
            wait_for(lambda: self.allocatable() == "4", 60, self.cluster.state)

    # how it is asked

    def extender(self) -> dict[str, Any]:
        """As kubernetes/manifests/scheduler-extender.yaml has it, at this machine's address."""
        text = (MANIFESTS / "scheduler-extender.yaml").read_text()
        [found] = yaml.safe_load(text)["extenders"]
        found["urlPrefix"] = f"https://127.0.0.1:{self.port}"
        found["tlsConfig"] = {"caFile": str(self._tls / "tls.crt")}
        whole: dict[str, Any] = found
        return whole

    def ca_bundle(self) -> str:
        """What certificates are checked with, as the webhook's configuration has it."""
        return base64.b64encode((self._tls / "tls.crt").read_bytes()).decode()

    def put_webhook(self) -> None:
        """As kubernetes/manifests/webhook.yaml has it, for the other systems' words as well."""
        ca = self.ca_bundle()
        found = yaml.safe_load((MANIFESTS / "webhook.yaml").read_text().replace("@CA_BUNDLE@", ca))
        [webhook] = found["webhooks"]
        del webhook["clientConfig"]["service"]
        webhook["clientConfig"]["url"] = f"https://127.0.0.1:{self.port}/mutate"
        [condition] = webhook["matchConditions"]
        ours = 'name.startsWith("sluice.io/vgpu")'
        assert ours in condition["expression"]
        every = " || ".join([ours, *(f'name.startsWith("{name}")' for name in SPELT)])
        condition["expression"] = condition["expression"].replace(ours, every)
        self.rig.kubectl("apply", "-f", "-", stdin=json.dumps(found))

    def answers(self) -> bool:
        """Whether the webhook is asked, and answers: the API server takes a while to know it."""
        tried = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "tried"},
            "spec": {"containers": [asking("c", "true", memory=10)]},
        }
        try:
            made = self.rig.as_it_would_be(tried)
        except RigError:
            return False
        return VGPU in made["spec"]["containers"][0]["resources"]["limits"]

    def ask(self, verb: str, arguments: dict[str, Any]) -> Any:
        """What the extender answers to whoever reaches its port."""
        trusted = ssl.create_default_context(cafile=str(self._tls / "tls.crt"))
        address = f"https://127.0.0.1:{self.port}/{verb}"
        return httpx.post(address, json=arguments, verify=trusted, timeout=60).json()

    def allocatable(self) -> str:
        """How many vGPUs the node has."""
        found = self.rig.get("node", NODE)["status"]["allocatable"]
        return str(found.get(VGPU, ""))

    def why_not_scheduled(self, pod: str) -> str:
        """The scheduler's word on a pod, of its events."""
        words = ("events", "--field-selector", f"involvedObject.name={pod}")
        listed = self.rig.get(*words)["items"]
        return "\n".join(e["message"] for e in listed if e["reason"] == "FailedScheduling")

    def _make_certificate(self) -> None:
        self._tls.mkdir(exist_ok=True)
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:prime256v1", "-nodes", "-days", "30", "-subj", "/CN=extender"),
                *("-addext", "subjectAltName=IP:127.0.0.1"),
                *("-keyout", self._tls / "tls.key", "-out", self._tls / "tls.crt"),
            ],
            check=True,
            capture_output=True,
        )


def asking(
    name: str, *command: str, count: int = 0, memory: int = 0, compute: int = 0, **more: Any
) -> dict[str, Any]:
    """A container that asks for vGPUs by extended resources."""
    wanted = {VGPU: count, MEMORY: memory, COMPUTE: compute}
    limits = {resource: str(number) for resource, number in wanted.items() if number}
    return container(name, *command, claim="", resources={"limits": limits}, **more)
