# SPDX-License-Identifier: Apache-2.0
"""Image roots, the guest bundle, programs for them, a pool with a software GPU, and podman."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_plane import ControlPlane, native_worker, running

from tests.guest_images.program import build_program

from .podman import Podman

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
ROOTS = CHECKOUT / "build" / "containers" / "roots"
#: Who has rootless containers; dev/install_debian.sh makes the account.
ROOTLESS = "sluice-rootless"
DEVICES = "small=memory:64 compute:10 project:vision, shared=memory:64 processes:3"


def image_root(name: str) -> Path:
    """A root that dev/make_container_roots.sh has made, or that somebody names."""
    given = os.environ.get("SLUICE_RHEL_ROOT") if name == "rhel" else None
    root = Path(given) if given else ROOTS / name
    if not root.is_dir():
        pytest.skip(f"there is no {root}: no mirror here has it (dev/make_container_roots.sh)")
    return root


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guest bundle, unpacked where other users reach it."""
    archive = Path(
        os.environ.get("SLUICE_GUEST_BUNDLE", CHECKOUT / "dist" / "sluice-guest-x86_64.tar.gz")
    )
    if not archive.exists():
        pytest.fail(f"{archive} is not there: make guest-bundle")
    folder = tmp_path_factory.mktemp("bundle")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="tar")
    reachable(folder)
    return folder / "sluice-guest"


def reachable(folder: Path) -> None:
    """Other users pass the folder; tests' folders are their owner's alone."""
    folder.chmod(0o755)
    everybodys = Path(tempfile.gettempdir()).resolve()
    for parent in folder.resolve().parents:
        if parent == everybodys or not parent.is_relative_to(everybodys):
            break
        parent.chmod(0o755)


@pytest.fixture(scope="session")
def programs(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CUDA programs that run with every glibc from 2.28 on, in one folder."""
    folder = tmp_path_factory.mktemp("programs")
    for source in (HERE.parent / "guest_images/add.cu", HERE / "spin.cu"):
        build_program(folder, bundle / "lib", source)
    reachable(folder)
    return folder


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A controller, and a server with the software GPU and devices for containers."""
    if native_worker() is None:
        pytest.fail("the native part is not built (make native)")
    folder = tmp_path_factory.mktemp("pool")
    reachable(folder)
    users = {"users": f"{ROOTLESS}=speech"}
    with running(
        folder,
        containers={"devices": DEVICES},
        projects=users,
        pool={"job_linger_seconds": 1},  # a container's grant makes room for the next test's
    ) as started:
        yield started


@pytest.fixture(scope="session")
def specifications(
    bundle: Path, plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder with what `sluice cdi generate` wrote for that server."""
    folder = tmp_path_factory.mktemp("cdi")
    reachable(folder)
    command = [sys.executable, "-m", "sluice.cli", "cdi", "generate", "--bundle", str(bundle)]
    subprocess.run(
        [
            *command,
            *("--config", str(plane.folder / "server.conf")),
            *("--output", str(folder / "sluice.yaml")),
        ],
        check=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "python")},
    )
    return folder


@pytest.fixture(scope="session")
def podman(specifications: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """Root's engine."""
    folder = tmp_path_factory.mktemp("podman")
    reachable(folder)
    engine = Podman(folder, specifications)
    yield engine
    engine.close()


@pytest.fixture(scope="session")
def rootless(specifications: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    """An ordinary user's engine."""
    try:
        pwd.getpwnam(ROOTLESS)
    except KeyError:
        pytest.fail(f"there is no user {ROOTLESS}: dev/install_debian.sh containers")
    if shutil.which("newuidmap") is None:
        pytest.fail("newuidmap is missing: dev/install_debian.sh containers")
    folder = tmp_path_factory.mktemp("rootless")
    reachable(folder)
    engine = Podman(folder / "engine", specifications, ROOTLESS)
    yield engine
    engine.close()
