# SPDX-License-Identifier: Apache-2.0
"""A real Kubernetes of one node: etcd, the control plane, one kubelet, containerd, runc, real pods.

Used by tests/kubernetes; by hand `python -m tests.rigs.kubernetes.rig up|down|kubectl …`. The
programs are built by dev/build_kubernetes.sh. No registry, no systemd, no change of the machine's
sysctls or netfilter; servers listen on loopback. All of it runs in mount and pid namespaces of its
own (init.sh), so that ending one process ends everything. /var/lib/kubelet is a constant of the
kubelet's plugin interfaces: one rig at a time on a machine, and none beside a kubelet of its own.
"""

from __future__ import annotations

import contextlib
import csv
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

from tests.rigs.kubernetes.image import write_image
from tests.rigs.kubernetes.reading import NotRead, Reader

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[2]
PROGRAMS = CHECKOUT / "build" / "kubernetes"
RUN = Path("/tmp/sluice-kubernetes")  # short: sockets lie in it
KUBELET = Path("/var/lib/kubelet")
MINE = KUBELET / ".sluice-rig"
NODE = "127.0.0.1"  # a node that is called by its address: the kubelet takes it unchecked
CGROUP = "/sluicerig"
API_PORT = 16443
PORTS = {
    "API_PORT": str(API_PORT),
    "ETCD_PORT": "12379",
    "ETCD_PEER": "12380",
    "KUBELET_PORT": "10250",
    "KUBELET_HEALTH": "10248",
    "KCM_PORT": "10257",
    "SCHED_PORT": "10259",
}
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
BUSYBOX = Path("/bin/busybox")


class RigError(Exception):
    """It does not run; the text says what is missing."""


