# SPDX-License-Identifier: Apache-2.0
"""What `sluice check` says of the RDMA port that a session would use, and what to do about it.

Of folders as sysfs has them; `make test-rdma` has real ports, of soft RoCE.
"""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.guest_runtime.channels import check_channels
from sluice.guest_runtime.configuration import read_settings
from sluice.guest_runtime.findings import Finding, Verdict
from sluice.guest_runtime.rdma_ports import LOCKED_BYTES, NO_GID, check_rdma

ACTIVE, DOWN = "4: ACTIVE", "1: DOWN"
GID = "0000:0000:0000:0000:0000:ffff:0a09:0001"


def has_libibverbs() -> bool:
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return False
    return True


with_libibverbs = pytest.mark.skipif(not has_libibverbs(), reason="there is no libibverbs.so.1")


@dataclass
class Machine:
    """Its devices and their files."""

    devices: Path
    verbs: Path

    def port(
        self,
        device: str = "mlx5_0",
        number: int = 1,
        state: str = ACTIVE,
        link_layer: str = "Ethernet",
        gids: tuple[tuple[str, str], ...] = ((NO_GID, ""), (GID, "RoCE v2")),
    ) -> None:
        """A port, and the file of its device."""
        place = self.devices / device / "ports" / str(number)
        (place / "gids").mkdir(parents=True)
        (place / "gid_attrs" / "types").mkdir(parents=True)
        (place / "state").write_text(f"{state}\n")
        (place / "link_layer").write_text(f"{link_layer}\n")
        for index, (gid, kind) in enumerate(gids):
            (place / "gids" / str(index)).write_text(f"{gid}\n")
            if kind:  # the kernel gives an error where there is no GID
                (place / "gid_attrs" / "types" / str(index)).write_text(f"{kind}\n")
        file = f"uverbs{device[-1]}"
        shown = self.devices / device / "device" / "infiniband_verbs"
        if not shown.exists():  # one for all ports
            (shown / file).mkdir(parents=True)
            (self.verbs / file).touch()

    def check(self, named: str = "") -> Finding:
        return check_rdma(named, self.devices, self.verbs)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One without a device."""
    made = Machine(tmp_path / "infiniband", tmp_path / "verbs")
    made.devices.mkdir()
    made.verbs.mkdir()
    return made


@pytest.fixture
def may_lock() -> Iterator[None]:
    """This process may lock as much as a session wants, or little; as before afterwards."""
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    yield
    resource.setrlimit(resource.RLIMIT_MEMLOCK, before)


def lock(size: int) -> None:
    most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if most != resource.RLIM_INFINITY and most < size:
        pytest.skip(f"only {most} bytes may be locked here")
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (size, most))


def is_bad(found: Finding, text: str, remedy: str) -> None:
    assert found.verdict is Verdict.BAD, found
    assert text in found.text
    assert remedy in found.remedy


def test_without_a_device_or_the_kernel_s_part(machine: Machine) -> None:
    is_bad(machine.check(), "no RDMA device", "soft RoCE")
    machine.devices.rmdir()
    is_bad(machine.check(), "no RDMA device", "soft RoCE")


def test_one_that_is_named_and_is_not_there(machine: Machine) -> None:
    machine.port("mlx5_1")
    machine.port("mlx5_0")
    is_bad(machine.check("rxe0:1"), "no rxe0, but mlx5_0, mlx5_1", "ibverbs_device")


def test_ports_that_are_down_are_named(machine: Machine) -> None:
    machine.port(state=DOWN)
    machine.port(number=2, state="2: INIT")
    machine.port("mlx5_1", state="5: ACTIVE_DEFER")
    down = "no port is up: mlx5_0 port 1, mlx5_0 port 2, mlx5_1 port 1"
    is_bad(machine.check(), down, "ip link set DEV up")
    is_bad(machine.check("mlx5_0:2"), "no port is up: mlx5_0 port 2", "subnet manager")
    is_bad(machine.check("mlx5_0:3"), "none of that number", "cable")


@with_libibverbs
def test_the_first_that_is_up_or_the_one_that_is_named(machine: Machine, may_lock: None) -> None:
    lock(LOCKED_BYTES)
    machine.port(state=DOWN)
    machine.port(number=2)
    machine.port("mlx5_1")
    machine.port("mlx5_2", state=DOWN)
    for named, text in {
        "": "mlx5_0 port 2 is up",
        "mlx5_0": "mlx5_0 port 2 is up",
        "mlx5_0:2:1": "mlx5_0 port 2 is up",
        "mlx5_1": "mlx5_1 port 1 is up",
        "mlx5_1:1": "mlx5_1 port 1 is up",
    }.items():
        found = machine.check(named)
        assert (found.verdict, found.text, found.remedy) == (Verdict.OK, text, "")
    is_bad(machine.check("mlx5_0:1"), "no port is up: mlx5_0 port 1", "cable")
    is_bad(machine.check("mlx5_2"), "no port is up: mlx5_2 port 1", "cable")


@with_libibverbs
@pytest.mark.parametrize(
    "gids", [(), ((NO_GID, ""),), ((NO_GID, "RoCE v2"), (GID, "IB/RoCE v1")), ((GID, ""),)]
)
def test_ethernet_without_an_address_of_roce_v2(
    machine: Machine, gids: tuple[tuple[str, str], ...]
) -> None:
    machine.port(gids=gids)
    is_bad(machine.check(), "mlx5_0 port 1 has no GID of RoCE v2", "an address")


@with_libibverbs
def test_infiniband_needs_none(machine: Machine) -> None:
    machine.port(link_layer="InfiniBand", gids=())
    assert machine.check().verdict is Verdict.OK


@with_libibverbs
def test_a_gid_that_is_named_is_looked_at_and_nothing_else(machine: Machine) -> None:
    machine.port(gids=((GID, "IB/RoCE v1"), (NO_GID, "")))
    assert machine.check("mlx5_0:1:0").verdict is Verdict.OK
    is_bad(machine.check("mlx5_0:1:1"), "mlx5_0 port 1 has no GID 1", "ibverbs_device")
    is_bad(machine.check("mlx5_0:1:2"), "mlx5_0 port 1 has no GID 2", "ibverbs_device")


@with_libibverbs
def test_a_device_of_no_use_is_passed_over_for_another(machine: Machine) -> None:
    """As a session does; where there is no other the first one's trouble is said."""
    machine.port(gids=())
    is_bad(machine.check(), "mlx5_0 port 1 has no GID", "an address")
    machine.port("mlx5_1")
    (machine.verbs / "uverbs1").unlink()
    is_bad(machine.check(), "mlx5_0 port 1 has no GID", "an address")
    machine.port("mlx5_2")
    assert machine.check().text.startswith("mlx5_2 port 1 is up")
    is_bad(machine.check("mlx5_0"), "mlx5_0 port 1 has no GID", "an address")


