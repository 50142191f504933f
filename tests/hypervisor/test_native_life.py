# SPDX-License-Identifier: Apache-2.0
"""A GPU goes from the pool to a VM and back, with a real controller, server, libvirt and command.

The GPU is the software GPU, which `[native] addresses` says is a card of a made-up sysfs; so it is
put into definitions only. A card that is plugged in is in test_native_vfio.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import libvirt
import pytest
from control_plane import PYTHON_PATH, ControlPlane, wait_for
from control_plane import running as running_plane
from static_pool import gpu_uuid

from sluice.hypervisor import native_gpu
from sluice.hypervisor.libvirt_host import live_document, persistent_document
from sluice.hypervisor.native_gpu import When
from sluice.hypervisor.passthrough import Card, card_at
from sluice.hypervisor.pci_devices import HostAddress, SysfsPci
from tests.rigs.kvm.rig import Guest, Rig

from .fake_sysfs import AUDIO, NIC, FakeSysfs

pytestmark = pytest.mark.vm

PCI = "0000:65:00.0"
UUID = gpu_uuid(0)


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    fake = FakeSysfs(tmp_path / "sys")
    fake.add(PCI)
    fake.add("0000:65:00.1", AUDIO, driver="snd_hda_intel")
    return fake


@pytest.fixture
def card(sysfs: FakeSysfs) -> Card:
    return card_at(SysfsPci(sysfs.root), HostAddress.parse(PCI))


@pytest.fixture
def plane(rig: Rig, tmp_path: Path, sysfs: FakeSysfs) -> Iterator[ControlPlane]:
    folder = tmp_path / "plane"
    folder.mkdir()
    with running_plane(
        folder,
        server={"enable_kvm": "true", "libvirt_uri": rig.uri},
        native={"addresses": f"{UUID} = {PCI}", "sysfs_dir": sysfs.root},
    ) as control_plane:
        yield control_plane


class Pool:
    """What an operator sees and does."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def gpu(self) -> dict[str, Any]:
        found: dict[str, Any] = self._plane.rest.get(f"/gpus/{UUID}").json()
        return found

    def switch(self, to: str) -> tuple[int, dict[str, Any]]:
        answer = self._plane.rest.put(f"/gpus/{UUID}/switch", json={"to": to})
        return answer.status_code, answer.json()

    def mode(self, wanted: str) -> None:
        wait_for(lambda: self.gpu()["mode"] == wanted, message=f"the GPU to be {wanted}")

    def attach(self, domain: str, **how: Any) -> tuple[int, dict[str, Any]]:
        body = {"domain": domain, **how}
        answer = self._plane.rest.put(f"/gpus/{UUID}/attachment", json=body)
        return answer.status_code, answer.json()

    def attachments(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._plane.rest.get("/attachments").json()["attachments"]
        return found

    def free(self) -> None:
        wait_for(lambda: not self.attachments(), message="the GPU to be nobody's")

    def events(self) -> list[str]:
        events = self._plane.rest.get("/events", params={"subject": f"node-a:{UUID}"}).json()
        return [event["kind"] for event in reversed(events["events"])]

    def sluice(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sluice.cli", *words],
            env={
                **os.environ,
                "PYTHONPATH": str(PYTHON_PATH),
                "SLUICE_CONTROLLER": f"127.0.0.1:{self._plane.rest_port}",
                "COLUMNS": "200",
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def pool(plane: ControlPlane) -> Pool:
    return Pool(plane)


def test_from_the_pool_to_a_vm_and_back(
    pool: Pool, plane: ControlPlane, make_guest: Callable[..., Guest], sysfs: FakeSysfs
) -> None:
    guest, other = make_guest("-a"), make_guest("-b")
    assert (pool.gpu()["pci_address"], pool.gpu()["native_problem"]) == (PCI, "")
    status, problem = pool.attach(guest.name)
    assert (status, "only a native GPU" in problem["detail"]) == (409, True)
    pool.switch("native")
    pool.mode("native")

    done = pool.sluice("gpu", "attach", UUID, guest.name)
    assert done.returncode == 0, done.stderr
    assert f"attached to VM {guest.name} (definition)" in done.stdout
    text = guest.domain.XMLDesc()
    assert text.count("<hostdev") == 2, "its audio goes with it"
    [attachment] = pool.attachments()
    assert (attachment["domain_uuid"], attachment["live"], attachment["config"]) == (
        guest.uuid, False, True,
    )  # fmt: skip
    assert guest.name in pool.sluice("gpu", "attachments").stdout
    assert f"VM {guest.name}" in pool.sluice("gpu", "list").stdout
    assert pool.attach(guest.uuid)[0] == 202, "again, by its UUID, changes nothing"
    assert guest.domain.XMLDesc() == text

    status, problem = pool.attach(other.name)
    assert (status, f"to VM {guest.name}" in problem["detail"]) == (409, True)
    status, problem = pool.switch("pooled")
    assert (status, f"held by VM {guest.name}" in problem["detail"]) == (409, True)

    done = pool.sluice("gpu", "detach", UUID)
    assert done.returncode == 0, done.stderr
    assert "held by no VM" in done.stdout
    assert "<hostdev" not in guest.domain.XMLDesc()

    sysfs.bind(PCI, "vfio-pci")
    pool.switch("pooled")
    wait_for(lambda: "bound to vfio-pci" in plane.rest.get(f"/gpus/{UUID}/switch").json()["reason"],
             message="its driver to be missed")  # fmt: skip
    assert pool.gpu()["mode"] == "returning"
    assert plane.client(gmem_mib=1).first["status"] != 0
    sysfs.bind(PCI, "nvidia")
    pool.switch("pooled")
    pool.mode("pooled")
    assert plane.client(gmem_mib=1).first["status"] == 0
    assert pool.events() == [
        "gpu.joined", "gpu.draining", "gpu.native", "gpu.attached", "gpu.detached",
        "gpu.returning", "gpu.stuck", "gpu.pooled",
    ]  # fmt: skip


def test_libvirt_is_the_truth_whoever_changes_it_and_whoever_is_away(
    pool: Pool, plane: ControlPlane, make_guest: Callable[..., Guest], card: Card
) -> None:
    first, second = make_guest("-a"), make_guest("-b")
    pool.switch("native")
    pool.mode("native")
    assert pool.attach(first.name)[0] == 202
    first.undefine()
    pool.free()

    native_gpu.attach(second.domain, card, When.BOTH)  # as virsh would, without the controller
    wait_for(lambda: [a["domain_name"] for a in pool.attachments()] == [second.name])

    plane.stop("controller")
    plane.start_controller()
    wait_for(lambda: plane.node_state() == "up")
    assert [a["state"] for a in pool.attachments()] == ["attached"]

    plane.stop("server")
    native_gpu.detach(second.domain, card.addresses, SysfsPci(Path("/nowhere")))
    assert len(pool.attachments()) == 1, "nobody is there to say otherwise"
    plane.start_server()
    pool.free()
    assert pool.gpu()["mode"] == "native"


def test_what_libvirt_refuses_is_said_and_leaves_nothing(
    pool: Pool, make_guest: Callable[..., Guest]
) -> None:
    running = make_guest("-on")
    running.start()  # that QEMU runs is enough
    pool.switch("native")
    pool.mode("native")
    for domain in ("nobody", "x'><hostdev/>", "../../etc/passwd", "%s%n"):
        status, problem = pool.attach(domain)
        assert (status, "no domain" in problem["detail"]) == (409, True), problem
    assert pool.attach("")[0] == 422
    assert pool.attach("a\nb")[0] == 422
    status, problem = pool.attach(running.name)
    assert status == 409, "this machine has no such card to plug in"
    assert running.name in problem["detail"]
    for side in (live_document(running.domain), persistent_document(running.domain)):
        assert side is not None
        assert side.host_devices == ()
    assert pool.attachments() == []
    done = pool.sluice("gpu", "attach", UUID, "nobody")
    assert (done.returncode, "no domain" in done.stderr) == (1, True)
    assert pool.sluice("gpu", "detach", UUID).returncode == 3
    hostile = make_guest("-hostile")
    title, config = libvirt.VIR_DOMAIN_METADATA_TITLE, libvirt.VIR_DOMAIN_AFFECT_CONFIG
    hostile.domain.setMetadata(title, "</title><devices><hostdev/></devices>", None, None, config)
    status, shown = pool.attach(hostile.uuid, rom_bar=False, when="next-start")
    assert (status, shown["domain_name"]) == (202, hostile.name)
    assert hostile.domain.XMLDesc().count("<hostdev") == 2
    assert hostile.domain.XMLDesc().count("<rom bar='off'/>") == 2


def test_a_card_that_shares_its_group_is_not_drained(
    rig: Rig, tmp_path: Path, sysfs: FakeSysfs
) -> None:
    sysfs.add("0000:66:00.0", NIC, driver="ixgbe")
    with running_plane(
        tmp_path,
        server={"enable_kvm": "true", "libvirt_uri": rig.uri},
        native={"addresses": f"{UUID} = {PCI}", "sysfs_dir": sysfs.root},
    ) as plane:
        pool = Pool(plane)
        status, problem = pool.switch("native")
        assert status == 409
        assert "0000:66:00.0" in problem["detail"]
        assert "ixgbe" in pool.gpu()["native_problem"]
        assert pool.gpu()["mode"] == "pooled"


def test_json_is_what_rest_answers(pool: Pool, make_guest: Callable[..., Guest]) -> None:
    guest = make_guest()
    pool.switch("native")
    pool.mode("native")
    answer = json.loads(pool.sluice("gpu", "attach", UUID, guest.name, "-o", "json").stdout)
    assert (answer["state"], answer["pci_address"]) == ("attached", PCI)
    answer = json.loads(pool.sluice("gpu", "detach", UUID, "-o", "json").stdout)
    assert answer["state"] == "detached"