class KubernetesRig:
    """One cluster."""

    def __init__(self) -> None:
        self.run = RUN
        self.log = RUN / "log"
        self.cdi = RUN / "cdi"
        self.kubeconfig = RUN / "admin.kubeconfig"
        self._pki = RUN / "pki"
        self._reading: Reader | None = None
        self.environment = {
            **os.environ,
            **PORTS,
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "RUN": str(RUN),
            "PKI": str(self._pki),
            "LOG": str(self.log),
            "NODE": NODE,
            "CGROUP": CGROUP,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(RUN / "kubecache"),
        }

    # life

    def up(self, feature_gates: str = "") -> None:
        """Starts it, and returns when the node is ready; raises RigError."""
        if not (PROGRAMS / "kube").exists():
            raise RigError(f"{PROGRAMS} has no programs: make build/.kubernetes")
        if os.geteuid():
            raise RigError("only root can start containers")
        self.down()
        if KUBELET.exists() and not MINE.exists():
            raise RigError(f"{KUBELET} belongs to a kubelet of this machine")
        for folder in (self.log, self._pki, self.cdi, RUN / "images", RUN / "cni"):
            folder.mkdir(parents=True, exist_ok=True)
        (KUBELET / "device-plugins").mkdir(parents=True, exist_ok=True)
        MINE.touch()
        self._make_keys()
        self._reading = None
        self._configure(feature_gates)
        with (self.log / "init.log").open("ab") as out:
            process = subprocess.Popen(
                [*ALONE, "bash", str(HERE / "init.sh")],
                env={**self.environment, "FEATURE_GATES": feature_gates},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        (RUN / "unshare.pid").write_text(str(process.pid))
        self.wait("containerd", lambda: self._ctr("version").returncode == 0)
        self._import_own_images()
        self.wait("the API server", lambda: self.try_kubectl("get", "--raw", "/readyz"))
        self.wait(
            "the default service account",
            lambda: self.try_kubectl("get", "serviceaccount", "default"),
        )
        ready = ("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=1s")
        self.wait("the node", lambda: self.try_kubectl(*ready))

    def down(self) -> None:
        """Ends everything, and removes what it left."""
        pid_file = RUN / "unshare.pid"
        if pid_file.exists():
            pid = int(pid_file.read_text())
            try:
                if b"unshare" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)  # --kill-child: the namespaces go with it
            except OSError:
                pass  # it has ended
            self._reap(pid)
        self._remove_cgroups()
        mounted = Path("/proc/self/mountinfo").read_text()
        if f" {RUN}" in mounted or f" {KUBELET}" in mounted:
            raise RigError(f"something is mounted below {RUN} or {KUBELET} still")
        shutil.rmtree(RUN, ignore_errors=True)
        if MINE.exists():
            shutil.rmtree(KUBELET, ignore_errors=True)
        for folder in ("/run/containerd", "/run/netns", "/var/log/containers", "/var/lib/cni"):
            with contextlib.suppress(OSError):  # it is the machine's, or was not there
                Path(folder).rmdir()

    def end(self, component: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends one component, which is started again."""
        inside = (RUN / f"{component}.nspid").read_text().strip()
        subprocess.run(
            ["nsenter", "-t", self._first_inside(), "-m", "-p", "kill", f"-{number.value}", inside],
            check=True,
        )

    def restart(self, component: str) -> None:
        """Kills one component, and returns when it runs again; it may have done nothing yet."""
        place = RUN / f"{component}.nspid"
        before = place.read_text()
        self.end(component, signal.SIGKILL)
        self.wait(f"a new {component}", lambda: place.read_text() not in ("", before), 30)

    def stop(self, component: str) -> None:
        """Ends one component until `go_on`."""
        (RUN / f"{component}.stopped").touch()
        self.end(component, signal.SIGKILL)

    def go_on(self, component: str) -> None:
        """Lets it start again."""
        (RUN / f"{component}.stopped").unlink()

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
            return self._reader().get(*words)
        except NotRead as error:
            raise RigError(f"get {' '.join(words)}: {error}") from None

    def log_of(self, pod: str, container: str) -> str:
        """What a container has said; "" where it has not begun, or nobody answers."""
        try:
            return self._reader().log(pod, container)
        except NotRead:
            return ""

    def load_image(
        self, name: str, files: Mapping[str, Path | str], *, entrypoint: str = ""
    ) -> None:
        """Makes an image of files and hands it to containerd."""
        with tempfile.NamedTemporaryFile(dir=RUN / "images", suffix=".tar") as archive:
            write_image(Path(archive.name), name, files, entrypoint=entrypoint)
            loaded = self._ctr("-n", "k8s.io", "images", "import", archive.name)
        if loaded.returncode:
            raise RigError(f"image {name}: {loaded.stderr}")

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

    def _reader(self) -> Reader:
        if self._reading is None:
            [user] = json.loads(self.kubeconfig.read_text())["users"]
            url = f"https://127.0.0.1:{API_PORT}"
            self._reading = Reader(url, str(self._pki / "ca.crt"), user["user"]["token"])
        return self._reading

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
            [str(PROGRAMS / "ctr"), "-a", str(RUN / "containerd.sock"), *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def _first_inside(self) -> str:
        parent = (RUN / "unshare.pid").read_text()
        found = subprocess.run(["pgrep", "-P", parent], check=True, capture_output=True, text=True)
        return found.stdout.split()[0]

    def _reap(self, pid: int) -> None:
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            time.sleep(0.3)  # it was another's child

    def _remove_cgroups(self) -> None:
        for _ in range(20):
            roots = [d / CGROUP.lstrip("/") for d in Path("/sys/fs/cgroup").iterdir()]
            roots = [root for root in roots if root.is_dir()]
            if not roots:
                return
            for root in roots:
                for folder, _, _ in os.walk(root, topdown=False):
                    with contextlib.suppress(OSError):  # its processes are about to end
                        Path(folder).rmdir()
            time.sleep(0.2)

    def _make_keys(self) -> None:
        def openssl(*words: str) -> None:
            subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=self._pki)

        def key(name: str) -> None:
            openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")

        def certificate(name: str, subject: str, extension: str) -> None:
            key(name)
            openssl("req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
            (self._pki / f"{name}.ext").write_text(extension)
            openssl(
                *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
                *("-CAcreateserial", "-days", "30", "-extfile", f"{name}.ext"),
                *("-out", f"{name}.crt"),
            )

        key("ca")
        openssl(
            *("req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=rig-ca", "-days", "30"),
            *("-out", "ca.crt"),
        )
        names = "IP:127.0.0.1,IP:10.96.0.1,DNS:localhost,DNS:kubernetes.default.svc"
        certificate("apiserver", "/CN=kube-apiserver", f"subjectAltName={names}")
        certificate(
            "kubelet-client",
            "/O=system:masters/CN=kube-apiserver",
            "extendedKeyUsage=clientAuth",
        )
        openssl("genrsa", "-out", "sa.key", "2048")
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
                self.write_kubeconfig(RUN / f"{name}.kubeconfig", token)

    def write_kubeconfig(self, path: Path, token: str) -> None:
        """For whoever has a token."""
        cluster = {
            "server": f"https://127.0.0.1:{API_PORT}",
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
        (RUN / "scheduler.yaml").write_text(f"{text}extenders: {json.dumps(extenders)}\n")
        self.end("kube-scheduler", signal.SIGKILL)

    def _filled(self, name: str) -> str:
        values = {"RUN": str(RUN), "PKI": str(self._pki), "NODE": NODE, "CGROUP": CGROUP, **PORTS}
        text = (HERE / "conf" / name).read_text()
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        return text

    def _configure(self, feature_gates: str) -> None:
        for source in (HERE / "conf").iterdir():
            text = self._filled(source.name)
            if source.name == "kubelet.yaml" and feature_gates:
                gates = [gate.partition("=") for gate in feature_gates.split(",")]
                text += "featureGates:\n"
                text += "".join(f"  {name}: {value}\n" for name, _, value in gates)
            (RUN / source.name).write_text(text)
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
                        "dataDir": str(RUN / "cni-ipam"),
                        "ranges": [[{"subnet": "10.88.0.0/24"}]],
                    },
                }
            ],
        }
        (RUN / "cni" / "10-rig.conflist").write_text(json.dumps(network))

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
