# SPDX-License-Identifier: Apache-2.0
"""The host's packages, of a release (SLUICE_RELEASE) or of this checkout's build, and roots to
install them in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.config.native_files import find_native
from tests.guest_images.program import build_program
from tests.guest_images.root import fresh_roots

from .host_root import HostRoot

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
ROOTS = CHECKOUT / "build" / "host-roots"
#: The folder of a release that `make release` made.
RELEASE = "SLUICE_RELEASE"
#: A root of RHEL or a kin of it with python3.11 or python3.12, where somebody has one.
RHEL_ROOT = "SLUICE_RHEL_ROOT"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.releases)


@dataclass(frozen=True)
class Packages:
    deb: Path
    rpm: Path


def pack(folder: Path, *words: str) -> Path:
    """`make host-packages`, into a folder."""
    command = [
        sys.executable,
        CHECKOUT / "packaging" / "host_packages.py",
        "--dist",
        folder,
        *words,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def found_in(folder: Path) -> Packages:
    [deb], [rpm] = folder.glob("sluice-host_*.deb"), folder.glob("sluice-host-*.rpm")
    return Packages(deb, rpm)


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Packages:
    if given := os.environ.get(RELEASE):
        return found_in(Path(given))
    return found_in(pack(tmp_path_factory.mktemp("packages")))


@pytest.fixture(scope="session")
def next_deb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The deb of the next release."""
    folder = tmp_path_factory.mktemp("next")
    [deb] = pack(folder, "--version", "99.0.0", "--kinds", "deb").glob("*.deb")
    return deb


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CUDA program that runs with every glibc from 2.28 on."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "libcudart.so").symlink_to(find_native("libcudart.so.13"))
    return build_program(folder, folder)


MakeRoot = Callable[[str], HostRoot]


@pytest.fixture
def make_root(tmp_path: Path, program: Path) -> Iterator[MakeRoot]:
    """make_root(suite) → a fresh root of it with the program at /add."""
    with fresh_roots(HostRoot, tmp_path, ROOTS, program, {"rhel": rhel_root}) as make:
        yield make


def rhel_root() -> Path:
    given = os.environ.get(RHEL_ROOT)
    if not given:
        pytest.skip(f"{RHEL_ROOT} names no root of RHEL or a kin of it")
    return Path(given)
