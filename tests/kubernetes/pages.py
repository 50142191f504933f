# SPDX-License-Identifier: Apache-2.0
"""What the tests of docs/kubernetes.md run its commands with, and on.

Used by test_page.py and test_page_without_dra.py: a cluster that has been told nothing of Sluice,
and a shell of whoever follows the page.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.kubernetes.cluster_pool import CUDA_IMAGE, ClusterPool
from tests.kubernetes.waits import wait_for
from tests.rigs.kubernetes.rig import CHECKOUT, NODE, PROGRAMS

MANIFESTS = CHECKOUT / "kubernetes" / "manifests"
PAGE = CHECKOUT / "docs" / "kubernetes.md"
INSTALLED = Path("/opt/sluice")
OWN = ("namespaces.yaml", "rbac.yaml", "classes.yaml")


@contextmanager
def nothing_told(cluster: ClusterPool, bundle: Path) -> Iterator[None]:
    """The cluster knows nothing of Sluice, and its node has the guest bundle.

    Whoever tells it something makes it forget that.
    """
    rig = cluster.rig
    for part in list(cluster.parts):
        cluster.stop_part(part)
    cluster.plane.rest.delete(f"/reservations/{cluster.whole['id']}")
    rig.kubectl("delete", "resourceslices", "--all")
    for name in reversed(OWN):
        rig.kubectl("delete", "-f", str(MANIFESTS / name))
    INSTALLED.symlink_to(bundle)
    try:
        yield
    finally:
        INSTALLED.unlink()
        for name in OWN:
            rig.kubectl("apply", "-f", str(MANIFESTS / name))
        cluster.begin()


def forget(cluster: ClusterPool) -> None:
    """What a page has told the cluster, and made there and in the pool, is gone."""
    rig = cluster.rig
    rig.kubectl("delete", "pod,resourceclaimtemplate", "--all", "--timeout=120s")
    wait_for(lambda: not rig.get("resourceclaims")["items"], 60, cluster.state)
    for name in ("node.yaml", "controller.yaml"):
        rig.kubectl("delete", "--ignore-not-found", "-f", str(MANIFESTS / name))
    rig.kubectl("delete", "--ignore-not-found", "resourceslices", "--all")
    for name in reversed(OWN):
        words = ("--ignore-not-found", "-f", str(MANIFESTS / name), "--timeout=120s")
        rig.kubectl("delete", *words)
    for each in cluster.plane.rest.get("/reservations").json()["reservations"]:
        cluster.plane.rest.delete(f"/reservations/{each['id']}")
    rig.try_kubectl("label", "node", NODE, "sluice.io/server-")


def shell(cluster: ClusterPool, home: Path) -> Callable[[str, Mapping[str, str]], str]:
    """Runs the page's commands: kubectl is the cluster's admin, sluice the pool's."""
    (home / ".sluice").mkdir()
    token = home / ".sluice" / "token"
    token.touch(0o600)
    token.write_text(cluster.plane.first_token())
    path = f"{CHECKOUT / 'build' / 'bin'}:{PROGRAMS}:{os.environ['PATH']}"
    environment = {**cluster.rig.environment, "HOME": str(home), "PATH": path}

    def run(command: str, variables: Mapping[str, str]) -> str:
        ran = subprocess.run(
            ["timeout", "200", "bash", "-e", "-o", "pipefail", "-c", command],
            env={**environment, **variables},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if ran.returncode:
            raise AssertionError(f"{ran.stdout}{ran.stderr}\n{cluster.state()}\n{pods(cluster)}")
        return ran.stdout

    return run


def values(cluster: ClusterPool) -> dict[str, str]:
    """What the page leaves to its reader."""
    return {
        "SOURCE": str(CHECKOUT),
        "CONTROLLER": f"127.0.0.1:{cluster.plane.rest_port}",
        "NODE": NODE,
        "IMAGE": CUDA_IMAGE,
    }


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
