# SPDX-License-Identifier: Apache-2.0
"""Pool VMs: a VM with a passed-through GPU becomes a node, and leaves the pool in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from control_plane import wait_for
from guestinfo import told
from vms import make_fit

if TYPE_CHECKING:
    from adapter import Rig

pytestmark = pytest.mark.vsphere


def enrolled(rig: Rig, vm: Any) -> tuple[str, httpx.Client]:
    """Its node's name and the node's client, once it has enrolled as its guest would."""
    found = wait_for(lambda: whole(told(rig, vm)))
    assert found["role"] == "node"
    token = rig.plane.rest_as(found["enrolment"]).post("/enrol").json()
    assert token["role"] == "node"
    assert token["node"] == found["node"]
    rig.vcenter.set_extra(vm, guestinfo__sluice__enrolment="")
    return str(found["node"]), rig.plane.rest_as(token["secret"])


def whole(found: dict[str, str]) -> dict[str, str]:
    """What is told once all of it is there, in one look; the simulator may be read in mid-write."""
    return found if found.keys() >= {"role", "node", "enrolment", "controller"} else {}


def leave(rig: Rig, node: str, client: httpx.Client, *why: str) -> None:
    """Waits until the node has left for one of these reasons."""
    wait_for(lambda: client.get("/whoami").status_code == 401)

    def is_told() -> bool:
        newest = rig.events(node)[:1]
        return any(
            each["kind"] == "adapter.vsphere.node_left" and reason in each["text"]
            for each in newest
            for reason in why
        )

    wait_for(is_told)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_it_joins_when_it_is_fit_and_leaves_when_it_is_powered_off(
    shared_rig: Rig, dynamic: bool
) -> None:
    rig = shared_rig
    vm = rig.vcenter.vm(f"DC0_C0_RP0_VM{int(dynamic)}")
    rig.vcenter.give_gpu(vm, dynamic=dynamic)
    listed = rig.sluice("pool", "-o", "json")
    assert listed.returncode == 0, listed.stderr
    assert '"mmio"' in listed.stdout
    assert "memory-reservation" in listed.stdout
    assert "enrolment" not in told(rig, vm)
    rig.vcenter.take_gpu(vm)
    make_fit(rig, vm, dynamic=dynamic)
    node, client = enrolled(rig, vm)
    assert client.get("/whoami").json()["node"] == node
    rig.vcenter.power(vm, on=False)
    leave(rig, node, client, "power")
    wait_for(lambda: told(rig, vm).get("drained") == node)
    # and comes back with another token
    rig.vcenter.power(vm, on=True)
    again, client = enrolled(rig, vm)
    assert again == node
    assert client.get("/whoami").status_code == 200
    rig.vcenter.take_gpu(vm)
    leave(rig, node, client, "no-gpu")


def test_too_small_a_window_is_named(shared_rig: Rig) -> None:
    rig = shared_rig
    vm = rig.vcenter.vm("DC0_C0_RP0_VM2")
    make_fit(rig, vm, mmio_gb=64)
    checked = rig.sluice("check")
    assert checked.returncode == 1
    assert "64bitMMIOSizeGB is 64; set it to 128" in checked.stdout.replace("\n", " ")
    assert "enrolment" not in told(rig, vm)
    rig.vcenter.set_extra(vm, pciPassthru__64bitMMIOSizeGB="128")
    node, client = enrolled(rig, vm)
    rig.vcenter.destroy(vm)
    leave(rig, node, client, "power", "the VM is gone")  # it is powered off first
    assert node not in {each["node"] for each in rig.enrolments()}


def test_one_that_moves_leaves_and_joins_anew(shared_rig: Rig) -> None:
    rig = shared_rig
    vm = rig.vcenter.vm("DC0_C0_RP0_VM3")
    make_fit(rig, vm, dynamic=True)
    node, client = enrolled(rig, vm)
    rig.vcenter.migrate(vm)
    leave(rig, node, client, "moved")
    again, client = enrolled(rig, vm)
    assert again == node
    assert client.get("/whoami").status_code == 200


def test_a_node_that_is_there_is_drained_first(rig: Rig) -> None:
    vm = rig.vcenter.vm("DC0_C0_RP0_VM0")
    rig.start()
    make_fit(rig, vm)
    node, client = enrolled(rig, vm)
    # its server joins with the token that it got
    rig.plane.stop("server")
    text = (rig.folder / "server.conf").read_text()
    (rig.folder / "server.conf").write_text(
        text.replace(f"node_name = {rig.plane.node}", f"node_name = {node}")
    )
    (rig.folder / "node.token").write_text(client.headers["authorization"].partition(" ")[2])
    rig.plane.node = node
    rig.plane.start_server()
    assert not rig.plane.rest.get(f"/nodes/{node}").json()["drained"]
    rig.vcenter.power(vm, on=False)
    wait_for(lambda: rig.plane.rest.get(f"/nodes/{node}").json()["drained"])
    wait_for(lambda: "node.drained" in [event["kind"] for event in rig.events(node)])
    rig.vcenter.power(vm, on=True)
    _, client = enrolled(rig, vm)
    assert not rig.plane.rest.get(f"/nodes/{node}").json()["drained"]
    # the same where it only moves
    rig.vcenter.migrate(vm)
    leave(rig, node, client, "moved")
    enrolled(rig, vm)
    assert not rig.plane.rest.get(f"/nodes/{node}").json()["drained"]
