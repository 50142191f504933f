# SPDX-License-Identifier: Apache-2.0
"""Client VMs: what an administrator writes on a VM in vCenter is what its guest can use."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest
from control_plane import wait_for
from guestinfo import told
from vms import uuid

if TYPE_CHECKING:
    from adapter import Rig

pytestmark = pytest.mark.vsphere


def test_an_attribute_becomes_a_reservation_that_the_guest_draws_on(rig: Rig) -> None:
    vm = rig.vcenter.vm("DC0_C0_RP0_VM0")
    rig.start()
    rig.wait_log("connected to vCenter")
    rig.vcenter.set_attribute(vm, "count=1 memory=32 compute=2 mode=reserved")
    wait_for(lambda: "enrolment" in told(rig, vm))
    reservation = rig.reservations()[uuid(vm)]
    sizes = (reservation["count"], reservation["memory_mib"], reservation["compute_percent"])
    assert sizes == (1, 32, 2)
    assert reservation["state"] == "held"
    found = told(rig, vm)
    assert found["controller"] == f"127.0.0.1:{rig.plane.rest_port}"
    assert json.loads(found["settings"])["mode"] == "reserved"
    # the guest
    token = rig.plane.rest_as(found["enrolment"]).post("/enrol").json()
    assert token["vm"] == uuid(vm)
    guest = rig.plane.rest_as(token["secret"])
    wanted = {"gmem_mib": 32, "ratio_percent": 2, "mode": "reserved"}
    assert guest.post("/sessions", json=wanted).status_code == 201
    assert len(rig.reservations()[uuid(vm)]["grants"]) == 1
    # the token is no secret of guestinfo any more, once the guest has cleared it
    rig.vcenter.set_extra(vm, guestinfo__sluice__enrolment="")
    # changes follow
    rig.vcenter.set_attribute(vm, "count=2, memory=32MiB, compute=3%")
    wait_for(lambda: rig.reservations()[uuid(vm)]["count"] == 2)
    wait_for(lambda: json.loads(told(rig, vm)["settings"])["count"] == 2)
    assert guest.get("/whoami").status_code == 200
    # removal follows
    rig.vcenter.set_attribute(vm, "")
    wait_for(lambda: not rig.reservations() and not told(rig, vm))
    assert guest.get("/whoami").status_code == 401
    assert rig.stop() == 0
    assert token["secret"] not in rig.log()
    assert found["enrolment"] not in rig.log()


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("count=0", "count='0': give a number"),
        ("count=99999999999999999999", "count="),
        ("memory=lots", "memory='lots'"),
        ("compute=101", "compute='101'"),
        ("mode=exclusive", "mode='exclusive'"),
        ("project=secret", "project='secret': VMs may not name it"),
        ("cuont=1", "cuont=1': there is no such field"),
        ("count=1 count=2", "count='2': is there twice"),
        ("\u202e<script>'; DROP", "there is no such field"),
        ("count=1 " * 50, "characters"),
        ("memory=999999999", "the pool could not give that"),
    ],
)
def test_a_request_that_cannot_be_is_told_and_changes_nothing(
    shared_rig: Rig, text: str, field: str
) -> None:
    rig = shared_rig
    vm = rig.vcenter.vm("DC0_C0_RP0_VM1")
    rig.vcenter.set_attribute(vm, text)
    wait_for(lambda: any(field in each["text"] for each in rig.events(uuid(vm))))
    assert uuid(vm) not in rig.reservations()
    assert not told(rig, vm)
    assert rig.adapter
    assert rig.adapter.poll() is None
    assert "\u202e" not in rig.log()


def test_what_it_has_stays_while_a_request_cannot_be_read(shared_rig: Rig) -> None:
    rig = shared_rig
    vm = rig.vcenter.vm("DC0_C0_RP0_VM2")
    rig.vcenter.set_attribute(vm, "count=2")
    wait_for(lambda: uuid(vm) in rig.reservations())
    rig.vcenter.set_attribute(vm, "count=two")
    wait_for(lambda: any("count='two'" in e["text"] for e in rig.events(uuid(vm))))
    assert rig.reservations()[uuid(vm)]["count"] == 2
    rig.vcenter.set_attribute(vm, "count=1")
    wait_for(lambda: rig.reservations()[uuid(vm)]["count"] == 1)
    wait_for(lambda: any("is met now" in e["text"] for e in rig.events(uuid(vm))))


def test_a_deleted_vm_leaves_nothing(shared_rig: Rig) -> None:
    rig = shared_rig
    vm = rig.vcenter.vm("DC0_C0_RP0_VM3")
    name = uuid(vm)
    rig.vcenter.set_attribute(vm, "default")
    wait_for(lambda: "enrolment" in told(rig, vm))
    rig.vcenter.destroy(vm)
    wait_for(lambda: name not in rig.reservations())
    wait_for(lambda: name not in {each["vm"] for each in rig.enrolments()})


def test_a_secret_does_not_outlast_a_powered_off_vm(shared_rig: Rig) -> None:
    rig = shared_rig
    vm = rig.vcenter.vm("DC0_H0_VM0")
    rig.vcenter.set_attribute(vm, "mode=on-demand")
    wait_for(lambda: "enrolment" in told(rig, vm))
    assert uuid(vm) not in rig.reservations()
    first = told(rig, vm)["enrolment"]
    rig.vcenter.power(vm, on=False)
    wait_for(lambda: "enrolment" not in told(rig, vm))
    assert rig.plane.rest_as(first).post("/enrol").status_code == 401
    rig.vcenter.power(vm, on=True)
    wait_for(lambda: told(rig, vm).get("enrolment", first) != first)


def test_what_a_guest_does_to_its_keys_gives_it_nothing(shared_rig: Rig) -> None:
    rig = shared_rig
    vm = rig.vcenter.vm("DC0_H0_VM1")
    rig.vcenter.set_attribute(vm, "count=1")
    wait_for(lambda: "enrolment" in told(rig, vm))
    assert rig.plane.rest_as(told(rig, vm)["enrolment"]).post("/enrol").status_code == 201
    for _ in range(30):  # it sets its keys back as fast as it can
        rig.vcenter.set_extra(
            vm,
            guestinfo__sluice__settings='{"count": 64}',
            guestinfo__sluice__enrolment="",
            guestinfo__sluice__enrolment_id="",
            guestinfo__sluice__role="node",
            guestinfo__sluice__vm="another",
        )
    assert rig.reservations()[uuid(vm)]["count"] == 1
    mine = [each for each in rig.enrolments() if each["vm"] == uuid(vm)]
    assert [each["state"] for each in mine] == ["used"], "there is no second token"
    assert rig.adapter
    assert rig.adapter.poll() is None


def test_it_catches_up_on_what_happened_while_it_was_away(rig: Rig) -> None:
    vms = [rig.vcenter.vm(f"DC0_C0_RP0_VM{n}") for n in range(4)]
    for vm in vms[:3]:
        rig.vcenter.set_attribute(vm, "count=1")
    rig.start()
    wait_for(lambda: len(rig.reservations()) == 3)
    wait_for(lambda: all("enrolment" in told(rig, vm) for vm in vms[:3]))
    rig.stop(signal.SIGKILL)
    gone = uuid(vms[0])
    rig.vcenter.destroy(vms[0])
    rig.vcenter.set_attribute(vms[1], "count=2")
    rig.vcenter.set_attribute(vms[2], "")
    rig.vcenter.set_attribute(vms[3], "count=1")
    rig.start()
    kept = {uuid(vms[1]), uuid(vms[3])}
    wait_for(lambda: rig.reservations().keys() == kept)
    wait_for(lambda: rig.reservations()[uuid(vms[1])]["count"] == 2)
    wait_for(lambda: not told(rig, vms[2]))
    assert gone not in {each["vm"] for each in rig.enrolments()}


def test_tags_folders_and_resource_pools_choose_too(rig: Rig) -> None:
    first, second = rig.vcenter.vm("DC0_C0_RP0_VM0"), rig.vcenter.vm("DC0_C0_RP0_VM1")
    datacenter_folder = first.parent
    folder = datacenter_folder.CreateFolder("ai")
    rig.vcenter.wait(folder.MoveIntoFolder_Task([second]))
    rig.configure(clients={"category": "Sluice", "folder": "DC0/vm/ai"})
    rig.start()
    wait_for(lambda: uuid(second) in rig.reservations())
    rig.vcenter.tag(first, "count=2 memory=20")
    wait_for(lambda: uuid(first) in rig.reservations())
    assert rig.reservations()[uuid(first)]["count"] == 2
    assert rig.reservations()[uuid(second)]["memory_mib"] == 16
    rig.vcenter.wait(datacenter_folder.MoveIntoFolder_Task([second]))
    wait_for(lambda: rig.reservations().keys() == {uuid(first)})
