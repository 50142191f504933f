# SPDX-License-Identifier: Apache-2.0
"""docs/vsphere.md can be followed from nothing to a CUDA program in a VM.

Its commands run as they stand there, in their order; what it has an administrator do in vCenter is
done to the simulated one. The VMs are machines without Sluice, with a stand-in for VMware's tools.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from control_plane import native_worker, wait_for
from cuda_compiler import compiler_environment
from free_ports import free_port
from fresh_machine import FreshMachine
from guestinfo import Guest, mirror
from vms import make_fit
from walkthrough import Instead, Walkthrough

from sluice.guest_runtime.settings_file import set_keys

if TYPE_CHECKING:
    from adapter import Rig

pytestmark = pytest.mark.vsphere

CHECKOUT = Path(__file__).resolve().parents[2]
BUNDLE = Path("dist/sluice-guest-x86_64.tar.gz")
TOLD = {f"guestinfo.sluice.{key}" for key in ("role", "controller", "enrolment")}
UNITS = "/opt/sluice/systemd"
PACKAGES = "build-essential cmake ninja-build pkg-config python3-dev python3-venv"


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Rig]:
    """A vCenter, and a controller with no GPU in its pool."""
    from adapter import Rig

    if native_worker() is None or not (CHECKOUT / BUNDLE).exists():
        pytest.skip("the native part or the guest bundle is not built (make native guest-bundle)")
    made = Rig(tmp_path, fake=False)
    try:
        made.plane.stop("server")
        yield made
    finally:
        made.close()


@pytest.fixture
def make_machine() -> Iterator[Callable[..., FreshMachine]]:
    made: list[FreshMachine] = []

    def make(**environment: str) -> FreshMachine:
        made.append(FreshMachine(environment=environment))
        return made[-1]

    yield make
    for machine in made:
        machine.close()


class Vm:
    """A VM of the vCenter, and the machine that stands for its inside."""

    def __init__(self, rig: Rig, name: str, guest: Guest, machine: FreshMachine) -> None:
        self.vm: Any = rig.vcenter.vm(name)
        self.machine = machine
        self._rig, self._guest = rig, guest

    def run(self, command: str, variables: Mapping[str, str]) -> str:
        if "enrol" in command:  # which would wait, but its stand-in sees what it was given once
            wait_for(lambda: self._told().keys() >= TOLD, message="vCenter to tell the VM")
        told = self._told()
        said = self.machine.run(command, variables)
        if "enrol" in command and told.keys() >= TOLD:
            self._rig.vcenter.set_extra(self.vm, guestinfo__sluice__enrolment="")
        return said

    def _told(self) -> dict[str, str]:
        return mirror(self._rig, self.vm, self._guest)


@pytest.fixture
def make_vm(
    pool: Rig, make_machine: Callable[..., FreshMachine], tmp_path: Path
) -> Callable[[str], Vm]:
    def make(name: str) -> Vm:
        guest = Guest(tmp_path / name)
        machine = make_machine(PATH=f"{guest.bin}:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        return Vm(pool, name, guest, machine)

    return make


def start_server(pool: Rig, machine: FreshMachine) -> str:
    """The unit of the page, with `sluice enrol`'s configuration and what is the rig's own."""
    ports = {"controller": {"grpc_addr": f"127.0.0.1:{pool.plane.grpc_port}"}}
    kind = {"listen_port": str(free_port()), "driver": "softgpu", "enable_kvm": "false"}
    set_keys(machine.path("/etc/sluice/server.conf"), {**ports, "server": kind})
    machine.start_units("sluice-server")
    wait_for(
        lambda: any(
            node["state"] == "up" for node in pool.plane.rest.get("/nodes").json()["nodes"]
        ),
        message="the VM to be a node",
    )
    return ""


def test_vspheres_page(
    pool: Rig, make_machine: Callable[..., FreshMachine], make_vm: Callable[[str], Vm]
) -> None:
    host = make_machine(**compiler_environment())
    token = host.home / ".sluice/token"
    token.parent.mkdir()
    token.touch(0o600)
    token.write_text(pool.plane.first_token())
    node, client = make_vm("DC0_C0_RP0_VM0"), make_vm("DC0_C0_RP0_VM1")

    def start_service() -> str:
        host.start_units("sluice-vsphere")
        wait_for(lambda: "connected to vCenter" in host.journal("sluice-vsphere"))
        make_fit(pool, node.vm)
        return ""

    def copy() -> str:
        shutil.copy(host.home / "vector_add", client.machine.home)
        shutil.copy(CHECKOUT / BUNDLE, client.machine.home)
        pool.vcenter.set_attribute(client.vm, "count=1 memory=1GiB compute=25")
        return ""

    wheel = Instead(
        "compiling the wheel takes ten minutes; the checkout has the same commands",
        f"ln -s {shlex.quote(str(CHECKOUT / 'build/bin'))}/* /opt/sluice-venv/bin/",
    )
    instead = {
        "python3 -m venv /opt/sluice-venv": Instead(
            "pip is not used here (the next line), and takes seconds",
            "python3 -m venv --without-pip /opt/sluice-venv",
        ),
        '/opt/sluice-venv/bin/pip install "$SOURCE[vsphere]"': wheel,
        '/opt/sluice-venv/bin/pip install "$SOURCE"': wheel,
        "systemctl daemon-reload": Instead(
            "there is no systemd; what it would read is there",
            "cd /etc/systemd/system && test -s sluice-vsphere.service -a -s sluice-server.service",
        ),
        "systemctl enable --now sluice-vsphere": Instead(
            "there is no systemd; the unit's command runs, and step 3 is done in vCenter",
            start_service,
        ),
        f"apt-get install -y {PACKAGES}": Instead(
            "a CI machine's packages are not the test's to change; that there are such is checked",
            f"apt-get install -y --simulate {PACKAGES}",
        ),
        "systemctl enable --now sluice-server": Instead(
            "there is no systemd; the unit's command runs, on ports that nobody else has, with "
            "the software GPU",
            lambda: start_server(pool, node.machine),
        ),
        'make -C "$SOURCE" guest-bundle': Instead(
            "`make test-vsphere` has just made it", f'test -s "$SOURCE/{BUNDLE}"'
        ),
        f'scp vector_add "$SOURCE/{BUNDLE}" "$CLIENT":': Instead(
            "the VMs are folders; the files are copied, and step 5 is done in vCenter", copy
        ),
        f"systemctl enable --now {UNITS}/sluice-enrol.service {UNITS}/sluice-enrol.timer": Instead(
            "there is no systemd; the command of the service runs",
            f"$(sed -n s/^ExecStart=//p {UNITS}/sluice-enrol.service)",
        ),
    }
    page = Walkthrough(CHECKOUT / "docs/vsphere.md", "From nothing to a CUDA program in a VM")
    certificate = ssl.PEM_cert_to_DER_cert(pool.vcenter.certificate.read_text())
    thumbprint = hashlib.sha256(certificate).hexdigest()
    printed = page.follow(
        {"host": host.run, "node": node.run, "client": client.run},
        {
            "SOURCE": str(CHECKOUT),
            "CONTROLLER": f"127.0.0.1:{pool.plane.rest_port}",
            "VCENTER": "127.0.0.1",
            "PORT": str(pool.vcenter.port),
            "VCENTER_USER": "user",
            "PASSWORD": "pass",
            "THUMBPRINT": thumbprint,
            "CLIENT": "not used: see scp",
        },
        instead,
    )
    assert thumbprint in printed[0].replace(":", "").lower()
    assert client.vm.name in printed[-1]