@with_libibverbs
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_a_device_that_is_not_open_to_the_user(machine: Machine) -> None:
    machine.port()
    (machine.verbs / "uverbs0").chmod(0o600)
    assert machine.check().verdict is Verdict.OK, "to root it is"
    for folder in (machine.devices.parent, *machine.devices.parent.parents):
        if folder.stat().st_uid == os.geteuid() and folder.stat().st_mode & 0o1 == 0:
            folder.chmod(folder.stat().st_mode | 0o1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            found = machine.check()
            bad = found.verdict is Verdict.BAD and "udev" in found.remedy
            status = int(not bad or "uverbs0 is not open to this user" not in found.text)
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 0


@with_libibverbs
def test_one_whose_file_is_not_there_is_not_open(machine: Machine) -> None:
    machine.port()
    (machine.verbs / "uverbs0").unlink()
    is_bad(machine.check(), "uverbs0 is not open to this user", "udev")


@with_libibverbs
def test_little_memory_that_may_be_locked_is_said(machine: Machine, may_lock: None) -> None:
    machine.port()
    lock(64 << 10)
    found = machine.check()
    assert found.verdict is Verdict.OK
    assert found.text == "mlx5_0 port 1 is up; only 64 KiB may be locked: it is slower"
    lock(LOCKED_BYTES)
    assert machine.check().text == "mlx5_0 port 1 is up"


def test_without_libibverbs_its_package_is_named(machine: Machine, tmp_path: Path) -> None:
    """In a process whose loader finds none: what is there is no library."""
    machine.port()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "libibverbs.so.1").write_text("none")
    code = (
        "import sys; from pathlib import Path; from sluice.guest_runtime.rdma_ports import *; "
        "found = check_rdma('', *map(Path, sys.argv[1:])); "
        "print(found.verdict.value, found.text, found.remedy, sep='|')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, machine.devices, machine.verbs],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "empty")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == (
        "bad|mlx5_0 port 1 is up, and there is no libibverbs.so.1|install rdma-core\n"
    )


def test_where_rdma_is_wanted_a_machine_without_it_is_at_fault(machine: Machine) -> None:
    """Where it is one way of several that is worth a note."""
    rdma = read_settings({"SLUICE_CHANNEL": "rdma"}, Path("/nowhere"))
    [found] = check_channels(rdma, rdma_devices=machine.devices)
    assert found == machine.check()
    any_way = {"SLUICE_SERVER_SOCKET": "/nowhere/server.sock"}
    findings = check_channels(
        read_settings(any_way, Path("/nowhere")), machine.devices, machine.devices
    )
    [found] = [each for each in findings if each.subject == "rdma"]
    assert (found.verdict, found.text) == (Verdict.NOTE, machine.check().text)
