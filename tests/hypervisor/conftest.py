# SPDX-License-Identifier: Apache-2.0
"""A real libvirt with real guests for the tests marked `vm`; `sluice vm` as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.hypervisor.region_file import RegionFiles
from tests.rigs.kvm.rig import Guest as Guest
from tests.rigs.kvm.rig import Rig as Rig

from .region_service import FakeRegions

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


class VmCommand:
    """`sluice vm …` in a process of its own, against the rig's libvirt."""

    def __init__(self, rig: Rig, run_folder: Path) -> None:
        from sluice.hypervisor.libvirt_host import libvirt_identity

        self.files = RegionFiles(libvirt_identity(rig.uri), run_folder=run_folder)
        self._environment = dict(
            os.environ,
            PYTHONPATH=str(CHECKOUT / "python"),
            LIBVIRT_DEFAULT_URI=rig.uri,
            SLUICE_RUN_DIR=str(run_folder),
        )

    def __call__(self, *arguments: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "sluice.hypervisor.cli", *arguments],
            env=self._environment,
            check=False,
            capture_output=True,
            text=True,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def attach(self, name: str, *more: str) -> Ran:
        return self("attach", name, "--memory-mib", "1024", "--compute", "25", *more)


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    if os.geteuid() != 0:
        pytest.skip("the KVM rig needs root")
    with Rig("tests-hypervisor") as started:
        yield started


@pytest.fixture
def vm(rig: Rig, tmp_path: Path) -> VmCommand:
    return VmCommand(rig, tmp_path / "run")


@pytest.fixture
def make_guest(rig: Rig, request: pytest.FixtureRequest) -> Iterator[Callable[..., Guest]]:
    """Defines guests that are undefined, with their region's file, when the test ends."""
    made: list[Guest] = []

    def make(suffix: str = "", **how: object) -> Guest:
        name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:40] + suffix
        guest = rig.define_guest(name, mem_mib=256, vcpus=1, **how)  # type: ignore[arg-type]
        made.append(guest)
        return guest

    yield make
    defined = {domain.UUIDString() for domain in rig.connection.listAllDomains()}
    for guest in made:
        if guest.uuid in defined:
            guest.undefine()
        Path(f"/dev/shm/sluice-{guest.uuid}").unlink(missing_ok=True)


@pytest.fixture
def running(make_guest: Callable[..., Guest]) -> Guest:
    guest = make_guest()
    guest.start()
    guest.wait_ready()
    return guest


@pytest.fixture
def regions() -> FakeRegions:
    """What the server's part that follows libvirt tells its regions."""
    return FakeRegions()


@pytest.fixture
def files(vm: VmCommand) -> RegionFiles:
    """The regions' files of the rig."""
    return vm.files
