# SPDX-License-Identifier: Apache-2.0
"""A real cluster of one node with a pool of ours beside it, for the tests marked `kubernetes`.

Started once by each process that runs tests. The parts of sluice.kubernetes are processes of this
machine that are the service accounts of kubernetes/manifests/rbac.yaml: they have its rights and no
others.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster_pool import ClusterPool
from tests.kubernetes.service_image import load
from tests.rigs.kubernetes.rig import CHECKOUT, KubernetesRig

PROGRAMS = CHECKOUT / "build" / "programs"
MANIFESTS = CHECKOUT / "kubernetes" / "manifests"

#: Without the client library (the extra `kubernetes`) the other tests run all the same.
collect_ignore = (
    []
    if importlib.util.find_spec("kubernetes.aio")
    else [path.name for path in Path(__file__).parent.glob("test_*.py")]
)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guest bundle, as a host has it installed for its containers."""
    folder = tmp_path_factory.mktemp("bundle")
    archive = CHECKOUT / "dist" / "sluice-guest-x86_64.tar.gz"
    subprocess.run(["tar", "xzf", archive, "-C", folder, "--strip-components=1"], check=True)
    return folder


@pytest.fixture(scope="session")
def rig(bundle: Path) -> Iterator[KubernetesRig]:
    """The cluster, with the images that the pods of the tests have."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    made = KubernetesRig(int(worker.removeprefix("gw")))
    made.up()
    try:
        ClusterPool.load_images(made, PROGRAMS, bundle)
        for name in ("namespaces.yaml", "rbac.yaml", "classes.yaml"):
            made.kubectl("apply", "-f", str(MANIFESTS / name))
        yield made
    finally:
        if os.environ.get("SLUICE_KEEP_RIG") != "1":
            made.down()


@pytest.fixture(scope="session")
def cluster(rig: KubernetesRig, bundle: Path) -> Iterator[ClusterPool]:
    """The pool and its parts in the cluster, for every test."""
    pool = ClusterPool(rig, bundle)
    try:
        pool.start()
        yield pool
    finally:
        pool.close()


@pytest.fixture(scope="session")
def service_image(rig: KubernetesRig) -> None:
    """The image of the parts of a cluster is there."""
    load(rig)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test made goes with it, and leaves the pool empty."""
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").clear()
