# SPDX-License-Identifier: Apache-2.0
"""A VM's request changed at the controller's order, in a real libvirt: what is named, no more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.config.server import ServerConfig
from sluice.hypervisor.libvirt_host import persistent_document
from sluice.rpc import pool_pb2 as rpc
from sluice.server.guests.requests import GuestRequests
from tests.rigs.kvm.rig import Guest, Rig

from .conftest import VmCommand

pytestmark = pytest.mark.vm


def requests_of(rig: Rig, folder: Path, *, kvm: bool = True) -> GuestRequests:
    section = {
        "libvirt_uri": rig.uri, "run_dir": str(folder / "run"), "region_dir": "/dev/shm",
        "enable_kvm": kvm,
    }  # fmt: skip
    return GuestRequests(ServerConfig.model_validate({"server": section}))


async def test_what_is_named_is_changed_in_the_definition_and_the_rest_stays(
    rig: Rig, vm: VmCommand, make_guest: Callable[..., Guest], tmp_path: Path
) -> None:
    guest = make_guest()
    assert vm.attach(guest.name, "--priority", "3", "--region-mib", "64").code == 0
    before = persistent_document(guest.domain).request
    assert before is not None
    requests = requests_of(rig, tmp_path)
    assert requests.can
    order = rpc.ChangeRequest(
        call=7, domain_uuid=guest.uuid, memory_mib=2048, priority=0, mode="reserved"
    )
    done = await requests.change(order)
    assert (done.call, done.error) == (7, "")
    after = persistent_document(guest.domain).request
    assert after is not None
    assert (after.memory_mib, after.priority, after.mode) == (2048, 0, "reserved")
    same = ("count", "compute_percent", "region_mib", "slots", "channel", "vsock")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]


async def test_what_cannot_be_changed_is_said_and_left(
    rig: Rig, vm: VmCommand, make_guest: Callable[..., Guest], tmp_path: Path
) -> None:
    guest = make_guest()
    requests = requests_of(rig, tmp_path)
    nothing = await requests.change(rpc.ChangeRequest(domain_uuid=guest.uuid, vgpu_count=1))
    assert "asks for nothing yet" in nothing.error
    assert vm.attach(guest.name).code == 0
    before = persistent_document(guest.domain).request
    for wrong in (
        rpc.ChangeRequest(domain_uuid=guest.uuid, compute_percent=101),
        rpc.ChangeRequest(domain_uuid=guest.uuid, vgpu_count=0),
        rpc.ChangeRequest(domain_uuid=guest.uuid, mode="always"),
    ):
        assert (await requests.change(wrong)).error
    assert persistent_document(guest.domain).request == before
    missing = await requests.change(rpc.ChangeRequest(domain_uuid="no-such", vgpu_count=1))
    assert "no-such" in missing.error
    off = requests_of(rig, tmp_path, kvm=False)
    assert not off.can
    refused = await off.change(rpc.ChangeRequest(domain_uuid=guest.uuid, vgpu_count=1))
    assert "serves no VMs" in refused.error
