# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes of one node: etcd, the control plane, one kubelet, containerd, runc, real pods.

Used by tests/kubernetes; by hand `python -m tests.rigs.kubernetes.rig up|down|kubectl …`. The
programs are built by dev/build_kubernetes.sh. No registry, no systemd, no change of the machine's
sysctls or netfilter; servers listen on loopback. All of it runs in mount and pid namespaces of its
own (init.sh), so that ending one process ends everything. Several run beside one another, each with
a number: folder, ports, cgroups and the pods' subnet are a rig's own, and so is what it has at the
paths that are built into its programs.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.rigs.kubernetes.api import Api, NotDone
from tests.rigs.kubernetes.image import write_images
from tests.rigs.kubernetes.keys import make_keys

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
PROGRAMS = CHECKOUT / "build" / "kubernetes"
NODE = "127.0.0.1"  # a node that is called by its address: the kubelet takes it unchecked
#: Of the rig with number 0; the next one has each PORTS_APART further on.
PORTS = {
    "API_PORT": 16443,
    "ETCD_PORT": 12379,
    "ETCD_PEER": 12380,
    "KUBELET_PORT": 10250,
    "KUBELET_HEALTH": 10248,
    "KCM_PORT": 10257,
    "SCHED_PORT": 10259,
}
PORTS_APART = 20
#: Paths that are built into the programs. A rig has folders of its own mounted there, for itself.
BUILT_IN = (
    "/run/containerd",
    "/run/netns",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
)
#: Whoever holds it runs a rig, which needs the folders of BUILT_IN.
LOCK = Path("/tmp/sluice-kubernetes.lock")
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
BUSYBOX = Path("/bin/busybox")


class RigError(Exception):
    """It does not run; the text says what is missing."""


