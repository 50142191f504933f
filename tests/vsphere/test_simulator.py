# SPDX-License-Identifier: Apache-2.0
"""The rig itself: the simulated vCenter does what the other tests rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vcenter import Vcenter

pytestmark = pytest.mark.vsphere


def test_it_has_gpus_vms_attributes_and_life(vcenter: Vcenter) -> None:
    from pyVmomi import vim

    hosts = vcenter.all(vim.HostSystem)
    assert {len(host.config.pciPassthruInfo) for host in hosts} == {2}
    vm = vcenter.vm("DC0_C0_RP0_VM0")
    vcenter.give_gpu(vm)
    vcenter.give_gpu(vm, dynamic=True)
    vcenter.set_attribute(vm, "count=1")
    vcenter.set_extra(vm, guestinfo__sluice__x="1")
    vcenter.tag(vm, "one")
    kinds = [
        type(d.backing).__name__.rpartition(".")[2]
        for d in vm.config.hardware.device
        if isinstance(d, vim.vm.device.VirtualPCIPassthrough)
    ]
    assert kinds == ["DeviceBackingInfo", "DynamicBackingInfo"]
    assert [value.value for value in vm.customValue] == ["count=1"]
    assert vcenter.extra(vm)["guestinfo.sluice.x"] == "1"
    before = vm.runtime.host
    assert vcenter.migrate(vm) != before
    vcenter.power(vm, on=False)
    vcenter.expire_sessions()
    vcenter.restart(100)
    assert vcenter.calls(anew=True)["SetField"] == 1
    assert vcenter.vm("DC0_C0_RP0_VM0").runtime.powerState == "poweredOff"
    vcenter.destroy(vcenter.vm("DC0_C0_RP0_VM1"))
    assert len(vcenter.all(vim.VirtualMachine)) == 7
