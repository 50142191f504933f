# SPDX-License-Identifier: Apache-2.0
"""Roots of distributions, the packages, a CUDA program for glibc 2.28, and a pool with a software
GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from control_plane import ControlPlane, native_worker, running

from .program import build_program
from .root import Root, fresh_roots

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]

ROOTS = CHECKOUT / "build" / "guest-images"
#: A root with glibc 2.28, where somebody has one: no mirror of Debian does any more.
OLDEST_ROOT = "SLUICE_OLDEST_GLIBC_ROOT"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.guest_images)


@dataclass(frozen=True)
class Packages:
    """What `make guest-bundle guest-packages` makes."""

    bundle: Path
    deb: Path
    rpm: Path


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guest bundle: one that is there (SLUICE_GUEST_BUNDLE, dist), or a new one."""
    given = Path(
        os.environ.get("SLUICE_GUEST_BUNDLE", CHECKOUT / "dist" / "sluice-guest-x86_64.tar.gz")
    )
    if given.exists():
        return given
    dist = tmp_path_factory.mktemp("dist")
    command = [sys.executable, CHECKOUT / "packaging/guest_bundle.py", "--dist", dist]
    subprocess.run(command, check=True)
    return dist / "sluice-guest-x86_64.tar.gz"


def make_packages(bundle: Path, dist: Path) -> Packages:
    command = [sys.executable, CHECKOUT / "packaging/guest_packages.py"]
    done = subprocess.run(
        [*command, "--bundle", bundle, "--dist", dist], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Packages(bundle, next(dist.glob("*.deb")), next(dist.glob("*.rpm")))


@pytest.fixture(scope="session")
def packages(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    return make_packages(bundle, tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def next_packages(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """The same of the next release."""
    folder = tmp_path_factory.mktemp("next")
    with tarfile.open(bundle) as archive:
        archive.extractall(folder, filter="tar")
    (folder / "sluice-guest/VERSION").write_text("99.0.0\n")
    with tarfile.open(folder / "bundle.tar.gz", "w:gz") as archive:
        archive.add(folder / "sluice-guest", "sluice-guest")
    (folder / "dist").mkdir()
    return make_packages(folder / "bundle.tar.gz", folder / "dist")


@pytest.fixture(scope="session")
def program(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA program that runs with every glibc from 2.28 on."""
    folder = tmp_path_factory.mktemp("program")
    with tarfile.open(bundle) as archive:
        archive.extractall(folder, filter="tar")
    return build_program(folder, folder / "sluice-guest/lib")


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A controller and a server with the software GPU; nobody needs a token."""
    if native_worker() is None:
        pytest.fail("the native part is not built (make native)")
    folder = tmp_path_factory.mktemp("pool")
    for parent in (folder, *list(folder.parents)[:2]):
        parent.chmod(0o755)
    with running(folder) as started:
        yield started


MakeRoot = Callable[[str], Root]


@pytest.fixture
def make_root(tmp_path: Path, program: Path) -> Iterator[MakeRoot]:
    """make_root(suite) → a fresh root of it with the program at /add."""
    with fresh_roots(Root, tmp_path, ROOTS, program, {"oldest": oldest_root}) as make:
        yield make


def oldest_root() -> Path:
    given = os.environ.get(OLDEST_ROOT)
    if not given:
        pytest.skip(f"{OLDEST_ROOT} names no root with glibc 2.28 (Debian 10, Rocky Linux 8)")
    return Path(given)


@pytest.fixture
def debian(make_root: MakeRoot) -> Root:
    """A Debian 12 as a cloud image has it."""
    return make_root("bookworm")