class KubernetesRig:
    """One cluster; `number` is 0 to 99, and nobody else's on this machine at the time."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.run = run = Path(f"/tmp/sluice-kubernetes-{number}")  # short: sockets lie in it
        self.log = run / "log"
        self.cdi = run / "cdi"
        self.kubelet = run / "own" / "kubelet"  # what its kubelet has at /var/lib/kubelet
        self.kubeconfig = run / "admin.kubeconfig"
        ports = {name: port + PORTS_APART * number for name, port in PORTS.items()}
        self.api_port = ports["API_PORT"]
        #: By which a pod on its node's network finds the API server: there are no Services.
        self.api_place = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.api_port),
        }
        self._cgroup = f"/sluicerig{number}"
        self._pki = run / "pki"
        self._known_api: Api | None = None
        self._settings = {
            **{name: str(port) for name, port in ports.items()},
            "RUN": str(run),
            "PKI": str(self._pki),
            "NODE": NODE,
            "CGROUP": self._cgroup,
        }
        self.environment = {
            **os.environ,
            **self._settings,
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "LOG": str(self.log),
            "BUILT_IN": " ".join(BUILT_IN),
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(run / "kubecache"),
            "GOGC": "200",  # rather memory than time: two cores, several rigs
        }

    # life

    def up(self, feature_gates: str = "") -> None:
        """Starts it, and returns when the node is ready; raises RigError."""
        if not (PROGRAMS / "kube").exists():
            raise RigError(f"{PROGRAMS} has no programs: make build/.kubernetes")
        if os.geteuid():
            raise RigError("only root can start containers")
        self.down()
        for folder in (self.log, self._pki, self.cdi, self.run / "images", self.run / "cni"):
            folder.mkdir(parents=True, exist_ok=True)
        (self.kubelet / "device-plugins").mkdir(parents=True)
        # it would end itself while the API server does not know its node
        (self.run / "kubelet.stopped").touch()
        make_keys(self._pki)
        self._make_tokens()
        self._known_api = None
        self._configure(feature_gates)
        with (self.log / "init.log").open("ab") as out, LOCK.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)  # the rig's from now on, until it ends
            process = subprocess.Popen(
                [*ALONE, "bash", str(HERE / "init.sh")],
                env={**self.environment, "FEATURE_GATES": feature_gates},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
        (self.run / "unshare.pid").write_text(str(process.pid))
        self.wait("containerd", lambda: self._ctr("version").returncode == 0)
        self._import_own_images()
        self.wait("the API server", self.is_ready)
        (self.run / "kubelet.stopped").unlink()
        self.wait("the default service account", self._has_account)
        self.wait("the node", self._node_is_ready)

    def down(self) -> None:
        """Ends everything, and removes what it left."""
        pid_file = self.run / "unshare.pid"
        if pid_file.exists():
            pid = int(pid_file.read_text())
            try:
                if b"unshare" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)  # --kill-child: the namespaces go with it
            except OSError:
                pass  # it has ended
            self._reap(pid)
        self._remove_cgroups()
        if f" {self.run}/" in Path("/proc/self/mountinfo").read_text():
            raise RigError(f"something is mounted below {self.run} still")
        shutil.rmtree(self.run, ignore_errors=True)
        with LOCK.open("ab") as lock, contextlib.suppress(OSError):
            # a folder that goes takes what another rig has mounted there: the last one removes them
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for folder in BUILT_IN:
                with contextlib.suppress(OSError):  # it is the machine's, or was not there
                    Path(folder).rmdir()

    def end(self, component: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends one component, which is started again."""
        inside = (self.run / f"{component}.nspid").read_text().strip()
        subprocess.run(
            ["nsenter", "-t", self._first_inside(), "-m", "-p", "kill", f"-{number.value}", inside],
            check=True,
        )

    def restart(self, component: str) -> None:
        """Kills one component, and returns when it runs again; it may have done nothing yet."""
        place = self.run / f"{component}.nspid"
        before = place.read_text()
        self.end(component, signal.SIGKILL)
        self.wait(f"a new {component}", lambda: place.read_text() not in ("", before), 30)

    def stop(self, component: str) -> None:
        """Ends one component until `go_on`."""
        (self.run / f"{component}.stopped").touch()
        self.end(component, signal.SIGKILL)

    def go_on(self, component: str) -> None:
        """Lets it start again."""
        (self.run / f"{component}.stopped").unlink()

    def forget_devices(self, resource: str) -> None:
        """Node and kubelet know of no device plugin for it: else five minutes after that has ended.

        Up to then the kubelet takes a resource for the plugin's, and starts no pod that has it by
        DRA.
        """
        self.stop("kubelet")
        told = self.kubelet / "device-plugins" / "kubelet_internal_checkpoint"
        told.unlink(missing_ok=True)
        none = {"status": {"capacity": {resource: None}, "allocatable": {resource: None}}}
        words = ("node", NODE, "--subresource=status", "--type=merge", "-p", json.dumps(none))
        self.kubectl("patch", *words)
        self.go_on("kubelet")

    # use

    def try_kubectl(self, *words: str, stdin: str | None = None) -> bool:
        """Whether it does that."""
        return self._kubectl(words, stdin).returncode == 0

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """What kubectl prints; raises RigError."""
        ran = self._kubectl(words, stdin)
        if ran.returncode:
            raise RigError(f"kubectl {' '.join(words)}: {ran.stderr.strip()}")
        return ran.stdout

    def get(self, *words: str) -> Any:
        """An object, or a list of them; raises RigError."""
        try:
            return self._api().get(*words)
        except NotDone as error:
            raise RigError(f"get {' '.join(words)}: {error}") from None

    def is_ready(self) -> bool:
        """Whether the API server says that it is."""
        return self._api().is_ready()

    def as_it_would_be(self, pod: Mapping[str, Any]) -> Any:
        """A pod as the API server would store it; raises RigError where it would refuse it."""
        try:
            return self._api().as_it_would_be(pod)
        except NotDone as error:
            raise RigError(str(error)) from None

    def create(self, *objects: Mapping[str, Any]) -> None:
        """Makes objects in their order, as `kubectl apply` does; raises RigError.

        From the first on that is of another kind, or there already, it is kubectl that makes them.
        """
        left = list(objects)
        try:
            while left and self._api().create(left[0]):
                del left[0]
        except NotDone as error:
            if error.status:
                raise RigError(str(error)) from None
        if left:
            listed = {"apiVersion": "v1", "kind": "List", "items": left}
            self.kubectl("apply", "-f", "-", stdin=json.dumps(listed))

    def delete_all(self, *kinds: str) -> None:
        """Of these in the default namespace, in a second, without a wait; raises RigError."""
        try:
            for kind in kinds:
                self._api().delete_all(kind, grace_seconds=1)
        except NotDone as error:
            raise RigError(str(error)) from None

    def may(self, account: str, verb: str, resource: str, part: str = "", group: str = "") -> bool:
        """Whether a service account (NAMESPACE:NAME) has that right; raises RigError."""
        named = {"verb": verb, "resource": resource, "subresource": part, "group": group}
        try:
            return self._api().may(account, named)
        except NotDone as error:
            raise RigError(f"may {account} {verb} {resource}: {error}") from None

    def log_of(self, pod: str, container: str) -> str:
        """What a container has said; "" where it has not begun, or nobody answers."""
        try:
            return self._api().log(pod, container)
        except NotDone:
            return ""

    def load_image(
        self,
        name: str,
        files: Mapping[str, Path | str],
        *,
        entrypoint: str = "",
        stop_signal: str = "",
    ) -> None:
        """Makes an image of files and hands it to containerd."""
        self.load_images({name: entrypoint}, files, stop_signal)

    def load_images(
        self,
        entrypoints: Mapping[str, str],
        files: Mapping[str, Path | str],
        stop_signal: str = "",
    ) -> None:
        """The same for several of the same files, by name; see write_images."""
        with tempfile.NamedTemporaryFile(dir=self.run / "images", suffix=".tar") as archive:
            write_images(Path(archive.name), entrypoints, files, stop_signal)
            loaded = self._ctr("-n", "k8s.io", "images", "import", archive.name)
        if loaded.returncode:
            raise RigError(f"image {', '.join(entrypoints)}: {loaded.stderr}")

    def has_image(self, name: str) -> bool:
        """Whether containerd has it."""
        return name in self._ctr("-n", "k8s.io", "images", "list", "-q").stdout.splitlines()

    def wait(self, what: str, is_there: Callable[[], Any], seconds: float = 240) -> None:
        """Until it is there; raises RigError."""
        deadline = time.monotonic() + seconds
        while not is_there():
            if time.monotonic() > deadline:
                raise RigError(f"{what} did not come within {seconds:g} s; logs are in {self.log}")
            time.sleep(0.1)

    # within

    def _has_account(self) -> bool:
        with contextlib.suppress(RigError):
            return bool(self.get("serviceaccount", "default"))
        return False

    def _node_is_ready(self) -> bool:
        with contextlib.suppress(RigError):
            said = self.get("node", NODE)["status"].get("conditions", ())
            return any(each["type"] == "Ready" and each["status"] == "True" for each in said)
        return False

    def _api(self) -> Api:
        if self._known_api is None:
            [user] = json.loads(self.kubeconfig.read_text())["users"]
            url = f"https://127.0.0.1:{self.api_port}"
            self._known_api = Api(url, str(self._pki / "ca.crt"), user["user"]["token"])
        return self._known_api

    def _kubectl(
        self, words: tuple[str, ...], stdin: str | None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PROGRAMS / "kubectl"), *words],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def _ctr(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PROGRAMS / "ctr"), "-a", str(self.run / "containerd.sock"), *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def _first_inside(self) -> str:
        parent = (self.run / "unshare.pid").read_text()
        found = subprocess.run(["pgrep", "-P", parent], check=True, capture_output=True, text=True)
        return found.stdout.split()[0]

    def _reap(self, pid: int) -> None:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            time.sleep(0.3)  # it was another's child

    def _remove_cgroups(self) -> None:
        for _ in range(20):
            roots = [d / self._cgroup.lstrip("/") for d in Path("/sys/fs/cgroup").iterdir()]
            roots = [root for root in roots if root.is_dir()]
            if not roots:
                return
            for root in roots:
                for folder, _, _ in os.walk(root, topdown=False):
                    with contextlib.suppress(OSError):  # its processes are about to end
                        Path(folder).rmdir()
            time.sleep(0.2)

    def _make_tokens(self) -> None:
        with (self._pki / "tokens.csv").open("w") as file:
            rows = csv.writer(file)
            for name, user, group in (
                ("admin", "admin", "system:masters"),
                ("kcm", "system:kube-controller-manager", ""),
                ("scheduler", "system:kube-scheduler", ""),
                ("kubelet", f"system:node:{NODE}", "system:nodes"),
            ):
                token = secrets.token_hex(16)
                rows.writerow([token, user, user, *([group] if group else [])])
                self.write_kubeconfig(self.run / f"{name}.kubeconfig", token)

    def write_kubeconfig(self, path: Path, token: str) -> None:
        """For whoever has a token."""
        cluster = {
            "server": f"https://127.0.0.1:{self.api_port}",
            "certificate-authority": str(self._pki / "ca.crt"),
        }
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "rig", "cluster": cluster}],
                    "users": [{"name": "user", "user": {"token": token}}],
                    "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "user"}}],
                    "current-context": "rig",
                }
            )
        )
        path.chmod(0o600)

    def extend_scheduler(self, *extenders: Mapping[str, Any]) -> None:
        """Has the scheduler ask these (KubeSchedulerConfiguration), and no others."""
        text = self._filled("scheduler.yaml")
        (self.run / "scheduler.yaml").write_text(f"{text}extenders: {json.dumps(extenders)}\n")
        self.end("kube-scheduler", signal.SIGKILL)

    def _filled(self, name: str) -> str:
        text = (HERE / "conf" / name).read_text()
        for key, value in self._settings.items():
            text = text.replace(f"@{key}@", value)
        return text

    def _configure(self, feature_gates: str) -> None:
        for source in (HERE / "conf").iterdir():
            text = self._filled(source.name)
            if source.name == "kubelet.yaml" and feature_gates:
                gates = [gate.partition("=") for gate in feature_gates.split(",")]
                text += "featureGates:\n"
                text += "".join(f"  {name}: {value}\n" for name, _, value in gates)
            (self.run / source.name).write_text(text)
        # without a network plugin the node is not ready, though the pods are on the host's network
        network = {
            "cniVersion": "0.4.0",
            "name": "rig",
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.run / "cni-ipam"),
                        "ranges": [[{"subnet": f"10.88.{self.number}.0/24"}]],
                    },
                }
            ],
        }
        (self.run / "cni" / "10-rig.conflist").write_text(json.dumps(network))

    def _import_own_images(self) -> None:
        self.load_image("localhost/pause:rig", {"pause": PROGRAMS / "pause"}, entrypoint="/pause")
        listed = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True)
        tools: dict[str, Path | str] = {"bin/busybox": BUSYBOX}
        names = set(listed.stdout.split()) - {"busybox"}
        tools.update({f"bin/{name}": "busybox" for name in sorted(names)})
        self.load_image("localhost/busybox:rig", tools)


def main() -> int:
    """By hand."""
    rig = KubernetesRig()
    words = sys.argv[1:]
    if words[:1] == ["up"]:
        rig.up()
    elif words[:1] == ["down"]:
        rig.down()
    elif words[:1] == ["kubectl"]:
        command = [str(PROGRAMS / "kubectl"), *words[1:]]
        return subprocess.run(command, check=False, env=rig.environment).returncode
    else:
        print("usage: rig.py up|down|kubectl WORDS…", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
