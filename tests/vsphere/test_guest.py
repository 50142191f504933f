# SPDX-License-Identifier: Apache-2.0
"""`sluice enrol` in a guest of the simulated vCenter: from guestinfo to a configured client.

guestinfo.py stands in for the guest.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from control_plane import wait_for
from guestinfo import Guest, mirror

from sluice.guest_runtime.configuration import read_file
from sluice.guest_runtime.settings_file import set_keys

if TYPE_CHECKING:
    from adapter import Rig


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    return Guest(tmp_path / "guest")


GOOD = {
    "role": "client",
    "controller": "127.0.0.1:1",
    "settings": '{"count": 2, "memory_mib": 64, "compute_percent": 5, "mode": "reserved"}',
    "enrolment": "sluice_enrol_" + "a" * 43,
}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"role": "admin"}, "role is 'admin'"),
        ({"controller": "host; rm -rf /"}, "guestinfo.sluice.controller"),
        ({"controller": "a:1\n[client]"}, "guestinfo.sluice.controller"),
        ({"settings": "[]"}, "settings is no JSON object"),
        ({"settings": "{"}, "settings is no JSON object"),
        ({"settings": '{"count": "2"}'}, "no count from 1 to 64"),
        ({"settings": '{"count": true}'}, "no count"),
        ({"settings": '{"memory_mib": -1}'}, "no memory_mib"),
        ({"settings": '{"mode": "auto\\ntoken_file = /etc/shadow"}'}, "no mode of"),
        ({"enrolment": "sluice_enrol_x y"}, "guestinfo.sluice.enrolment"),
        ({"ca": "-----BEGIN CERTIFICATE-----"}, "ca is no PEM"),
        ({}, "no controller answers"),
    ],
)
def test_what_guestinfo_says_is_checked(guest: Guest, wrong: dict[str, str], said: str) -> None:
    guest.set(**{**GOOD, **wrong})
    done = guest.enrol()
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "a" * 43 not in done.stdout + done.stderr
    assert not list(guest.dir.glob("*token*"))


def test_a_vm_that_is_told_nothing_says_so(guest: Guest) -> None:
    assert guest.enrol().returncode == 3
    guest.dir.mkdir()
    (guest.dir / "token").write_text("somebody else's")
    assert guest.enrol().returncode == 3
    assert (guest.dir / "token").exists()
    (guest.dir / "enrolled.json").write_text('{"source": "vsphere"}')
    assert guest.enrol().returncode == 3
    assert not (guest.dir / "token").exists()
    (guest.bin / "vmware-rpctool").unlink()
    assert guest.enrol().returncode == 3
    done = guest.enrol("--source", "vsphere")
    assert done.returncode == 1
    assert "install open-vm-tools" in done.stderr


def test_other_lines_of_a_configuration_stay(tmp_path: Path) -> None:
    path = tmp_path / "client.conf"
    path.write_text(
        "; mine\n[log]\nlog_to_screen = true\n\n[client]\n;gmem = 1\ngmem = 7 ; seven\nwait = 5\n"
    )
    set_keys(path, {"client": {"gmem": "64", "ratio": "5"}, "controller": {"ca": ""}})
    assert path.read_text() == (
        "; mine\n[log]\nlog_to_screen = true\n\n[client]\n;gmem = 1\ngmem = 64\nwait = 5\n"
        "ratio = 5\n"
    )
    set_keys(path, {"client": {"gmem": "", "ratio": "5"}})
    assert "gmem = 64" not in path.read_text()
    before = path.stat().st_ino
    set_keys(path, {"client": {"gmem": "", "ratio": "5"}})
    assert path.stat().st_ino == before, "what is as it should be is not written"


@pytest.mark.vsphere
@pytest.mark.parametrize("tool", ["vmware-rpctool", "vmtoolsd"])
def test_a_guest_gets_its_own_token_and_its_settings(
    shared_rig: Rig, tmp_path: Path, tool: str
) -> None:
    rig, guest = shared_rig, Guest(tmp_path / "guest", tool)
    vm = rig.vcenter.vm(f"DC0_C0_RP0_VM{len(tool) % 4}")
    rig.vcenter.set_attribute(vm, "count=1 memory=32 compute=2 mode=reserved")
    wait_for(lambda: "guestinfo.sluice.enrolment" in mirror(rig, vm, guest))
    done = guest.enrol("--wait", "5")
    assert done.returncode == 0, done.stderr
    token_file = guest.dir / "token"
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    settings = {k: v for k, (v, _) in read_file(guest.dir / "client.conf").items()}
    assert settings == {
        "controller.controller_addr": f"127.0.0.1:{rig.plane.rest_port}",
        "controller.token_file": str(token_file),
        "client.vgpu_count": "1",
        "client.gmem": "32",
        "client.ratio": "2",
        "client.mode": "reserved",
    }
    client = rig.plane.rest_as(token_file.read_text().strip())
    wanted = {"gmem_mib": 32, "ratio_percent": 2, "mode": "reserved"}
    assert client.post("/sessions", json=wanted).status_code == 201
    assert json.loads(guest.store.read_text())["guestinfo.sluice.enrolment"] == ""
    # what the guest cleared, and what its administrator changes
    rig.vcenter.set_extra(vm, guestinfo__sluice__enrolment="")
    rig.vcenter.set_attribute(vm, "count=2 memory=32 compute=2")
    wait_for(lambda: '"count": 2' in mirror(rig, vm, guest)["guestinfo.sluice.settings"])
    token = token_file.read_text()
    assert guest.enrol().returncode == 0
    assert token_file.read_text() == token
    assert read_file(guest.dir / "client.conf")["client.vgpu_count"][0] == "2"
    # its operator renews it
    renewed = rig.sluice("client", "renew", vm.name)
    assert renewed.returncode == 0, renewed.stderr
    wait_for(lambda: "guestinfo.sluice.enrolment" in mirror(rig, vm, guest))
    assert client.get("/whoami").status_code == 401
    assert guest.enrol().returncode == 0
    assert token_file.read_text() != token
    # and it is a client no more
    rig.vcenter.set_attribute(vm, "")
    wait_for(lambda: "guestinfo.sluice.role" not in mirror(rig, vm, guest))
    assert guest.enrol().returncode == 3
    assert not token_file.exists()
